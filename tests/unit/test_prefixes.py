# SPDX-License-Identifier: Apache-2.0
"""Prefixes that cover address ranges, and the keys made of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.bpf.prefixes import cover, pid_page_key, pid_page_keys


@given(
    start=st.integers(0, 2**64 - 1),
    size=st.integers(0, 2**40),
)
def test_prefixes_cover_the_range_exactly_and_in_order(start: int, size: int) -> None:
    end = min(start + size, 2**64)
    at = start
    blocks = list(cover(start, end))
    for length, first in blocks:
        assert first == at
        at += 1 << (64 - length)
        assert first % (1 << (64 - length)) == 0, "a prefix must not have bits behind its length"
    assert at == end
    assert len(blocks) <= 128


def test_the_whole_space_is_one_empty_prefix() -> None:
    assert list(cover(0, 2**64)) == [(0, 0)]
    with pytest.raises(ValueError, match="no range"):
        list(cover(5, 4))


def test_a_pid_page_key_is_big_endian_behind_the_length() -> None:
    assert pid_page_key(0x01020304).hex() == "60000000" + "01020304" + "00" * 8
    assert pid_page_key(1, 0x7F0000000000, 40).hex() == "48000000" + "00000001" + "00007f0000000000"


def test_a_mapping_of_three_pages_takes_two_keys() -> None:
    assert pid_page_keys(7, 0x1000, 0x4000) == [pid_page_key(7, 0x1000, 52), pid_page_key(7, 0x2000, 51)]


@given(pid=st.integers(0, 2**32 - 1), start=st.integers(0, 2**64 - 1), size=st.integers(0, 2**40))
def test_the_keys_of_a_mapping_are_those_that_cover_it(pid: int, start: int, size: int) -> None:
    end = min(start + size, 2**64)
    keys = [pid_page_key(pid, address, length) for length, address in cover(start, end)]
    assert pid_page_keys(pid, start, end) == keys
    with pytest.raises(ValueError, match="no range"):
        pid_page_keys(pid, end + 1, start)
