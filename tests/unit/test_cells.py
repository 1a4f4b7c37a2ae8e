# SPDX-License-Identifier: Apache-2.0
"""Widths of text on a terminal. The oracle, where it is installed, is the wcwidth package."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.cli.live.cells import cells, fit, fit_end, padded
from rubyunwind.cli.text import printable

texts = st.text(st.characters().filter(str.isprintable), max_size=40)
widths = st.integers(-1, 50)


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("", 0),
        ("abc", 3),
        ("名前", 4),
        ("\uff57\uff49\uff44\uff45", 8),
        ("e\u0301", 1),
        ("한글", 4),
        ("🦀", 2),
        ("a🦀b", 4),
        ("❤\ufe0f", 2),
        ("שלום", 4),
    ],
)
def test_width_of_text(text: str, width: int) -> None:
    assert cells(text) == width


def test_no_printable_character_is_taken_for_narrower_than_it_is() -> None:
    wcwidth = pytest.importorskip("wcwidth")
    every = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isprintable()]
    assert len(every) > 100_000
    assert [c for c in every if cells(c) < wcwidth.wcwidth(c)] == []
    # And nearly all have their width exactly: what differs are spacing marks, jamo that join, and news.
    wrong = [c for c in every if cells(c) != wcwidth.wcwidth(c)]
    assert len(wrong) < 0.02 * len(every)


@given(texts)
def test_a_text_is_not_taken_for_narrower_than_it_is(text: str) -> None:
    wcwidth = pytest.importorskip("wcwidth")
    assert cells(text) >= wcwidth.wcswidth(text)


@given(texts, widths)
def test_cut_text_is_not_wider_than_asked_for(text: str, width: int) -> None:
    for cut in (fit, fit_end):
        assert cells(cut(text, width)) <= max(width, 0)
    assert cells(padded(text, width)) == max(width, 0)


@given(texts)
def test_what_fits_is_not_cut(text: str) -> None:
    for cut in (fit, fit_end):
        assert cells(cut(text, cells(text))) == cells(text)


@pytest.mark.parametrize(
    ("text", "width", "first", "last"),
    [
        ("app/models/user.rb:12", 10, "app/model…", "…ser.rb:12"),
        ("名前名前", 5, "名前…", "…名前"),
        ("名前名前", 4, "名…", "…前"),
        ("xe\u0301y\u0301z", 3, "xe\u0301…", "…y\u0301z"),
        ("abc", 1, "…", "…"),
        ("abc", 0, "", ""),
    ],
)
def test_where_text_is_cut(text: str, width: int, first: str, last: str) -> None:
    assert fit(text, width) == first
    assert fit_end(text, width) == last


def test_a_tower_of_marks_is_cut() -> None:
    assert fit("a" + "\u0301" * 500 + "b", 10) == "a" + "\u0301" * 4 + "b"


@given(st.text(st.characters(), max_size=20))
def test_nothing_printable_is_left_that_moves_a_cursor(text: str) -> None:
    assert printable(text).isprintable()
