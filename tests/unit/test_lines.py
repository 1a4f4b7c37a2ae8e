# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruby_memory import RubyMemory

from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.lines import BadLineTable, LineTable, position_of

SUCCINCT = ["2.6.0", "2.7.4", "3.0.0", "3.1.2", "3.2.0", "3.3.8", "3.4.1", "4.0.6"]


def encode_succinct(positions: list[int], last: int) -> bytes:
    """The table Ruby builds for entries that start at `positions`, written from its definition."""
    starts = set(positions)

    def entries_up_to(position: int) -> int:
        return sum(1 for start in starts if start <= position)

    immediate = [0] * 6
    for position in range(54):
        immediate[position // 9] |= (entries_up_to(position) & 0x7F) << 7 * (position % 9)
    table = struct.pack("<6Q", *immediate)
    for first in range(54, max(last, 54) + 1, 512):
        rank = entries_up_to(first - 1)
        bits = [sum(1 << b for b in range(64) if first + 64 * w + b in starts) for w in range(8)]
        small, sum_so_far = 0, 0
        for word in range(7):
            sum_so_far += bits[word].bit_count()
            small |= sum_so_far << 9 * word
        table += struct.pack("<I4x9Q", rank, small, *bits)
    return table


def table_of(version: str, entries: list[tuple[int, int]], last: int) -> LineTable:
    """A line table of (position, line) entries in the memory of a made-up process."""
    memory = RubyMemory(find_layout(version).layout)
    layout = memory.layout
    raw = bytearray(layout.insn_entry_size * len(entries))
    for index, (position, line) in enumerate(entries):
        struct.pack_into("<i", raw, index * layout.insn_entry_size + layout.insn_entry_line, line)
        if layout.insn_entry_position is not None:
            start = index * layout.insn_entry_size + layout.insn_entry_position
            struct.pack_into("<I", raw, start, position)
    succinct = 0
    if layout.body_succ_index_table is not None:
        succinct = memory.place(encode_succinct([position for position, _ in entries], last))
    return LineTable(memory, layout, memory.place(bytes(raw)), len(entries), succinct)


def expected_line(entries: list[tuple[int, int]], position: int) -> int:
    return [line for start, line in entries if start <= position][-1]


entry_lists = st.lists(st.integers(1, 1700), min_size=1, max_size=120, unique=True).flatmap(
    lambda positions: st.tuples(
        st.just([0, *sorted(positions)]),
        st.lists(
            st.integers(-(1 << 31), (1 << 31) - 1), min_size=len(positions) + 1, max_size=len(positions) + 1
        ),
    )
)


@pytest.mark.parametrize("version", ["2.5.0", "2.6.0", "3.1.2"])
@given(table=entry_lists, beyond=st.integers(0, 40), data=st.data())
def test_any_table_gives_the_line_of_the_last_entry_before(
    version: str, table: tuple[list[int], list[int]], beyond: int, data: st.DataObject
) -> None:
    entries = list(zip(*table, strict=True))
    last = entries[-1][0] + beyond
    lines = table_of(version, entries, last)
    position = data.draw(st.integers(0, last))
    assert lines.line(position) == expected_line(entries, position)


@pytest.mark.parametrize("version", SUCCINCT)
def test_every_position_of_a_method_longer_than_two_blocks(version: str) -> None:
    # Entries of uneven length, over the 54 immediate positions and three blocks.
    entries = [(position, position // 2 + 7) for position in range(0, 1400, 3) if position % 11]
    entries.insert(0, (0, 5))
    lines = table_of(version, entries, 1420)
    assert [lines.line(position) for position in range(1420)] == [
        expected_line(entries, position) for position in range(1420)
    ]


def test_words_of_zeros_are_data_not_errors() -> None:
    # One statement spans position 60 to 2000: whole words, and a block's small ranks, are zero.
    entries = [(0, 1), (10, 2), (60, 3), (2000, 4)]
    lines = table_of("3.1.2", entries, 2100)
    assert [lines.line(position) for position in (9, 59, 60, 300, 900, 1999, 2000)] == [1, 2, 3, 3, 3, 3, 4]


def test_a_table_of_one_entry_is_read_not_taken_for_the_line() -> None:
    lines = table_of("3.1.2", [(0, 42)], 5)
    assert lines.line(0) == 42
    assert lines.line(4) == 42


def test_an_iseq_without_lines_has_line_0() -> None:
    layout = find_layout("3.1.2").layout
    assert LineTable(RubyMemory(layout), layout, 0, 0, 0).line(3) == 0


def test_a_position_before_every_entry_is_refused() -> None:
    lines = table_of("3.1.2", [(5, 1), (8, 2)], 20)
    with pytest.raises(BadLineTable, match="entry -1 of 2"):
        lines.line(2)


def test_an_absurd_number_of_entries_is_refused() -> None:
    layout = find_layout("3.1.2").layout
    with pytest.raises(BadLineTable, match="4294967295 entries"):
        LineTable(RubyMemory(layout), layout, 0, 0xFFFFFFFF, 0)


def test_an_unreadable_table_is_a_read_error_not_a_zero() -> None:
    layout = find_layout("3.1.2").layout
    with pytest.raises(MemoryReadError):
        LineTable(RubyMemory(layout), layout, 0x1000, 3, 0x2000).line(3)


def test_pc_points_behind_the_instruction_that_runs() -> None:
    assert position_of(0x1000, 0x1000, 10) == 0
    assert position_of(0x1008, 0x1000, 10) == 0
    assert position_of(0x1010, 0x1000, 10) == 1
    assert position_of(0x1050, 0x1000, 10) == 9


@pytest.mark.parametrize("pc", [0, 0xFF8, 0x1058, 0x1004, 1 << 63])
def test_a_pc_outside_of_the_iseq_is_refused(pc: int) -> None:
    with pytest.raises(BadLineTable, match="outside"):
        position_of(pc, 0x1000, 10)
