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
    if state.view == "methods":
        now, start = _of_scope(counts, state)
        rows = _method_rows(counts, now, start)
    else:
        now, start = counts.whole(state.native)
        rows = _thread_rows(counts, state)
    wanted = state.filter.casefold()
    shown = [row for row in rows if wanted in f"{row.name} {row.place}".casefold()]
    shown.sort(key=lambda row: _rank(row, state))
    seconds_now, seconds_start = counts.seconds
    return Table(
        rows=tuple(shown),
        weight_now=now.weight,
        weight_start=start.weight,
        seconds_now=seconds_now,
        seconds_start=seconds_start,
        hidden=len(rows) - len(shown),
    )


def _of_scope(counts: Counts, state: State) -> tuple[Tally, Tally]:
    scope = state.scope
    if scope is None:
        return counts.whole(state.native)
    now, start = Tally(), Tally()
    for found, threads in ((now, counts.now(state.native)), (start, counts.start(state.native))):
        for thread, tally in threads.items():
            if thread == scope or (not scope.tid and thread.pid == scope.pid):
                found.add(tally)
    return now, start


def _rank(row: Row, state: State) -> tuple[object, ...]:
    """What orders rows; equal ones by name, so that they do not change places."""
    first, second = (row.start, row.now) if state.since_start else (row.now, row.start)
    if state.sort == "total":
        numbers = (first.total, first.own, second.total, second.own)
    else:
        numbers = (first.own, first.total, second.own, second.total)
    return (*(-number for number in numbers), row.name, row.place)


class _Sums:
    """A tally by method. `place` is where each was met most often."""

    def __init__(self, counts: Counts, tally: Tally) -> None:
        self.own: dict[Method, int] = {}
        self.total: dict[Method, int] = {}
        self.place: dict[Method, Place] = {}
        spots = counts.spots
        most: dict[Method, int] = {}
        for spot, weight in tally.own.items():
            method = spots[spot][0]
            self.own[method] = self.own.get(method, 0) + weight
        # The order of their numbers decides between equals, so that places do not change back and forth.
        for spot, weight in sorted(tally.total.items()):
            method, place = spots[spot]
            self.total[method] = self.total.get(method, 0) + weight
            if weight > most.get(method, 0):
                most[method], self.place[method] = weight, place


def _method_rows(counts: Counts, now: Tally, start: Tally) -> list[Row]:
    lately, all_of_it = _Sums(counts, now), _Sums(counts, start)
    return [
        Row(
            key=method,
            kind=method.kind,
            name=method.name,
            place=_place(lately.place.get(method) or all_of_it.place[method]),
            now=Weights(lately.own.get(method, 0), lately.total.get(method, 0)),
            start=Weights(all_of_it.own.get(method, 0), total),
        )
        for method, total in all_of_it.total.items()
    ]


def _hottest(counts: Counts, tally: Tally) -> str:
    """The name of the method that was at the leaf most often."""
    own = _Sums(counts, tally).own
    return max(own, key=lambda method: (own[method], method.name)).name if own else ""


def _place(place: Place) -> str:
    path, line = place
    if path is None:
        return ""
    return path if line is None else f"{path}:{line}"


def _thread_rows(counts: Counts, state: State) -> list[Row]:
    now, start = counts.now(state.native), counts.start(state.native)
    if state.view == "processes":
        now, start = _by_process(now), _by_process(start)
    several = len({thread.pid for thread in start}) > 1
    rows = []
    for thread, all_of_it in start.items():
        lately = now.get(thread) or Tally()
        rows.append(
            Row(
                key=thread,
                kind="thread" if thread.tid else "process",
                name=_thread_name(counts, thread, several),
                place=_hottest(counts, lately if lately.weight else all_of_it),
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
