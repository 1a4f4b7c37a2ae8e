# SPDX-License-Identifier: Apache-2.0
"""From an ID to its name: Ruby's global symbol table, which names C functions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.strings import (
    T_ARRAY,
    T_HASH,
    T_STRING,
    BadObject,
    array_element,
    object_type,
    read_string,
)

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["IdentifierTable", "find_identifier_table"]

# symbol.c: ids come in arrays of ID_ENTRY_UNIT symbols, each symbol as a pair (string, Symbol object);
# an id above the operators is serial << ID_SCOPE_SHIFT | scope (id.h).
_UNIT = 512
_PAIR = 2
_SCOPE_SHIFT = 4

# A fresh interpreter has some 3,000 symbols; the biggest programs a few million.
_FEWEST_SYMBOLS = 200
_MOST_SYMBOLS = 1 << 26
MAX_SCAN = 4 << 20
"""Bytes of a .data section that are searched for the table."""


class IdentifierTable:
    """Ruby's table of symbols (rb_symbols_t, a local variable of symbol.c) at `address`."""

    __slots__ = ("_layout", "_memory", "address")

    def __init__(self, memory: Memory, layout: Layout, address: int) -> None:
        self._memory = memory
        self._layout = layout
        self.address = address

    def name(self, identifier: int) -> str:
        """Return the name that `identifier` (an ID) stands for.

        Raises BadObject for an id the table does not have, MemoryReadError when it cannot be read.
        """
        return read_string(self._memory, self._layout, self.string(identifier))

    def string(self, identifier: int) -> int:
        """Return the address of the String that holds the name. Raises as name() does."""
        memory, layout = self._memory, self._layout
        serial = identifier if identifier <= layout.last_operator_id else identifier >> _SCOPE_SHIFT
        last = memory.u32(self.address + layout.symbols_last_id)
        if not 0 < serial <= last:
            raise BadObject(f"id {identifier:#x} is not among the {last} symbols of the process")
        units = memory.u64(self.address + layout.symbols_ids)
        unit = array_element(memory, units, serial // _UNIT)
        return array_element(memory, unit, _PAIR * (serial % _UNIT))


def find_identifier_table(
    memory: Memory, layout: Layout, start: int, length: int, *, budget: int = MAX_SCAN
) -> int | None:
    """Search the initialized data [start, start + length) for the symbol table of a stripped Ruby.

    The table is recognized by its shape: a plausible count, an Array and, behind it, a Hash (before 4.0),
    and a String for one of the first symbols. Returns its address, or None.
    """
    length = min(length, budget) & ~7
    if length < 32:
        return None
    try:
        words = struct.unpack(f"<{length // 8}Q", memory.read(start, length))
    except MemoryReadError:
        return None
    ids_word = layout.symbols_ids // 8
    for index in range(len(words) - ids_word - 1):
        last = words[index] & 0xFFFFFFFF
        if not _FEWEST_SYMBOLS <= last <= _MOST_SYMBOLS:
            continue
        if any(word & 7 or word < 4096 for word in words[index + 1 : index + ids_word + 1]):
            continue
        address = start + 8 * index
        try:
            if _looks_right(memory, layout, words, index, address, last):
                return address
        except RubyUnwindError:
            continue
    return None


def _looks_right(
    memory: Memory, layout: Layout, words: tuple[int, ...], index: int, address: int, last: int
) -> bool:
    ids_word = layout.symbols_ids // 8
    if object_type(memory.u64(words[index + ids_word])) != T_ARRAY:
        return False
    if layout.series < (4, 0):
        behind = words[index + ids_word + 1]
        if behind & 7 or behind < 4096 or object_type(memory.u64(behind)) != T_HASH:
            return False
    # The last symbol may be half registered while the process runs. The first ones behind the operators are
    # names that Ruby itself needs ("max", "min", ...).
    first = layout.last_operator_id + 1
    string = IdentifierTable(memory, layout, address).string(first << _SCOPE_SHIFT)
    return last >= first and object_type(memory.u64(string)) == T_STRING
