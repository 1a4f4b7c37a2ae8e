# SPDX-License-Identifier: Apache-2.0
"""Draws a table as lines of text. Pure: every line fits the width, and none has a control character."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.cli.live.cells import cells, fit, fit_end, padded
from rubyunwind.cli.live.state import HELP
from rubyunwind.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rubyunwind.cli.live.state import State
    from rubyunwind.cli.live.status import Status
    from rubyunwind.cli.live.table import Row, Table

__all__ = ["Line", "Size", "head_lines", "page_rows", "render", "table_lines"]


class Size(NamedTuple):
    """Of a screen, in cells."""

    columns: int
    lines: int


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen. `style` is a word for how it looks: title, head, dim, warn, selected, a kind."""

    text: str
    style: str = "plain"


# A letter for each kind of frame, since colours may be switched off.
_LETTERS = {
    "ruby": "R", "cfunc": "C", "native": "N", "kernel": "K", "gc": "G", "jit": "J", "unknown": "?",
    "error": "!", "thread": " ", "process": " ", "none": "-",
}  # fmt: skip
_LEGEND = (
    "R Ruby  C C function  N native  K kernel  G garbage collection",
    "J compiled by a JIT  ? unknown  ! error  - nothing else was in the stack",
)

# Columns of numbers, those of now and those of all, and what has to be left for a name.
_NOW, _ALL, _SAMPLES = 12, 13, 8
# Two spaces, the letter, a space.
_KIND = 4
_LEAST_NAME = 16
# Of what is left for name and place, the name has so much.
_NAME_SHARE = 0.6
_TOO_NARROW_FOR_PLACES = 32

_KEYS = "q quit  space pause  s/t sort  v view  n native  / filter  r reset  ? help"


def render(table: Table, state: State, status: Status, size: Size) -> list[Line]:
    """Return the lines of a whole screen, `size.lines` of them."""
    width, height = max(size.columns, 1), max(size.lines, 1)
    top = head_lines(table, state, status)
    if status.notes:
        more = f" (and {len(status.notes) - 1} more)" if len(status.notes) > 1 else ""
        top.append(Line(f"note: {status.notes[0]}{more}", "warn"))
    room = page_rows(status, size)
    if state.help:
        shown = [Line(f"  {keys:13} {meaning}") for keys, meaning in HELP]
        legend = [Line(f"  {part}") for part in _LEGEND]
        body = [Line("keys", "head"), *shown, Line("kinds of frames", "head"), *legend][: room + 2]
    else:
        body = _body(table, state, status, width, room)
    foot = Line(_foot(state), "foot")
    lines = [*top, *body][: height - 1]
    lines += [Line("")] * (height - 1 - len(lines))
    return [_fitted(line, width) for line in [*lines, foot][-height:]]


def _fitted(line: Line, width: int) -> Line:
    # These have a background, which goes on to the edge.
    cut = padded if line.style in ("head", "selected") else fit
    return Line(cut(printable(line.text), width), line.style)


def head_lines(table: Table, state: State, status: Status) -> list[Line]:
    """Return two lines: what is sampled and how; what was read and what was lost."""
    return [Line(_title(state, status), "title"), Line(_totals(table, status))]


def page_rows(status: Status, size: Size) -> int:
    """Return how many rows of the table have room on a screen."""
    return max(size.lines - 3 - bool(status.notes) - 2, 0)


def _body(table: Table, state: State, status: Status, width: int, room: int) -> list[Line]:
    keys = [row.key for row in table.rows]
    at = keys.index(state.selected) if state.selected in keys else 0
    first = at // room * room if room else 0
    lines = table_lines(table, state, status, width, first, room)
    if not table.rows:
        said = "no row matches the filter" if table.hidden else "no samples yet: no CPU time was used"
        lines.append(Line(f"  {said}", "dim"))
    return lines


def table_lines(
    table: Table, state: State, status: Status, width: int | None, first: int, count: int
) -> list[Line]:
    """Return two lines of heads and `count` rows from `first` on; without a `width` nothing is cut."""
    rows = table.rows[first : first + count]
    columns = _Columns.of(rows, width)
    lines = [Line(columns.groups(_what(table, state), table), "dim"), Line(columns.heads(state), "head")]
    for row in rows:
        style = "selected" if row.key == state.selected and row.key is not None else row.kind
        lines.append(Line(columns.row(row, table, status.rate), style))
    return lines


@dataclass(frozen=True, slots=True)
class _Columns:
    """Which columns there are. `name` and `place` are widths; `place` 0 is no column, None an endless one."""

    now: bool
    start: bool
    name: int
    place: int | None

    @classmethod
    def of(cls, rows: Sequence[Row], width: int | None) -> _Columns:
        if width is None:
            longest = max((cells(printable(row.name)) for row in rows), default=0)
            return cls(True, True, max(longest, len("method")), None)
        left = width - _NOW - _ALL - _SAMPLES - _KIND
        start = left >= _LEAST_NAME
        if not start:
            left = width - _NOW - _KIND
        now = left >= _LEAST_NAME
        if not now:
            left = width - _KIND
        if left < _TOO_NARROW_FOR_PLACES:
            return cls(now, start, max(left, 0), 0)
        name = int(left * _NAME_SHARE)
        return cls(now, start, name, left - name - 2)

    def groups(self, what: str, table: Table) -> str:
        now = f"  now {table.seconds_now:.0f} s, %".ljust(_NOW) if self.now else ""
        start = f"   all {_clock(table.seconds_start)}, %".ljust(_ALL + _SAMPLES) if self.start else ""
        return f"{now}{start}    {what}"

    def heads(self, state: State) -> str:
        names = ("self", "total") if state.view == "methods" else ("cpu", "share")
        what = {"methods": "method", "threads": "thread", "processes": "process"}[state.view]
        where = "where" if state.view == "methods" else "hottest method"
        now = f"{names[0]:>6}{names[1]:>6}" if self.now else ""
        start = f"{names[0]:>7}{names[1]:>6}{'samples':>8}" if self.start else ""
        place = f"  {where}" if self.place != 0 else ""
        return f"{now}{start}    {padded(what, self.name)}{place}"

    def row(self, row: Row, table: Table, rate: int) -> str:
        threads = row.kind in ("thread", "process")
        now = start = ""
        if self.now:
            first = table.seconds_now * rate if threads else table.weight_now
            now = f"{_percent(row.now.own, first):>6}{_percent(row.now.total, table.weight_now):>6}"
        if self.start:
            first = table.seconds_start * rate if threads else table.weight_start
            start = (
                f"{_percent(row.start.own, first):>7}{_percent(row.start.total, table.weight_start):>6}"
                f"{row.start.total:>8}"
            )
        # Of A::Long::Module#method the end says more, of other names the beginning.
        name = padded(printable(row.name), self.name, keep_end=row.kind in ("ruby", "cfunc"))
        place = printable(row.place)
        if self.place is not None:
            cut = fit if threads else fit_end
            place = cut(place, self.place)
        return f"{now}{start}  {_LETTERS.get(row.kind, '?')} {name}  {place}".rstrip()


def _percent(part: int, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole > 0 else "0.0"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _title(state: State, status: Status) -> str:
    runtimes = f" ({', '.join(status.runtimes)})" if status.runtimes else ""
    paused = "PAUSED  " if state.paused else ""
    return f"{paused}rubyunwind top: {status.target}{runtimes}, {status.rate} Hz, {status.backend}"


def _totals(table: Table, status: Status) -> str:
    a_second = table.weight_now / table.seconds_now if table.seconds_now > 0 else 0.0
    return f"{status.totals.read} samples in {_clock(status.seconds)}, now {a_second:.1f}/s; {status.losses}"


def _what(table: Table, state: State) -> str:
    """What the rows are, in words."""
    parts: list[str] = [state.view]
    if state.scope is not None:
        part = f"thread {state.scope.tid}" if state.scope.tid else f"process {state.scope.pid}"
        parts[0] += f" of {part}"
    order = state.sort if state.view == "methods" else "cpu"
    parts.append(f"by {order} {'of all' if state.since_start else 'now'}")
    if state.native:
        parts.append("with native")
    if state.filter:
        parts.append(f"{len(table.rows)} of {len(table.rows) + table.hidden} match {state.filter!r}")
    return ", ".join(parts)


def _foot(state: State) -> str:
    if state.typing:
        return f"/{state.filter}_   Enter keeps it, Esc clears it"
    return "any key closes this, q quits" if state.help else _KEYS
