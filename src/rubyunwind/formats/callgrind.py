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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

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

# Words for a function itself, and for one that it calls: its object, file and name.
_OWN = ("ob", "fl", "fn")
_CALLED = ("cob", "cfi", "cfn")

_Key = TypeVar("_Key")


class _Spot(NamedTuple):
    """A line of a function, which is an index; addresses are not told apart."""

    function: int
    line: int


class _Costs:
    """Weights by unit: of the spot at the top of a stack, and of a spot with the function that it calls."""

    def __init__(self, units: tuple[str, ...], locations: Iterable[_Spot]) -> None:
        self._units = {unit: at for at, unit in enumerate(units)}
        self.spots: dict[_Spot, int] = {}
        self._spot_of: list[int] = []
        self._function_of: list[int] = []
        for location in locations:
            self.add_location(location)
        self._own: list[dict[int, int]] = [{} for _ in units]
        self._calls: list[dict[tuple[int, int], int]] = [{} for _ in units]
        self.total = [0] * len(units)

    def add_location(self, location: _Spot) -> int:
        """Return the number that the location has in paths."""
        self._spot_of.append(self.spots.setdefault(location, len(self.spots)))
        self._function_of.append(location.function)
        return len(self._spot_of) - 1

    def add(self, path: tuple[int, ...], unit: str, weight: int) -> None:
        """Add a stack of locations, root first."""
        at = self._units[unit]
        self.total[at] += weight
        spots = tuple(map(self._spot_of.__getitem__, path))
        functions = tuple(map(self._function_of.__getitem__, path))
        own = self._own[at]
        own[spots[-1]] = own.get(spots[-1], 0) + weight
        calls: Iterable[tuple[int, int]] = zip(spots, functions[1:])  # noqa: B905 - one is longer
        if len(set(functions)) < len(functions) and len(set(pairwise(functions))) < len(functions) - 1:
            # The first of the calls from one function to another: later ones are inside it.
            first: dict[tuple[int, int], tuple[int, int]] = {}
            for pair, call in zip(pairwise(functions), calls, strict=True):
                first.setdefault(pair, call)
            calls = first.values()
        sums = self._calls[at]
        known = sums.get
        for call in calls:
            sums[call] = known(call, 0) + weight

    def functions(self) -> Iterator[_Function]:
        """Yield the costs by function, the calling ones before what they call."""
        spots = list(self.spots)
        calls: dict[int, list[tuple[int, int, str]]] = {}
        for (spot, callee), cost in _by_unit(self._calls):
            caller, line = spots[spot]
            known = calls.get(caller)
            if known is None:
                calls[caller] = [(line, callee, cost)]
            else:
                known.append((line, callee, cost))
        own: dict[int, list[str]] = {}
        for spot, cost in _by_unit(self._own):
            function, line = spots[spot]
            own.setdefault(function, []).append(f"{line} {cost}\n")
        for function in calls | own:
            yield _Function(function, own.get(function, ()), calls.get(function, ()))


class _Function(NamedTuple):
    """A function, the lines of its own costs, and its calls: line, callee and cost."""

    function: int
    own: Sequence[str]
    calls: Sequence[tuple[int, int, str]]


def _by_unit(weights: Sequence[Mapping[_Key, int]]) -> Iterable[tuple[_Key, str]]:
    """Return costs, which have a number for each unit."""
    if len(weights) == 1:
        return zip(weights[0], map(str, weights[0].values()), strict=True)
    keys = dict.fromkeys(chain.from_iterable(weights))
    return ((key, " ".join([str(each.get(key, 0)) for each in weights])) for key in keys)


class _Names:
    """Names that are written in full when they are first met, and as a number from then on."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._count = 0
        self._objects: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        # Of functions that have been met: their numbers, and the lines that say which one is meant.
        self._met: dict[int, tuple[str, str, str]] = {}
        self._own: dict[int, str] = {}
        self._called: dict[int, str] = {}

    def own(self, function: int) -> str:
        """The lines that say which function costs are of."""
        return self._own.get(function) or self._position(function, _OWN, self._own)

    def called(self, function: int) -> str:
        """The lines that say which function is called."""
        return self._called.get(function) or self._position(function, _CALLED, self._called)

    def _position(self, function: int, words: tuple[str, str, str], known: dict[int, str]) -> str:
        numbers = self._met.get(function)
        if numbers is None:
            place = self._places[function]
            object_, object_number = self._name(self._objects, origin_of(place))
            file, file_number = self._name(self._files, place.path or _UNKNOWN)
            name, number = self._name(self._functions, place.name)
            self._met[function] = (object_number, file_number, number)
            return f"{words[0]}={object_}\n{words[1]}={file}\n{words[2]}={name}\n"
        text = f"{words[0]}={numbers[0]}\n{words[1]}={numbers[1]}\n{words[2]}={numbers[2]}\n"
        known[function] = text
        return text

    def _name(self, known: dict[str, str], name: str) -> tuple[str, str]:
        """What is written for a name now, and from then on."""
        number = known.get(name)
        if number is not None:
            return number, number
        self._count += 1
        number = known[name] = f"({self._count})"
        text = printable(name) or _UNKNOWN
        # Readers drop blanks before a name.
        return f"{number} {text if text[0] != ' ' else _BLANK + text[1:]}", number


def _as_written(place: Place) -> tuple[str, str, str]:
    return (printable(origin_of(place)), printable(place.path or _UNKNOWN), printable(place.name) or _UNKNOWN)


def _gather(tables: Tables) -> tuple[list[Place], _Costs]:
    """Return the costs, and the functions that they are of."""
    places = list(tables.functions)
    # For readers, functions that are written alike are one, and so a call of one by another is recursion.
    alike: dict[tuple[str, str, str], int] = {}
    numbers = [alike.setdefault(_as_written(place), number) for number, place in enumerate(places)]
    costs = _Costs(tables.units, [_Spot(numbers[function], line) for function, line, _ in tables.locations])
    several = len({thread.pid for thread in tables.threads}) > 1
    roots: dict[int, int] = {}
    # The threads of a process are one here, so each of its stacks is added once for all of them.
    sums: dict[tuple[tuple[int, ...], str], Counter[int]] = {}
    for thread in tables.threads:
        root: tuple[int, ...] = ()
        if several:
            if thread.pid not in roots:
                roots[thread.pid] = costs.add_location(_Spot(len(places), 0))
                places.append(Place("process", f"{thread.process} ({thread.pid})"))
            root = (roots[thread.pid],)
        sums.setdefault((root, thread.unit), Counter()).update(thread.sums())
    for (root, unit), weights in sums.items():
        for stack, weight in weights.items():
            costs.add(root + tables.stacks[stack], unit, weight)
    return places, costs


def _head(tables: Tables, totals: Totals, meta: Meta) -> Iterator[str]:
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


def _pieces(tables: Tables, totals: Totals, meta: Meta) -> Iterator[str]:
    """Yield the file: its head, each function, and its end."""
    places, costs = _gather(tables)
    total = " ".join(map(str, costs.total or [0]))
    yield "".join([f"{line}\n" for line in _head(tables, totals, meta)])
    yield f"summary: {total}\n"
    names = _Names(places)
    for function, own, calls in costs.functions():
        parts = ["\n", names.own(function), *own]
        for line, callee, cost in calls:
            parts.append(f"{names.called(callee)}calls=1 0\n{line} {cost}\n")
        yield "".join(parts)
    yield f"\ntotals: {total}\n"


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the costs. A profile without samples is a header that says so, with a total of 0."""
    file.writelines(map(str.encode, _pieces(tables_of(samples), totals, meta)))
