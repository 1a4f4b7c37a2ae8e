# SPDX-License-Identifier: Apache-2.0
"""Finds libbpf when it is first needed, and opens it.

Order: the file named by RUBYUNWIND_LIBBPF, the system's libbpf.so.1, the copy that a released wheel of
this package has (support/bundle_libbpf.py), the extension file inside an installed pylibbpf (which exports
libbpf's functions; the package itself is never imported). The first that opens, is 1.0 or newer and has
every function of `_c/libbpf.cdef` is used for the life of the process. A library that was named explicitly
and does not serve is an error, never passed over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rubyunwind._libbpf import ffi
from rubyunwind.errors import NotSupported

__all__ = ["LIBC", "Candidate", "Library", "candidates", "ffi", "load_library", "open_first"]

VARIABLE = "RUBYUNWIND_LIBBPF"
SONAME = "libbpf.so.1"
MINIMUM = (1, 0)
LIBC = ffi.dlopen(None)
# Declared in the same cdef, but libc's.
_LIBC_NAMES = frozenset({"ptrace", "vsnprintf", "syscall", "timerfd_create", "timerfd_settime"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place where libbpf may be: how it came up, and what to give to dlopen (None: nothing was found)."""

    origin: str
    path: str | None
    explicit: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """An opened libbpf. `lib` has the functions; the handle is never closed, callbacks may live in it."""

    lib: Any
    path: str
    version: tuple[int, int]


class _Unfit(Exception):
    """Why a candidate does not serve."""


def candidates(environ: Mapping[str, str] | None = None) -> Iterator[Candidate]:
    """Yield the places to try, best first. The last one is looked up only when the iterator gets there."""
    named = (os.environ if environ is None else environ).get(VARIABLE)
    if named:
        yield Candidate(VARIABLE, named, explicit=True)
    yield Candidate("system library", SONAME)
    yield Candidate("copy in this package", _own_copy())
    yield Candidate("installed pylibbpf", _pylibbpf_extension())


def _own_copy() -> str | None:
    """Path of the copy in this package; None if it was built without one."""
    path = Path(__file__).parents[1] / "libs" / SONAME
    return str(path) if path.exists() else None


def _pylibbpf_extension() -> str | None:
    """Path of pylibbpf's extension file, from the installed file list; None if it is not installed."""
    from importlib import metadata  # 60 ms: only when there is no other libbpf

    try:
        files = metadata.files("pylibbpf") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        # The bundled libelf and friends sit in pylibbpf.libs.
        if file.name.startswith("pylibbpf.") and file.name.endswith(".so"):
            return str(file.locate())
    return None


def _open(path: str) -> Library:
    try:
        lib = ffi.dlopen(path)
    except OSError as error:
        raise _Unfit(_dlopen_reason(error, path)) from None
    try:
        version = (int(lib.libbpf_major_version()), int(lib.libbpf_minor_version()))
    except ffi.error:
        # libbpf_major_version came with 0.6 and is in every 1.x.
        raise _Unfit("it has no libbpf_major_version: not libbpf, or older than 0.6") from None
    if version < MINIMUM:
        raise _Unfit("it is version {}.{}, 1.0 is needed".format(*version))
    missing = [name for name in dir(lib) if name not in _LIBC_NAMES and not _has(lib, name)]
    if missing:
        raise _Unfit(f"version {version[0]}.{version[1]} without {', '.join(sorted(missing))}")
    return Library(lib, path, version)


def _has(lib: Any, name: str) -> bool:
    try:
        getattr(lib, name)
    except ffi.error:
        return False
    return True


def _dlopen_reason(error: OSError, path: str) -> str:
    """The loader's own words. cffi puts "cannot load library 'PATH': " before them."""
    text = str(error)
    for prefix in (f"cannot load library '{path}': ", f"{path}: "):
        text = text.removeprefix(prefix)
    return text


def open_first(
    places: Iterator[Candidate], opener: Callable[[str], Library] | None = None
) -> tuple[Library, Candidate]:
    """Open the first candidate that serves; NotSupported, naming every place tried, if none does."""
    opener = opener or _open
    tried: list[str] = []
    explicit = False
    for place in places:
        if place.path is None:
            tried.append(f"{place.origin}: not there")
            continue
        try:
            return opener(place.path), place
        except _Unfit as reason:
            tried.append(f"{place.origin} ({place.path}): {reason}")
        if place.explicit:
            explicit = True
            tried.append(f"no other copy was tried because {VARIABLE} is set")
            break
    advice = (
        f"correct or unset {VARIABLE}"
        if explicit
        else f"install it (Debian, Ubuntu: apt install libbpf1; or pip install 'rubyunwind[libbpf]'), "
        f"or name a copy in {VARIABLE}"
    )
    raise NotSupported(
        "no usable libbpf (1.0 or newer). Tried " + "; ".join(tried) + f". To go on, {advice}.",
        feature="libbpf",
        needs="libbpf 1.0 (apt install libbpf1)",
    )


_lock = threading.Lock()
_loaded: Library | None = None


def load_library() -> Library:
    """Return the process's libbpf, opened on the first call, with its messages routed to `logging`.

    Raises NotSupported when there is none that serves.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            from rubyunwind.bpf import messages

            library, _ = open_first(candidates())
            messages.install(library.lib)
            _loaded = library
        return _loaded
