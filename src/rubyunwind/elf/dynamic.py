# SPDX-License-Identifier: Apache-2.0
"""The dynamic section: what the dynamic linker is told, which no strip removes."""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.elf.file import PT_LOAD
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rubyunwind.elf.file import ElfFile

__all__ = ["DynamicSection", "RelocationEntry"]

# elf.h
PT_DYNAMIC = 2
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_JMPREL = 2, 5, 6, 7, 8, 23
_RELA = struct.Struct("<QQq")  # Elf64_Rela
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym

MAX_TABLE = 64 << 20
MAX_NAME = 256


class RelocationEntry(NamedTuple):
    """One relocation: ELF address of its slot, r_type, index of its symbol (0: none), addend."""

    offset: int
    kind: int
    symbol: int
    addend: int


class DynamicSection:
    """The dynamic section of a file; without one (a static program) there is nothing in it.

    Reading raises DecodeError where the file does not hold what the section says.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf

    @cached_property
    def entries(self) -> dict[int, int]:
        """{tag: value}."""
        for segment in self._elf.segments:
            if segment.type == PT_DYNAMIC and segment.file_size < MAX_TABLE:
                raw = self._elf.read_virtual(segment.address, segment.file_size & ~15)
                return {int(tag): int(value) for tag, value in struct.iter_unpack("<QQ", raw)}
        return {}

    def relocations(self, kinds: tuple[int, ...]) -> Iterator[RelocationEntry]:
        """Yield the relocations with addend of some r_types."""
        for table, size in ((DT_RELA, DT_RELASZ), (DT_JMPREL, DT_PLTRELSZ)):
            start, length = self.entries.get(table, 0), self.entries.get(size, 0) // _RELA.size * _RELA.size
            if not start or not 0 < length < MAX_TABLE:
                continue
            for offset, info, addend in _RELA.iter_unpack(self._elf.read_virtual(start, length)):
                if info & 0xFFFFFFFF in kinds:
                    yield RelocationEntry(offset, info & 0xFFFFFFFF, info >> 32, addend)

    def symbol_value(self, index: int) -> int:
        """Return the address of a symbol that this file defines, 0 for another file's."""
        raw = self._elf.read_virtual(self.entries.get(DT_SYMTAB, 0) + index * _SYMBOL.size, _SYMBOL.size)
        _, _, _, section, value, _ = _SYMBOL.unpack(raw)
        return int(value) if section else 0

    def symbol_name(self, index: int) -> str:
        """Return the name of a symbol, "" for index 0."""
        if not index:
            return ""
        raw = self._elf.read_virtual(self.entries.get(DT_SYMTAB, 0) + index * _SYMBOL.size, 4)
        start = self.entries.get(DT_STRTAB, 0) + int.from_bytes(raw, "little")
        for segment in self._elf.segments:
            into = start - segment.address
            if segment.type == PT_LOAD and 0 <= into < segment.file_size:
                raw = self._elf.read_virtual(start, min(MAX_NAME, segment.file_size - into))
                return raw.partition(b"\0")[0].decode("ascii", "replace")
        raise DecodeError(f"{self._elf.name}: the name of symbol {index} is in no loaded segment")
