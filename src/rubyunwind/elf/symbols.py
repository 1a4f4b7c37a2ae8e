# SPDX-License-Identifier: Apache-2.0
"""Symbols of an ELF file: the function at an address, and single symbols by name."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import NamedTuple

from rubyunwind.elf.file import ET_REL, ElfFile, Section
from rubyunwind.errors import DecodeError

__all__ = ["STT_FUNC", "STT_GNU_IFUNC", "STT_NOTYPE", "STT_OBJECT", "STT_TLS", "Symbol", "SymbolTable"]

# elf.h
SHT_SYMTAB = 2
SHT_DYNSYM = 11
SHN_UNDEF = 0
STT_NOTYPE = 0
STT_OBJECT = 1
STT_FUNC = 2
STT_TLS = 6
STT_GNU_IFUNC = 10
STB_LOCAL = 0
STB_GLOBAL = 1

SYMBOL_SIZE = 24  # Elf64_Sym: u32 name; u8 info, other; u16 shndx; u64 value, size
MAX_SYMBOLS = 1_000_000  # of one table; what follows is left out
MAX_TABLES = 4  # sections of one type that are read; a real file has one
MAX_NAME = 4096  # bytes of a name that are given out
_FUNCTIONS = bytes(info & 0xF in (STT_FUNC, STT_GNU_IFUNC) for info in range(256))  # by st_info
_RANKS = {STB_LOCAL: 0, STB_GLOBAL: 2}  # 1 for the others: weak ones
NESTED = 16  # symbols looked at before an address for one that is long enough to hold it


@dataclass(frozen=True, slots=True)
class Symbol:
    """One defined symbol. `value` is a virtual address, or for STT_TLS the offset in the TLS block."""

    name: str
    value: int
    size: int
    type: int


class _Function(NamedTuple):
    """The symbol that names an address."""

    size: int
    table: int
    number: int


class _Table:
    """One symbol section, taken apart by column (each is a slice at C speed) when it is first needed."""

    def __init__(self, data: bytes, names: bytes) -> None:
        view = memoryview(data)[: min(len(data) // SYMBOL_SIZE, MAX_SYMBOLS) * SYMBOL_SIZE]
        self.names = names
        self.infos = bytes(view[4::SYMBOL_SIZE])
        self.name_offsets = array("I", view.cast("I")[::6].tobytes())
        self.shndxs = array("H", view.cast("H")[3::12].tobytes())
        words = view.cast("Q")
        self.values = array("Q", words[1::3].tobytes())
        self.sizes = array("Q", words[2::3].tobytes())

    @cached_property
    def by_name_offset(self) -> dict[int, int]:
        return {at: index for index, at in enumerate(self.name_offsets) if self.shndxs[index] != SHN_UNDEF}

    def name(self, index: int) -> bytes:
        at = self.name_offsets[index]
        end = self.names.find(b"\0", at, at + MAX_NAME)
        return self.names[at : end if end >= 0 else at + MAX_NAME]


class SymbolTable:
    """The symbols of .symtab and .dynsym. Names are kept as the file has them; see demangle.

    Nothing is read before the first question. A damaged table counts as an empty one: it is better to
    show addresses than to stop.
    """

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._relocatable = elf.type == ET_REL
        self._loaded: list[_Table] | None = None
        self._starts: list[int] | None = None
        self._places: list[int] = []  # table x MAX_SYMBOLS + index
        self._chosen: dict[int, _Function] = {}

    def load(self) -> SymbolTable:
        """Read everything that lookups need, so that the file may be closed; returns itself."""
        self._sorted()
        return self

    def _tables(self) -> list[_Table]:
        if self._loaded is None:
            wanted: list[Section] = []
            for kind in (SHT_SYMTAB, SHT_DYNSYM):
                # All may be one megabyte under many names: the number of tables is bounded, too.
                wanted += [section for section in self._elf.sections if section.type == kind][:MAX_TABLES]
            found = [self._table(section) for section in wanted]
            self._loaded = [table for table in found if table is not None]
        return self._loaded

    def _table(self, section: Section) -> _Table | None:
        sections = self._elf.sections
        if section.entry_size != SYMBOL_SIZE or section.link >= len(sections):
            return None
        try:
            return _Table(self._elf.data(section), self._elf.data(sections[section.link]))
        except DecodeError:
            return None

    def _sorted(self) -> list[int]:
        """Return where the functions start, in order; `_places` says of each which symbol it is."""
        if self._starts is None:
            values: list[int] = []
            places: list[int] = []
            for number, table in enumerate(self._tables()):
                kinds = compress(range(len(table.infos)), table.infos.translate(_FUNCTIONS))
                found = [index for index in kinds if table.shndxs[index] != SHN_UNDEF]
                if not self._relocatable:
                    found = [index for index in found if table.values[index]]
                values += map(table.values.__getitem__, found)
                places += [number * MAX_SYMBOLS + index for index in found]
            order = sorted(range(len(values)), key=values.__getitem__)
            self._places = [places[at] for at in order]
            self._starts = [values[at] for at in order]
        return self._starts

    def _function(self, first: int, last: int) -> _Function:
        """Choose among the names for one address: those from `first` to `last` in the order of addresses."""
        chosen = self._chosen.get(first)
        if chosen is None:
            # Global before weak before local, then the one that covers more, then the larger table.
            ranked: list[tuple[int, int, int, int]] = []
            for place in self._places[first : last + 1]:
                number, index = divmod(place, MAX_SYMBOLS)
                table = self._tables()[number]
                ranked.append((_RANKS.get(table.infos[index] >> 4, 1), table.sizes[index], -number, index))
            ranked.sort(reverse=True)
            _, _, number, index = ranked[0]
            # A name without a size does not take the size away from its alias.
            size = next((size for _, size, _, _ in ranked if size), 0)
            chosen = self._chosen[first] = _Function(size, -number, index)
        return chosen

    def lookup(self, address: int) -> tuple[str, int] | None:
        """Return (name, offset from its start) of the function that holds a virtual address, or None.

        A function without a size, as assembly code may be, reaches to the next one.
        """
        starts = self._sorted()
        nearest = last = bisect_right(starts, address) - 1
        for _ in range(NESTED):
            if last < 0:
                break
            start = starts[last]
            first = bisect_left(starts, start, 0, last)
            function = self._function(first, last)
            if address < start + function.size or (not function.size and last == nearest):
                name = self._tables()[function.table].name(function.number)
                return name.decode("utf-8", "surrogateescape"), address - start
            last = first - 1
        return None

    def find(self, name: str) -> Symbol | None:
        """Return the defined symbol of that exact name and any type, or None."""
        wanted = name.encode("utf-8", "surrogateescape") + b"\0"
        for table in self._tables():
            # Linkers let a name be the tail of a longer one, so every place is tried; a table of made-up
            # names may have millions.
            at = table.names.find(wanted) if len(wanted) > 1 else -1
            for _ in range(MAX_SYMBOLS):
                if at < 0:
                    break
                index = table.by_name_offset.get(at)
                if index is not None:
                    kind = table.infos[index] & 0xF
                    return Symbol(name, table.values[index], table.sizes[index], kind)
                at = table.names.find(wanted, at + 1)
        return None

    def __len__(self) -> int:
        """Return the number of distinct function addresses."""
        return len(self._sorted())
