# SPDX-License-Identifier: Apache-2.0
"""Callgrind: what each line of each function cost by itself and below it.

For callgrind_annotate and KCachegrind.

A cost line has one number for each unit of the samples. Functions with a source file have it as `fl=`;
native ones have their module as `ob=`, others there have their kind, as in `[ruby]`. A sampler does not know
how often a function was called: every `calls=` is 1 (readers take a cost without a call for the caller's
own). The cost of a call in a recursion counts once for each stack.

The format knows no thread and, since its readers take the first part of a file only, no process: with several
of them, `comm (pid)` is a function at the root, as in folded. Names are escaped as names.py says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from rubyunwind.formats.names import printable
from rubyunwind.formats.summary import circumstances, losses
from rubyunwind.formats.tables import Tables, origin_of, tables_of
from rubyunwind.formats.tree import Place

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["write"]

# The format's word for a name that is not known.
_UNKNOWN = "???"
_BLANK = "\\x20"
# Events are separated by spaces.
_NO_EVENT_NAME = re.compile(r"[^A-Za-z0-9_]")

_Cost = list[int]
_Key = TypeVar("_Key")


class _Function:
    """Costs by line: the function's own, and of what it calls there."""

    def __init__(self) -> None:
        self.own: dict[int, _Cost] = {}
        self.calls: dict[tuple[int, int], _Cost] = {}


class _Costs:
    """Costs of all functions, which are indices; a cost has one number for each unit."""

    def __init__(self, units: tuple[str, ...], locations: list[tuple[int, int]]) -> None:
        self._units = {unit: at for at, unit in enumerate(units)}
        self._locations = locations  # function and line
        # Weights by unit, of the location at the top of a stack, and of a location that calls a function.
        self._own: list[Counter[int]] = [Counter() for _ in units]
        self._calls: list[Counter[tuple[int, int]]] = [Counter() for _ in units]
        self.total = [0] * len(units)

    def add(self, path: tuple[int, ...], unit: str, weight: int) -> None:
        """Add a stack of locations, root first."""
        at = self._units[unit]
        self.total[at] += weight
        self._own[at][path[-1]] += weight
        functions = [self._locations[location][0] for location in path]
        calls: Iterable[tuple[int, int]] = zip(path, functions[1:])  # noqa: B905 - one is longer
        if len(set(functions)) < len(functions):
            # The first of the calls from one function to another: later ones are inside it.
            first: dict[tuple[int, int], tuple[int, int]] = {}
            for pair, call in zip(pairwise(functions), calls, strict=True):
                first.setdefault(pair, call)
            calls = first.values()
        sums = self._calls[at]
        for call in calls:
            sums[call] += weight

    def functions(self) -> dict[int, _Function]:
        """Return the costs by function, the calling ones before what they call."""
        found: dict[int, _Function] = {}
        for at, calls in enumerate(self._calls):
            for (location, callee), weight in calls.items():
                caller, line = self._locations[location]
                self._cost(found.setdefault(caller, _Function()).calls, (line, callee))[at] += weight
        for at, own in enumerate(self._own):
            for location, weight in own.items():
                function, line = self._locations[location]
                self._cost(found.setdefault(function, _Function()).own, line)[at] += weight
        return found

    def _cost(self, costs: dict[_Key, _Cost], key: _Key) -> _Cost:
        cost = costs.get(key)
        if cost is None:
            cost = costs[key] = [0] * len(self._units)
        return cost


class _Names:
    """Names that are written in full when they are first met, and as a number from then on."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}
        self._positions: dict[tuple[Place, str], str] = {}  # of places that have been written in full

    def __call__(self, kind: str, name: str) -> str:
        known = self._ids.get((kind, name))
        if known is not None:
            return f"({known})"
        number = self._ids[kind, name] = len(self._ids) + 1
        text = printable(name) or _UNKNOWN
        # Readers drop blanks before a name.
        return f"({number}) {text if text[0] != ' ' else _BLANK + text[1:]}"

    def position(self, place: Place, prefix: str = "") -> str:
        """The lines that say which function is meant; `prefix` is "c" for one that is called."""
        known = self._positions.get((place, prefix))
        if known is not None:
            return known
        # Written `fl` for the function itself, `cfi` for one it calls.
        names = (
            (f"{prefix}ob", "ob", origin_of(place)),
            ("cfi" if prefix else "fl", "fl", place.path or _UNKNOWN),
            (f"{prefix}fn", "fn", place.name),
        )
        text = "\n".join(f"{word}={self(kind, name)}" for word, kind, name in names)
        self._positions[place, prefix] = "\n".join(f"{word}={self(kind, name)}" for word, kind, name in names)
        return text


def _gather(tables: Tables) -> tuple[list[Place], _Costs]:
    """Return the costs, and the functions that they are of."""
    places = list(tables.functions)
    locations = [(location.function, location.line) for location in tables.locations]
    costs = _Costs(tables.units, locations)
    several = len({thread.pid for thread in tables.threads}) > 1
    roots: dict[int, int] = {}
    # The threads of a process are one here, so each of its stacks is added once for all of them.
    sums: dict[tuple[tuple[int, ...], str], Counter[int]] = {}
    for thread in tables.threads:
        root: tuple[int, ...] = ()
        if several:
            if thread.pid not in roots:
                roots[thread.pid] = len(locations)
                locations.append((len(places), 0))
                places.append(Place("process", f"{thread.process} ({thread.pid})"))
            root = (roots[thread.pid],)
        sums.setdefault((root, thread.unit), Counter()).update(thread.sums())
    for (root, unit), weights in sums.items():
        for stack, weight in weights.items():
            costs.add(root + tables.stacks[stack], unit, weight)
    return places, costs


def _lines(tables: Tables, totals: Totals, meta: Meta) -> Iterator[str]:
    yield from ("# callgrind format", "version: 1", "creator: rubyunwind")
    pids = {thread.pid for thread in tables.threads}
    if len(pids) == 1:
        yield f"pid: {pids.pop()}"
    if meta.command:
        yield f"cmd: {printable(meta.command)}"
    for text in circumstances(meta) + losses(totals, empty=not tables.threads):
        yield f"desc: {printable(text)}"
    yield "positions: line"
    events = [_NO_EVENT_NAME.sub("_", unit) or "_" for unit in tables.units or ("samples",)]
    yield f"events: {' '.join(events)}"
    places, costs = _gather(tables)
    total = " ".join(map(str, costs.total or [0]))
    yield f"summary: {total}"
    names = _Names()
    for index, function in costs.functions().items():
        yield ""
        yield names.position(places[index])
        for line, cost in function.own.items():
            yield f"{line} {' '.join(map(str, cost))}"
        for (line, callee), cost in function.calls.items():
            yield f"{names.position(places[callee], 'c')}\ncalls=1 0\n{line} {' '.join(map(str, cost))}"
    yield ""
    yield f"totals: {total}"


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the costs. A profile without samples is a header that says so, with a total of 0."""
    file.writelines(f"{line}\n".encode() for line in _lines(tables_of(samples), totals, meta))
