# SPDX-License-Identifier: Apache-2.0
"""Where functions begin in a file without their symbols: .eh_frame, and its search table .eh_frame_hdr."""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from rubyunwind.elf.file import ElfFile

__all__ = ["function_entries", "function_size", "function_starts", "start_of"]

# LSB core specification, "The .eh_frame_hdr section": version, then the encodings of the frame pointer,
# of the count and of the table. Linkers write these three and no others.
_VERSION = 1
_PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 0x1B, 0x03, 0x3B
_HEAD = struct.Struct("<BBBBiI")
# .eh_frame: length, distance to the CIE, start of the function as pcrel sdata4, its size. The table knows
# the start, too: what does not agree is in another form.
_ENTRY = struct.Struct("<IIiI")
_MAX_ENTRIES = 1 << 18


def function_starts(elf: ElfFile) -> list[int]:
    """Return the ELF virtual addresses at which functions with unwind information begin, ascending.

    Empty for a file without unwind information, and for a damaged one. A stripped file keeps it, as C++
    exceptions and backtrace(3) need it. Raises DecodeError when the file was closed or shrank.
    """
    return sorted(function_entries(elf))


def function_size(elf: ElfFile, start: int, entry: int) -> int:
    """Return the size in bytes of the function at `start`, 0 if its `entry` does not say it."""
    try:
        _, _, relative, size = _ENTRY.unpack(elf.read_virtual(entry, _ENTRY.size))
    except DecodeError:
        return 0
    return int(size) if entry + 8 + relative == start else 0


def function_entries(elf: ElfFile) -> dict[int, int]:
    """Return {start of a function: address of its entry in .eh_frame}. Otherwise as function_starts."""
    section = elf.section(".eh_frame_hdr")
    if section is None:  # not every linker is told to make it: musl-gcc does not
        return _entries_one_by_one(elf)
    try:
        data = elf.data(section)
    except DecodeError:
        return {}
    if len(data) < _HEAD.size:
        return {}
    version, frame, count_form, table, _, count = _HEAD.unpack_from(data)
    if (version, frame, count_form, table) != (_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4):
        return {}
    count = min(count, (len(data) - _HEAD.size) // 8)
    pairs = struct.unpack_from(f"<{2 * count}i", data, _HEAD.size)
    base = section.address
    return {base + start: base + entry for start, entry in zip(pairs[::2], pairs[1::2], strict=True)}


def _entries_one_by_one(elf: ElfFile) -> dict[int, int]:
    section = elf.section(".eh_frame")
    if section is None:
        return {}
    try:
        data = elf.data(section)
    except DecodeError:
        return {}
    spans = elf.executable_spans
    found: dict[int, int] = {}
    at = 0
    for _ in range(_MAX_ENTRIES):
        if at + _ENTRY.size > len(data):
            break
        length, cie, relative, _ = _ENTRY.unpack_from(data, at)
        if not length or length == 0xFFFFFFFF:  # the end, or one of more than 4 GiB
            break
        start = section.address + at + 8 + relative
        # A pointer in another form leads elsewhere.
        if cie and any(first <= start < end for first, end, _ in spans):
            found[start] = section.address + at
        at += 4 + length
    return found


def start_of(starts: list[int], address: int) -> int | None:
    """Return the last start at or before `address`, or None."""
    index = bisect_right(starts, address) - 1
    return starts[index] if index >= 0 else None
