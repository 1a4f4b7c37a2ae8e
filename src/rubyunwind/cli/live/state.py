# SPDX-License-Identifier: Apache-2.0
"""What the live table shows, and how keys change that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from rubyunwind.cli.live.counts import Thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rubyunwind.cli.live.counts import Method

__all__ = ["HELP", "SORTS", "VIEWS", "Action", "Sort", "State", "View", "press"]

View = Literal["methods", "threads", "processes"]
VIEWS: tuple[View, ...] = ("methods", "threads", "processes")
Sort = Literal["self", "total"]
SORTS: tuple[Sort, ...] = ("self", "total")
Action = Literal["quit", "reset", "pause", "redraw"]

HELP = (
    ("q, Ctrl-C", "leave"),
    ("space", "pause: the table stands still, counting goes on"),
    ("s, t", "order by self (at the leaf), by total (anywhere in the stack)"),
    ("a", "order by what is now, or by all since the start"),
    ("v", "the next view: methods, threads, processes"),
    ("Enter", "the methods of the thread or process that is selected"),
    ("arrows, j, k", "select a row; also Page Up, Page Down, Home and End"),
    ("n", "with or without native, kernel and JIT frames"),
    ("/", "only rows with the text that is typed; Enter keeps it"),
    ("Esc", "undo the filter, then the selection, then the thread or process"),
    ("r", "count anew"),
    ("Ctrl-L", "draw the screen anew"),
)
"""Keys and what they do."""

# The rows that a page key moves by, whatever the height.
_PAGE = 10
_MOST_TYPED = 200
_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -_PAGE, "pagedown": _PAGE}


@dataclass(frozen=True, slots=True)
class State:
    """What is shown. `scope` is the thread or process that the methods are of, `selected` a row's key.

    `since_start`: the order follows all that was counted, not what is now.
    """

    view: View = "methods"
    sort: Sort = "self"
    since_start: bool = False
    native: bool = False
    paused: bool = False
    filter: str = ""
    typing: bool = False
    help: bool = False
    scope: Thread | None = None
    selected: Method | Thread | None = None


def press(
    state: State, key: str, rows: Sequence[Method | Thread], page: int = _PAGE
) -> tuple[State, Action | None]:
    """Return the state after a key, and what else is to be done. `rows` are the keys of the table's rows.

    Keys are single characters or names: see keys.KeyDecoder. `page` is how many rows page keys move by.
    """
    if key == "interrupt":
        return state, "quit"
    if key == "redraw":
        return state, "redraw"
    if state.typing:
        return _typed(state, key), None
    if state.help:  # any key closes it
        return replace(state, help=False), "quit" if key == "q" else None
    if key == "q":
        return state, "quit"
    if key == "r":
        return replace(state, selected=None), "reset"
    if key == " ":
        return replace(state, paused=not state.paused), "pause"
    return _changed(state, key, rows, page), None


def _typed(state: State, key: str) -> State:
    """The filter while it is typed: the table follows each key."""
    text = state.filter
    if key == "enter":
        return replace(state, typing=False)
    if key == "escape":
        return replace(state, typing=False, filter="")
    if key == "backspace":
        # On an empty line it goes back, as in other programs.
        return replace(state, filter=text[:-1], typing=bool(text))
    if key == "erase":
        return replace(state, filter="")
    if len(key) == 1 and key.isprintable():
        return replace(state, filter=(text + key)[:_MOST_TYPED], selected=None)
    return state


def _changed(state: State, key: str, rows: Sequence[Method | Thread], page: int) -> State:
    if key in ("s", "t"):
        return replace(state, sort="self" if key == "s" else "total")
    if key == "a":
        return replace(state, since_start=not state.since_start)
    if key == "n":
        return replace(state, native=not state.native, selected=None)
    if key == "v":
        following = VIEWS[(VIEWS.index(state.view) + 1) % len(VIEWS)]
        return replace(state, view=following, selected=None)
    if key == "/":
        return replace(state, typing=True, filter="")
    if key in ("h", "?"):
        return replace(state, help=True)
    if key == "escape":
        return _undone(state)
    if key == "enter":
        return _entered(state, rows)
    return _moved(state, key, rows, page)


def _undone(state: State) -> State:
    if state.filter:
        return replace(state, filter="")
    if state.selected is not None:
        return replace(state, selected=None)
    return replace(state, scope=None)


def _entered(state: State, rows: Sequence[Method | Thread]) -> State:
    chosen = state.selected
    if not isinstance(chosen, Thread) or chosen not in rows:
        return state
    return replace(state, view="methods", scope=chosen, selected=None, filter="")


def _moved(state: State, key: str, rows: Sequence[Method | Thread], page: int) -> State:
    if not rows:
        return state
    last = len(rows) - 1
    if key in ("home", "g"):
        return replace(state, selected=rows[0])
    if key in ("end", "G"):
        return replace(state, selected=rows[last])
    if key not in _MOVES:
        return state
    step = _MOVES[key]
    if abs(step) == _PAGE:
        step = step // _PAGE * max(page, 1)
    # Without a selection "down" selects the first row.
    at = rows.index(state.selected) if state.selected in rows else -1 if step > 0 else 0
    return replace(state, selected=rows[min(max(at + step, 0), last)])
