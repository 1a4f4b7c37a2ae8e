# SPDX-License-Identifier: Apache-2.0
"""The rows that are shown: counts of methods, threads or processes, in order and filtered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.cli.live.counts import EARLIER, Tally, Thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.cli.live.counts import Counts, Method, Place
    from rubyunwind.cli.live.state import State

__all__ = ["Row", "Table", "Weights", "make_table"]


class Weights(NamedTuple):
    """Of a method: what it had at the leaf, and anywhere. Of a thread or process both are all that it had."""

    own: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `kind` is a frame's kind, or "thread", "process"; `name` and `place` are not escaped.

    `place` is the line of a method that was met most often lately, the module of native code, or the
    hottest method of a thread.
    """

    key: Method | Thread
    kind: str
    name: str
    place: str
    now: Weights
    start: Weights


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, hottest first. `weight_now` and `weight_start` are what all rows together stand for.

    `hidden` rows do not match the filter. Without a filter the sum of `own` is the weight. `seconds_now` and
    `seconds_start` say how long was counted.
    """

    rows: tuple[Row, ...] = ()
    weight_now: int = 0
    weight_start: int = 0
    seconds_now: float = 0.0
    seconds_start: float = 0.0
    hidden: int = 0


def make_table(counts: Counts, state: State) -> Table:
    """Return the table that a state asks for."""
    now = _in_scope(counts.now(state.native), state.scope)
    start = _in_scope(counts.start(state.native), state.scope)
    rows = _method_rows(now, start) if state.view == "methods" else _thread_rows(counts, now, start, state)
    wanted = state.filter.casefold()
    shown = [row for row in rows if wanted in f"{row.name} {row.place}".casefold()]
    shown.sort(key=lambda row: _rank(row, state))
    seconds_now, seconds_start = counts.seconds
    return Table(
        rows=tuple(shown),
        weight_now=sum(tally.weight for tally in now.values()),
        weight_start=sum(tally.weight for tally in start.values()),
        seconds_now=seconds_now,
        seconds_start=seconds_start,
        hidden=len(rows) - len(shown),
    )


def _in_scope(tallies: Mapping[Thread, Tally], scope: Thread | None) -> Mapping[Thread, Tally]:
    if scope is None or not tallies:
        return tallies
    return {
        thread: tally
        for thread, tally in tallies.items()
        if thread == scope or (not scope.tid and thread.pid == scope.pid)
    }


def _rank(row: Row, state: State) -> tuple[object, ...]:
    """What orders rows; equal ones by name, so that they do not change places."""
    first, second = (row.start, row.now) if state.since_start else (row.now, row.start)
    if state.sort == "total":
        numbers = (first.total, first.own, second.total, second.own)
    else:
        numbers = (first.own, first.total, second.own, second.total)
    return (*(-number for number in numbers), row.name, row.place)


def _sum(tallies: Mapping[Thread, Tally]) -> Tally:
    """Add tallies up. A single one is returned as it is."""
    if len(tallies) == 1:
        return next(iter(tallies.values()))
    found = Tally()
    for tally in tallies.values():
        found.add(tally)
    return found


def _method_rows(now: Mapping[Thread, Tally], start: Mapping[Thread, Tally]) -> list[Row]:
    lately, all_of_it = _sum(now), _sum(start)
    rows = []
    for method, total in all_of_it.total.items():
        places = lately.places.get(method) or all_of_it.places[method]
        rows.append(
            Row(
                key=method,
                kind=method.kind,
                name=method.name,
                place=_place(max(places, key=lambda place: (places[place], str(place)))),
                now=Weights(lately.own.get(method, 0), lately.total.get(method, 0)),
                start=Weights(all_of_it.own.get(method, 0), total),
            )
        )
    return rows


def _place(place: Place) -> str:
    path, line = place
    if path is None:
        return ""
    return path if line is None else f"{path}:{line}"


def _thread_rows(
    counts: Counts, now: Mapping[Thread, Tally], start: Mapping[Thread, Tally], state: State
) -> list[Row]:
    if state.view == "processes":
        now, start = _by_process(now), _by_process(start)
    several = len({thread.pid for thread in start}) > 1
    rows = []
    for thread, all_of_it in start.items():
        lately = now.get(thread) or Tally()
        hottest = lately.hottest or all_of_it.hottest
        rows.append(
            Row(
                key=thread,
                kind="thread" if thread.tid else "process",
                name=_thread_name(counts, thread, several),
                place=hottest.name if hottest is not None else "",
                now=Weights(lately.weight, lately.weight),
                start=Weights(all_of_it.weight, all_of_it.weight),
            )
        )
    return rows


def _by_process(tallies: Mapping[Thread, Tally]) -> dict[Thread, Tally]:
    found: dict[Thread, Tally] = {}
    for thread, tally in tallies.items():
        found.setdefault(Thread(thread.pid), Tally()).add(tally)
    return found


def _thread_name(counts: Counts, thread: Thread, several: bool) -> str:
    if thread == EARLIER:
        return "[earlier threads]"
    if not thread.tid:
        # Threads may have names of their own; the process has that of its main thread, if it was met.
        comm = counts.comms.get(Thread(thread.pid, thread.pid)) or next(
            (comm for other, comm in counts.comms.items() if other.pid == thread.pid), ""
        )
        return f"{thread.pid} {comm}"
    return f"{f'{thread.pid}/' if several else ''}{thread.tid} {counts.comms.get(thread, '')}"
