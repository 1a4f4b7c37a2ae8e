# SPDX-License-Identifier: Apache-2.0
"""An ELF file as a core holds it: no sections, pages missing, addresses already relocated.

Program headers, dynamic section, symbols and the writable data are there mostly; what a reader needs of
sections is put together from them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from rubyunwind.elf.file import MAX_READ, ElfFile, Section
from rubyunwind.errors import DecodeError
from rubyunwind.process.core_notes import FileRange
from rubyunwind.process.memory import MemoryReadError

__all__ = ["DumpedImage"]

# elf.h
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_EH_FRAME = 1, 2, 0x6474E550
_SHT_PROGBITS, _SHT_STRTAB, _SHT_NOBITS, _SHT_DYNSYM = 1, 3, 8, 11
_DT_PLTGOT, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_STRSZ, _DT_JMPREL = 3, 4, 5, 6, 7, 10, 23
_DT_GNU_HASH, _DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0
_SYMBOL_SIZE = 24
_DYN = struct.Struct("<QQ")  # Elf64_Dyn
_EH_FRAME_HDR_PCREL = bytes([1, 0x1B])  # version 1, pointer to .eh_frame as DW_EH_PE_pcrel | sdata4

# What glibc's dynamic linker relocates in place (ADJUST_DYN_INFO of elf/get-dynamic-info.h).
_RELOCATED = frozenset(
    {_DT_PLTGOT, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_JMPREL, _DT_GNU_HASH, _DT_VERSYM}
)

_MAX_DYNAMIC = 1 << 16
_MAX_NAMES = 64 << 20
_MAX_SYMBOLS = 1_000_000
_PAGE = 4096


class DumpedImage(ElfFile):
    """The parts of one mapped file that are in memory, addressed by file offset as an ElfFile is.

    `ranges` are all mappings of that file, `memory` reads (address, length) and raises MemoryReadError.
    Reading a page that is not there raises DecodeError; writable data is as the process left it.
    """

    def __init__(self, ranges: Sequence[FileRange], memory: Callable[[int, int], bytes], name: str) -> None:
        self._ranges = sorted(ranges, key=lambda entry: entry.offset)
        self._memory = memory
        self._overlay: tuple[int, bytes] = (0, b"")
        size = max((entry.offset + entry.end - entry.start for entry in self._ranges), default=0)
        self._begin(self._read_ranges, size, f"{name} (as the core has it)", None)
        first = next((entry for entry in self._ranges if entry.offset == 0), None)
        if first is None or not self.segments:
            raise DecodeError(f"{name}: the core does not hold its program headers")
        self.bias = self.load_bias(first.start, 0, executable=False, page_size=_PAGE)
        self._restore_dynamic()

    def _read_ranges(self, offset: int, length: int) -> bytes:
        parts = []
        at, end = offset, offset + length
        while at < end:
            piece, data = self._piece(at, end)
            parts.append(data)
            at += piece
        data = b"".join(parts)
        start, patch = self._overlay
        low, high = max(start, offset), min(start + len(patch), end)
        if low < high:
            data = data[: low - offset] + patch[low - start : high - start] + data[high - offset :]
        return data

    def _piece(self, at: int, end: int) -> tuple[int, bytes]:
        """Read from the first mapping that has what is at `at`: two may share a page of the file."""
        reason = "it was never mapped"
        for entry in self._ranges:
            if entry.offset > at:
                break
            into = at - entry.offset
            piece = min(end - at, entry.end - entry.start - into)
            if piece > 0:
                try:
                    return piece, self._memory(entry.start + into, piece)
                except MemoryReadError as error:
                    reason = str(error)
        raise DecodeError(f"{self.name}: file offset {at:#x}: {reason}")

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section as {tag: value}, addresses as in the file; empty without one."""
        return dict(_DYN.iter_unpack(self._overlay[1]))

    def _restore_dynamic(self) -> None:
        """Undo what the dynamic linker did to the dynamic section, so that readers find file addresses."""
        for segment in self.segments:
            if segment.type != _PT_DYNAMIC or segment.file_size > _MAX_DYNAMIC:
                continue
            try:
                raw = self.read(segment.offset, segment.file_size & ~15)
            except DecodeError:
                return
            restored = bytearray()
            for tag, value in _DYN.iter_unpack(raw):
                # Not every libc relocates them: file addresses are far below any bias.
                moved = tag in _RELOCATED and 0 < self.bias <= value
                restored += _DYN.pack(tag, value - self.bias if moved else value)
            self._overlay = (segment.offset, bytes(restored))
            return

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Symbols, their names, and the unwind rules, as far as the core holds them."""
        return (Section("", 0, 0, 0, 0, 0, 0, 0), *self._symbol_sections(), *self._other_sections())

    def _symbol_sections(self) -> Iterator[Section]:
        dynamic = self.dynamic
        symbols, names = dynamic.get(_DT_SYMTAB, 0), dynamic.get(_DT_STRTAB, 0)
        size = min(dynamic.get(_DT_STRSZ, 0), _MAX_NAMES)
        try:
            symbols_at, names_at = self._offset(symbols), self._offset(names)
            count = self._symbol_count()
        except (DecodeError, struct.error):
            return
        if symbols and names and count:
            length = count * _SYMBOL_SIZE
            yield Section(".dynsym", _SHT_DYNSYM, 0, symbols, symbols_at, length, 2, _SYMBOL_SIZE)
            yield Section(".dynstr", _SHT_STRTAB, 0, names, names_at, size, 0, 0)

    def _symbol_count(self) -> int:
        """Count the dynamic symbols; only the hash tables know how many there are."""
        table = self.dynamic.get(_DT_HASH)
        if table:
            (count,) = struct.unpack("<I", self.read_virtual(table + 4, 4))
            return min(int(count), _MAX_SYMBOLS)
        table = self.dynamic.get(_DT_GNU_HASH)
        if not table:
            return 0
        buckets, first, bloom, _ = struct.unpack("<4I", self.read_virtual(table, 16))
        if buckets > _MAX_SYMBOLS or bloom > _MAX_SYMBOLS:
            raise DecodeError(f"{self.name}: its symbol hash table has {buckets} buckets")
        at = table + 16 + 8 * bloom
        last = max(struct.unpack(f"<{buckets}I", self.read_virtual(at, 4 * buckets)), default=0)
        if last < first:
            return int(first)
        at += 4 * buckets
        # The chain of the last bucket ends with an odd hash.
        while last < _MAX_SYMBOLS:
            (value,) = struct.unpack("<I", self.read_virtual(at + 4 * (last - first), 4))
            last += 1
            if value & 1:
                break
        return int(last)

    def _other_sections(self) -> Iterator[Section]:
        got = self.dynamic.get(_DT_PLTGOT, 0)
        if got:
            yield Section(".got.plt", _SHT_NOBITS, 0, got, 0, 0, 0, 0)
        for segment in self.segments:
            if segment.type != _PT_GNU_EH_FRAME or segment.file_size < 8:
                continue
            try:
                head = self.read(segment.offset, 8)
                address = segment.address + 4 + int.from_bytes(head[4:8], "little", signed=True)
                offset = self._offset(address)
            except DecodeError:
                continue
            # How long it is nobody says; a zero length ends it, so what is behind does no harm.
            length = self._dumped_from(offset, min(self._end_of_segment(address), offset + MAX_READ))
            if head[:2] == _EH_FRAME_HDR_PCREL and length:
                yield Section(".eh_frame", _SHT_PROGBITS, 0, address, offset, length, 0, 0)

    def _offset(self, address: int) -> int:
        for segment in self.segments:
            if segment.type == _PT_LOAD and 0 <= address - segment.address < segment.file_size:
                return segment.offset + address - segment.address
        raise DecodeError(f"{self.name}: address {address:#x} is in no loaded segment")

    def _end_of_segment(self, address: int) -> int:
        for segment in self.segments:
            if segment.type == _PT_LOAD and 0 <= address - segment.address < segment.file_size:
                return segment.offset + segment.file_size
        return 0

    def _dumped_from(self, offset: int, end: int) -> int:
        """Return how many bytes from `offset` on can be read, up to file offset `end`."""
        at = offset
        while at < end:
            piece = min(end, (at // _PAGE + 1) * _PAGE) - at
            try:
                self.read(at, piece)
            except DecodeError:
                break
            at += piece
        return at - offset
