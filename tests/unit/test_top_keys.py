# SPDX-License-Identifier: Apache-2.0
"""Bytes from a terminal become keys, and keys change what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.cli.live.counts import Method, Thread
from rubyunwind.cli.live.keys import KeyDecoder
from rubyunwind.cli.live.state import VIEWS, State, press

ROWS: list[Method | Thread] = [Method("ruby", f"m{n}", "/a.rb") for n in range(30)]
THREADS: list[Method | Thread] = [Thread(1, 1), Thread(1, 2)]
NAMES = {
    "up", "down", "pageup", "pagedown", "home", "end", "enter", "backspace", "escape", "erase", "redraw",
    "interrupt",
}  # fmt: skip


def keys_of(*parts: bytes) -> list[str]:
    decoder = KeyDecoder()
    return [key for part in parts for key in decoder.feed(part)] + decoder.flush()


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qs", ["q", "s"]),
        (b"\r", ["enter"]),
        (b"\n\x7f\x08\x15\x0c\x03", ["enter", "backspace", "backspace", "erase", "redraw", "interrupt"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\x1b", ["escape", "escape"]),
        (b"\x1b[A\x1b[B\x1bOA\x1bOB", ["up", "down", "up", "down"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", ["pageup", "pagedown", "home", "end", "home", "end"]),
        (b"\x1b[1;5A", ["up"]),
        (b"\x1b[2~\x1b[15~\x1b[<0;1;1M", []),
        (b"\x1bx", []),
        ("é名".encode(), ["é", "名"]),
        (b"\xff", ["\ufffd"]),
        (b"\x1b[Aq", ["up", "q"]),
        (b"\x00\x01\x02", []),
        (b"\x1b[200~hello\x1b[201~", list("hello")),
        (b"\x1b[" + b"1;" * 100 + b"A", []),
    ],
)
def test_keys_of_bytes(data: bytes, keys: list[str]) -> None:
    assert keys_of(data) == keys


def test_parts_of_a_sequence_wait_for_the_rest() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.waiting
    assert decoder.feed(b"[") == []
    assert decoder.feed(b"B") == ["down"]
    assert not decoder.waiting
    assert decoder.feed(b"\xe5\x90") == []
    assert decoder.feed(b"\x8d") == ["名"]
    assert decoder.feed(b"\x1b") == []
    assert decoder.flush() == ["escape"]
    assert not decoder.waiting


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_any_bytes_give_keys_and_never_a_control_character(parts: list[bytes]) -> None:
    for key in keys_of(*parts):
        assert key in NAMES or (len(key) == 1 and key.isprintable())


@given(st.binary(max_size=24), st.integers(0, 24))
def test_where_bytes_are_divided_does_not_matter(data: bytes, at: int) -> None:
    # Beyond the longest sequence it does: what was given up on is given up on.
    assert keys_of(data[:at], data[at:]) == keys_of(data)


def after(*keys: str, state: State | None = None, rows: list[Method | Thread] = ROWS) -> State:
    state = state or State()
    for key in keys:
        state, _ = press(state, key, rows)
    return state


@pytest.mark.parametrize(
    ("key", "action"),
    [("q", "quit"), ("interrupt", "quit"), ("r", "reset"), (" ", "pause"), ("redraw", "redraw"), ("s", None)],
)
def test_what_is_to_be_done_after_a_key(key: str, action: str | None) -> None:
    assert press(State(), key, ROWS)[1] == action


def test_keys_switch_what_is_shown_and_back() -> None:
    assert after("t").sort == "total"
    assert after("t", "s").sort == "self"
    assert after("a").since_start
    assert not after("a", "a").since_start
    assert after("n").native != State().native
    assert after("n", "n") == State()
    assert after(" ").paused
    assert not after(" ", " ").paused
    assert [after(*"v" * n).view for n in range(4)] == [*VIEWS, VIEWS[0]]
    assert after("?").help
    assert not after("?", "x").help
    assert press(after("?"), "q", ROWS)[1] == "quit"


def test_a_filter_is_typed_kept_and_cleared() -> None:
    typed = after("/", *"q s")
    assert (typed.filter, typed.typing) == ("q s", True)  # keys are letters then
    assert after("enter", state=typed) == State(filter="q s")
    assert after("escape", state=typed) == State()
    assert after("backspace", state=typed).filter == "q "
    assert after("erase", state=typed).filter == ""
    assert not after(*["backspace"] * 4, state=typed).typing
    assert after("up", state=typed) == typed
    assert after("enter", "escape", state=typed) == State()
    assert press(typed, "interrupt", ROWS)[1] == "quit"


def test_a_selection_moves_and_stays_within_the_rows() -> None:
    def at(*keys: str) -> int:
        return ROWS.index(after(*keys).selected)  # type: ignore[arg-type]

    assert at("down") == 0
    assert at("down", "down") == at("j", "j") == 1
    assert at("down", "down", "up") == at("k") == 0
    assert at("end") == at("G") == 29
    assert at("end", "home") == 0
    assert at("end", "down") == at(*["pagedown"] * 9) == 29
    assert at("pagedown") == 9
    assert at("end", "pageup") == 19
    assert press(State(), "pagedown", ROWS, 4)[0].selected == ROWS[3]
    assert after("down", rows=[]).selected is None


def test_enter_shows_one_thread_and_escape_undoes_step_by_step() -> None:
    inside = after("v", "down", "down", "enter", rows=THREADS)
    assert (inside.view, inside.scope, inside.selected) == ("methods", Thread(1, 2), None)
    assert after("enter", state=State(selected=ROWS[0])) == State(selected=ROWS[0])
    deep = after("/", "x", "enter", "down", state=inside)
    assert deep.filter
    assert deep.selected
    for _ in range(3):
        deep = after("escape", state=deep)
    assert deep == State()


def test_a_row_that_is_gone_cannot_be_entered() -> None:
    gone = State(view="threads", selected=Thread(9, 9))
    assert after("enter", state=gone, rows=THREADS) == gone


@given(st.lists(st.sampled_from([*sorted(NAMES), *"qrsntavhjkgG/? x"]), max_size=20))
def test_any_keys_leave_a_state_that_makes_sense(keys: list[str]) -> None:
    state = after(*keys, rows=THREADS)
    assert state.view in VIEWS
    assert state.selected is None or state.selected in THREADS
