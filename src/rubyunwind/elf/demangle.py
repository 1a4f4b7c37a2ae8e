# SPDX-License-Identifier: Apache-2.0
"""Readable names of C++ and Rust functions."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from functools import lru_cache

__all__ = ["demangle"]

MAX_NAME = 4096
"""Longer names come back as they are, in characters."""

MAX_GROWTH = 16 << 20
"""Names that could grow beyond this many characters are not tried."""

MAX_READABLE = 16384
"""Names that are longer than this when demangled, in characters, come back as they were."""

# References to earlier parts: S_, S1A_, T_, T0_ (Itanium C++ ABI, section 5.1.10), B_, B4_ (Rust v0).
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_RUST_REFERENCE = re.compile(r"B[0-9A-Za-z]*_")
# Expansions of an argument pack, which stands there as J...E.
_EXPANSION = re.compile(r"Dp|sp")
# Legacy Rust names are C++ names whose last part is h and 16 hexadecimal digits.
_PREFIXES = ("_Z", "_R", "__Z", "__R")


def _growth(name: str) -> float:
    """Return an upper bound for the length of the demangled name.

    A reference repeats a part that may hold references itself, so a name of 250 characters can stand
    for a gigabyte. With n references the most comes out when each part is made of three of the one
    before: 3 ** (n / 3). A pack expansion repeats its pattern for as many types as the name has.
    """
    if name.lstrip("_").startswith("R"):
        references, packs = len(_RUST_REFERENCE.findall(name)), 0
    else:
        references = len(_REFERENCE.findall(name))
        packs = len(_EXPANSION.findall(name)) if "J" in name else 0
    exponent = references / 3 * math.log(3) + (packs + 1) * math.log(len(name))
    return math.exp(min(exponent, 700))


@lru_cache(maxsize=1)
def _demangler() -> Callable[[str], str] | None:
    try:
        library = importlib.import_module("pydemumble")
    except ImportError:
        return None
    function: Callable[[str], str] = library.demangle
    return function


@lru_cache(maxsize=8192)
def demangle(name: str) -> str:
    """Return the name as its source has it: C++ (Itanium ABI), Rust (legacy, v0).

    Everything else comes back unchanged: C names, names that are damaged, too long, or made to grow
    without bound, and all names when the demangling library is not installed.
    """
    if not name.startswith(_PREFIXES) or len(name) > MAX_NAME or not name.isascii():
        return name
    if _growth(name) > MAX_GROWTH:
        return name
    function = _demangler()
    if function is None:
        return name
    readable = function(name)
    return readable if 0 < len(readable) <= MAX_READABLE else name
