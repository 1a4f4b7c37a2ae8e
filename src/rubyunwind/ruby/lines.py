# SPDX-License-Identifier: Apache-2.0
"""From a program counter to a line: the tables of an instruction sequence (iseq).

An iseq keeps one entry per run of instructions on a line. Ruby 2.5 stores each entry's position in it.
From 2.6 on positions are a set of bits (succinct table): the number of bits up to a position is the
number of the entry. Ruby's own code for it is in iseq.c (succ_index_lookup).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["BadLineTable", "LineTable", "position_of"]

# struct succ_index_table: 6 words of nine 7-bit ranks for the first 54 positions, then blocks of 512.
_IMMEDIATE_RANKS = 9
_IMMEDIATE_BITS = 7
_IMMEDIATE_POSITIONS = 54
_BLOCKS = 48
_BLOCK_POSITIONS = 512
# struct succ_dict_block: u32 rank, u64 of 9-bit ranks for the words 1..7, eight words of bits.
_BLOCK = struct.Struct("<I4x9Q")
_SMALL_BITS = 9

MAX_ENTRIES = 1 << 20
"""Entries of one line table that are believed in: a longer one is memory that is no iseq."""


class BadLineTable(RubyUnwindError):
    """A line table that contradicts itself, so the address is probably no iseq any more."""


def position_of(pc: int, iseq_encoded: int, iseq_size: int) -> int:
    """Return the instruction position that `pc` stands for, in words from the start of the iseq.

    The interpreter advances pc before it runs an instruction, so it is the one before. Raises
    BadLineTable for a pc outside of the iseq.
    """
    position, rest = divmod(pc - iseq_encoded, 8)
    if rest or not 0 <= position <= iseq_size:
        raise BadLineTable(f"pc {pc:#x} is outside of the {iseq_size} instruction words at {iseq_encoded:#x}")
    return position - 1 if position else 0


class LineTable:
    """The line table of one iseq body: where it is, not its contents."""

    __slots__ = ("_entries", "_layout", "_memory", "_size", "_succinct")

    def __init__(self, memory: Memory, layout: Layout, entries: int, size: int, succinct: int) -> None:
        """Take the addresses of the entries and of the succinct table (0 in 2.5), and the entries' number."""
        if size > MAX_ENTRIES:
            raise BadLineTable(f"the line table claims {size} entries")
        self._memory = memory
        self._layout = layout
        self._entries = entries
        self._size = size
        self._succinct = succinct

    def line(self, position: int) -> int:
        """Return the line of the instruction at `position`; 0 when the iseq has no lines.

        Raises MemoryReadError or BadLineTable.
        """
        if self._size == 0:
            return 0
        if self._size == 1:
            return self._line_at(0)
        if self._layout.insn_entry_position is not None:
            return self._line_at(self._search(position))
        index = self._rank(position) - 1
        if not 0 <= index < self._size:
            raise BadLineTable(f"position {position} leads to entry {index} of {self._size}")
        return self._line_at(index)

    def _line_at(self, index: int) -> int:
        address = self._entries + index * self._layout.insn_entry_size + self._layout.insn_entry_line
        # Signed: `eval(code, binding, file, -5)` is allowed.
        return int(struct.unpack("<i", self._memory.read(address, 4))[0])

    def _rank(self, position: int) -> int:
        """Return how many entries start at or before `position`."""
        if position < _IMMEDIATE_POSITIONS:
            word, place = divmod(position, _IMMEDIATE_RANKS)
            ranks = self._memory.u64(self._succinct + 8 * word)
            return ranks >> _IMMEDIATE_BITS * place & (1 << _IMMEDIATE_BITS) - 1
        block, inside = divmod(position - _IMMEDIATE_POSITIONS, _BLOCK_POSITIONS)
        address = self._succinct + _BLOCKS + block * _BLOCK.size
        rank, small_ranks, *bits = _BLOCK.unpack(self._memory.read(address, _BLOCK.size))
        word, bit = divmod(inside, 64)
        small = small_ranks >> _SMALL_BITS * (word - 1) & (1 << _SMALL_BITS) - 1 if word else 0
        # Bits up to and including this one. Zero words are ordinary: a long statement has no entry there.
        below = bits[word] & (2 << bit) - 1
        return int(rank + small + below.bit_count())

    def _search(self, position: int) -> int:
        """Return the last entry of 2.5's table whose position is not above `position`."""
        step = self._layout.insn_entry_size
        where = self._layout.insn_entry_position or 0
        table = self._memory.read(self._entries, self._size * step)
        low, high = 0, self._size
        while high - low > 1:
            middle = (low + high) // 2
            if struct.unpack_from("<I", table, middle * step + where)[0] <= position:
                low = middle
            else:
                high = middle
        return low
