# SPDX-License-Identifier: Apache-2.0
"""A profile as tables that refer to each other: functions, locations, stacks, and the samples of threads.

This is what speedscope, pprof, callgrind, Firefox and OTLP files are made of, each in its own words.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.formats.memo import Memo
from rubyunwind.formats.stacks import incompleteness
from rubyunwind.formats.tree import Place, place_of
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.stacks import Marker
    from rubyunwind.profiler.sample import Frame, Sample
    from rubyunwind.profiler.samples import SampledStack

__all__ = ["Location", "Tables", "ThreadSamples", "origin_of", "period_of", "start_of", "tables_of"]


class Location(NamedTuple):
    """A place in a function: an index into `functions`, a line (0: unknown), an ELF virtual address."""

    function: int
    line: int
    address: int | None


@dataclass(frozen=True, slots=True)
class ThreadSamples:
    """The samples of one thread in one unit, in the order of their times.

    `name` is the thread's comm, `process` that of the process (its main thread's if that was sampled).
    Columns of one entry a sample: `times` (unix ns), `stacks` (index into Tables.stacks), `weights`.
    """

    pid: int
    tid: int
    unit: str
    name: str
    process: str
    container: str | None
    times: array[int]
    stacks: array[int]
    weights: array[int]

    def sums(self) -> dict[int, int]:
        """Weights added up by stack, in the order of first appearance."""
        found: dict[int, int] = {}
        for stack, weight in zip(self.stacks, self.weights, strict=True):
            found[stack] = found.get(stack, 0) + weight
        return found

    def runs(self) -> Iterator[tuple[int, int]]:
        """Stack and weight, where samples of one stack that follow each other are one."""
        pairs = zip(self.stacks, self.weights, strict=True)
        for stack, run in groupby(pairs, key=lambda pair: pair[0]):
            yield stack, sum(weight for _, weight in run)


@dataclass(frozen=True, slots=True)
class Tables:
    """All of a profile. `stacks` are tuples of indices into `locations`, root first.

    A stack that did not reach its root begins with a location whose function is of the kind "incomplete".
    No stack is empty.
    """

    functions: tuple[Place, ...]
    locations: tuple[Location, ...]
    stacks: tuple[tuple[int, ...], ...]
    threads: tuple[ThreadSamples, ...]

    @property
    def units(self) -> tuple[str, ...]:
        """The units of the samples, in the order of first appearance."""
        return tuple(dict.fromkeys(thread.unit for thread in self.threads))

    def kind(self, location: int) -> str:
        """The kind of a location's frame."""
        return self.functions[self.locations[location].function].kind


class _Interned:
    """Tables while they grow."""

    def __init__(self) -> None:
        self.functions: dict[Place, int] = {}
        self.locations: dict[Location, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self._numbers = Memo(self._number).of

    def stack(self, stack: SampledStack) -> int:
        frames, complete, reason, *_ = stack
        marker = incompleteness(complete, reason, frames)
        path: tuple[int, ...] = () if marker is None else (self._number(marker),)
        path += self._numbers(frames[::-1])
        return self.stacks.setdefault(path, len(self.stacks))

    def _number(self, frame: Frame | Marker) -> int:
        function = self.functions.setdefault(place_of(frame), len(self.functions))
        line, address = getattr(frame, "line", None), getattr(frame, "offset", None)
        return self.locations.setdefault(Location(function, line or 0, address), len(self.locations))


class _Thread(NamedTuple):
    times: array[int]
    stacks: array[int]
    weights: array[int]


def tables_of(samples: Iterable[Sample]) -> Tables:
    """Gather all samples. Threads are in the order of their first sample."""
    if not isinstance(samples, Samples):
        samples = Samples(samples)
    interned = _Interned()
    known_threads, known_stacks = samples.threads, samples.stacks
    indices: dict[int, int] = {}  # of our stacks, by the samples'
    threads: dict[tuple[int, int, str, str | None], _Thread] = {}
    columns: dict[tuple[int, str], _Thread] = {}  # by the samples' thread and the unit
    last: dict[int, None] = {}  # threads, the one that was sampled last at the end
    for times, stacks, numbers, _, weights in samples.columns():
        for time, stack, number, weight in zip(times, stacks, numbers, weights, strict=True):
            index = indices.get(stack)
            if index is None:
                index = indices[stack] = interned.stack(known_stacks[stack])
            unit = known_stacks[stack].unit
            thread = columns.get((number, unit))
            if thread is None:
                pid, tid, _, container = known_threads[number]
                new = _Thread(array("q"), array("I"), array("Q"))
                thread = columns[number, unit] = threads.setdefault((pid, tid, unit, container), new)
            thread.times.append(time)
            thread.stacks.append(index)
            thread.weights.append(weight)
        for number in reversed(dict.fromkeys(reversed(numbers))):
            last.pop(number, None)
            last[number] = None
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, str] = {}
    for number in last:
        pid, tid, comm, _ = known_threads[number]
        names[pid, tid] = comm
        if tid == pid:
            processes[pid] = comm
    for pid, _, comm, _ in known_threads:
        processes.setdefault(pid, comm)
    return Tables(
        tuple(interned.functions),
        tuple(interned.locations),
        tuple(interned.stacks),
        tuple(
            ThreadSamples(pid, tid, unit, names[pid, tid], processes[pid], container, *_in_order(thread))
            for (pid, tid, unit, container), thread in threads.items()
        ),
    )


def _in_order(thread: _Thread) -> _Thread:
    """Sort by time: buffers are read CPU by CPU, and a thread may have moved from one to another."""
    times = thread.times
    if all(before <= after for before, after in pairwise(times)):
        return thread
    order = sorted(range(len(times)), key=times.__getitem__)
    return _Thread(*(array(column.typecode, map(column.__getitem__, order)) for column in thread))


def start_of(tables: Tables, meta: Meta) -> int:
    """When the recording began, unix ns: no sample is before it. 0 when nothing is known."""
    times = [thread.times[0] for thread in tables.threads]
    if meta.started:
        times.append(meta.started)
    return min(times, default=0)


def period_of(meta: Meta) -> int:
    """Nanoseconds between two samples; 0 when the rate is not known."""
    return round(1e9 / meta.rate) if meta.rate else 0


def origin_of(place: Place) -> str:
    """Where a function is from: a native one's module; of others the kind, as in `[kernel]`."""
    return place.module or f"[{place.kind}]"
