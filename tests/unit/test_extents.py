# SPDX-License-Identifier: Apache-2.0
"""Room in an array is handed out once, and comes back whole."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.profiler.extents import Extents


def test_the_lowest_piece_that_fits_is_taken() -> None:
    room = Extents(10)
    assert [room.take(4), room.take(4)] == [0, 4]
    assert room.take(4) is None
    assert room.take(2) == 8
    room.give_back(0, 4)
    assert room.take(3) == 0
    assert room.free == 1


def test_pieces_that_are_given_back_join() -> None:
    room = Extents(9)
    assert [room.take(3) for _ in range(3)] == [0, 3, 6]
    for first in (0, 6, 3):
        room.give_back(first, 3)
    assert room.take(9) == 0


def test_no_room_at_all() -> None:
    assert Extents(0).take(1) is None


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=60))
def test_no_element_is_handed_out_twice_and_none_is_lost(steps: list[tuple[bool, int]]) -> None:
    size = 40
    room = Extents(size)
    taken: list[tuple[int, int]] = []
    for take, count in steps:
        if take:
            first = room.take(count)
            used = {element for start, length in taken for element in range(start, start + length)}
            if first is not None:
                assert not used & set(range(first, first + count))
                assert first + count <= size
                taken.append((first, count))
        elif taken:
            room.give_back(*taken.pop(count % len(taken)))
        assert room.free == size - sum(length for _, length in taken)
    for piece in taken:
        room.give_back(*piece)
    assert room.take(size) == 0
