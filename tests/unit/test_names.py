# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from format_readers import one_line
from hypothesis import given
from hypothesis import strategies as st
from profile_strategies import names

from rubyunwind.formats.names import printable


@given(st.one_of(names, st.text(st.characters())))
def test_a_printable_name_is_one_line_of_utf_8_and_can_be_read_back(name: str) -> None:
    assert one_line(printable(name)) == name


def test_a_byte_that_was_no_utf_8_is_not_the_text_of_its_escape() -> None:
    assert printable("a\udcff") == r"a\xff"
    assert printable(r"a\xff") == r"a\\xff"
