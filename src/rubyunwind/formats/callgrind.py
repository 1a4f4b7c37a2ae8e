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

    def __init__(self, units: tuple[str, ...]) -> None:
        self._units = {unit: at for at, unit in enumerate(units)}
        self.functions: dict[int, _Function] = {}
        self.total = [0] * len(units)

    def add(self, path: list[tuple[int, int]], unit: str, weight: int) -> None:
        """Add a stack of functions and lines, root first."""
        at = self._units[unit]
        self.total[at] += weight
        met: set[tuple[int, int]] = set()
        for (caller, line), (callee, _) in pairwise(path):
            if (caller, callee) not in met:
                met.add((caller, callee))
                self._cost(self._function(caller).calls, (line, callee))[at] += weight
        leaf, line = path[-1]
        self._cost(self._function(leaf).own, line)[at] += weight

    def _function(self, index: int) -> _Function:
        function = self.functions.get(index)
        if function is None:
            function = self.functions[index] = _Function()
        return function

    def _cost(self, costs: dict[_Key, _Cost], key: _Key) -> _Cost:
        cost = costs.get(key)
        if cost is None:
            cost = costs[key] = [0] * len(self._units)
        return cost


class _Names:
    """Names that are written in full when they are first met, and as a number from then on."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], int] = {}

    def __call__(self, kind: str, name: str) -> str:
        known = self._ids.get((kind, name))
        if known is not None:
            return f"({known})"
        number = self._ids[kind, name] = len(self._ids) + 1
        text = printable(name) or _UNKNOWN
        # Readers drop blanks before a name.
        return f"({number}) {text if text[0] != ' ' else _BLANK + text[1:]}"

    def position(self, place: Place, prefix: str = "") -> Iterator[str]:
        """The lines that say which function is meant; `prefix` is "c" for one that is called."""
        yield f"{prefix}ob={self('ob', origin_of(place))}"
        # Written `fl` for the function itself, `cfi` for one it calls.
        yield f"{'cfi' if prefix else 'fl'}={self('fl', place.path or _UNKNOWN)}"
        yield f"{prefix}fn={self('fn', place.name)}"


def _gather(tables: Tables) -> tuple[list[Place], _Costs]:
    """Return the costs, and the functions that they are of."""
    places = list(tables.functions)
    costs = _Costs(tables.units)
    several = len({thread.pid for thread in tables.threads}) > 1
    roots: dict[int, int] = {}
    locations = [(location.function, location.line) for location in tables.locations]
    paths = [[locations[at] for at in stack] for stack in tables.stacks]
    for thread in tables.threads:
        root = []
        if several:
            if thread.pid not in roots:
                roots[thread.pid] = len(places)
                places.append(Place("process", f"{thread.process} ({thread.pid})"))
            root = [(roots[thread.pid], 0)]
        for stack, weight in thread.sums().items():
            costs.add(root + paths[stack], thread.unit, weight)
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
    for index, function in costs.functions.items():
        yield ""
        yield from names.position(places[index])
        for line, cost in function.own.items():
            yield f"{line} {' '.join(map(str, cost))}"
        for (line, callee), cost in function.calls.items():
            yield from names.position(places[callee], "c")
            yield "calls=1 0"
            yield f"{line} {' '.join(map(str, cost))}"
    yield ""
    yield f"totals: {total}"


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the costs. A profile without samples is a header that says so, with a total of 0."""
    for line in _lines(tables_of(samples), totals, meta):
        file.write(f"{line}\n".encode())
