# SPDX-License-Identifier: Apache-2.0
"""What a file's debug information, or that of its separate debug file, says of Ruby's structs: read once.

That takes a tenth of a second, so it is kept on disk. An entry holds for the very file that it was read
from (device, inode, size, time of change): build ids are what a file says of itself, and one that lies is not
to be believed for another.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from rubyunwind.elf.cache import TableCache
from rubyunwind.elf.debuglink import DEBUG_ROOT, open_debug_file
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rubyunwind.elf.file import ElfFile
    from rubyunwind.ruby.layouts.layout import Layout

__all__ = ["DEBUG_INFORMATION", "described_offsets", "moved_notes", "with_offsets"]

DEBUG_INFORMATION = "its debug information"
"""What RubyRuntime.layout_version says where that decided."""

# Counts up with what is read of debug information, and how it is written here.
_FORMAT = 1
_INFO = ".debug_info"
_log = logging.getLogger(__name__)


def described_offsets(
    elf: ElfFile, *, cache: TableCache | None = None, debug_root: Path = DEBUG_ROOT
) -> dict[str, int]:
    """Return the members of Layout, by name, that the debug information tells; {} where there is none.

    What cannot be read counts as none, and is in the log. `elf` stays open.
    """
    with ExitStack() as stack:
        files = [elf] if elf.section(_INFO) is not None else []
        if elf.section(".gnu_debuglink") is not None:
            debug = open_debug_file(elf, debug_root)
            files += [stack.enter_context(debug)] if debug is not None else []
        if not files:
            return {}
        stamps = [file.stamp for file in files]
        if None in stamps:  # no file, but memory
            return _read(files)
        cache = cache if cache is not None else TableCache()
        identity = build_id(elf)
        key = f"layout{identity.hex() if identity is not None else f'file{file_id(elf):016x}'}"
        digest = hashlib.sha256(repr((_FORMAT, stamps)).encode()).digest()
        stored = cache.get(key, digest)
        known = _unpack(stored) if stored is not None else None
        if known is None:
            known = _read(files)
            cache.put(key, digest, _pack(known))
        return known


def with_offsets(layout: Layout, offsets: Mapping[str, int]) -> Layout:
    """Return a layout with members at the offsets; one that its series has no use for stays None."""
    changes: dict[str, Any] = {
        name: offset for name, offset in offsets.items() if getattr(layout, name) not in (None, offset)
    }
    return replace(layout, **changes) if changes else layout


def moved_notes(version: str, release: Layout, layout: Layout, known: bool) -> Iterator[str]:
    """Say where a Ruby is not laid out as the release that it says it is; of none that is not `known`."""
    pairs = ((each.name, getattr(layout, each.name), getattr(release, each.name)) for each in fields(layout))
    moved = ", ".join(f"{name} {one} instead of {two}" for name, one, two in pairs if one != two)
    if known and moved:
        yield f"Ruby {version}: its debug information decides, which is not that release's: {moved}"


def _read(files: list[ElfFile]) -> dict[str, int]:
    from rubyunwind.ruby.layouts.debug_info import offsets_of

    for file in files:
        try:
            found = offsets_of(file)
        except DecodeError as error:
            _log.info("%s: %s", file.name, error)
            continue
        if found is not None:
            return found
    return {}


def _pack(offsets: Mapping[str, int]) -> bytes:
    return "".join(f"{name} {offset}\n" for name, offset in offsets.items()).encode()


def _unpack(data: bytes) -> dict[str, int] | None:
    """Return what _pack was given; None if it is anything else."""
    from rubyunwind.ruby.layouts.debug_info import check_offsets

    try:
        pairs = (line.split(" ") for line in data.decode("ascii").splitlines())
        offsets = {name: int(offset) for name, offset in pairs}
        check_offsets(offsets)
    except (ValueError, DecodeError):
        return None
    return offsets
