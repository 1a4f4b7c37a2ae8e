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

from rubyunwind.formats.stacks import incompleteness
from rubyunwind.formats.tree import Place, place_of

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.stacks import Marker
    from rubyunwind.profiler.sample import Frame, Sample

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
        # By identity first, since equal stacks mostly share their frames; what an id is of stays beside it.
        self._known_frames: dict[int, tuple[Frame | Marker, int]] = {}
        self._known_stacks: dict[tuple[int, bool, str | None], tuple[tuple[Frame, ...], int]] = {}

    def stack(self, sample: Sample) -> int:
        key = (id(sample.frames), sample.complete, sample.reason)
        known = self._known_stacks.get(key)
        if known is None:
            marker = incompleteness(sample.complete, sample.reason, sample.frames)
            path = [] if marker is None else [self._location(marker)]
            path += map(self._location, reversed(sample.frames))
            index = self.stacks.setdefault(tuple(path), len(self.stacks))
            known = self._known_stacks[key] = (sample.frames, index)
        return known[1]

    def _location(self, frame: Frame | Marker) -> int:
        known = self._known_frames.get(id(frame))
        if known is None:
            place = place_of(frame)
            function = self.functions.setdefault(place, len(self.functions))
            line, address = getattr(frame, "line", None), getattr(frame, "offset", None)
            location = Location(function, line or 0, address)
            known = self._known_frames[id(frame)] = (
                frame,
                self.locations.setdefault(location, len(self.locations)),
            )
        return known[1]


class _Thread(NamedTuple):
    times: array[int]
    stacks: array[int]
    weights: array[int]


def tables_of(samples: Iterable[Sample]) -> Tables:
    """Gather all samples. Threads are in the order of their first sample."""
    interned = _Interned()
    threads: dict[tuple[int, int, str, str | None], _Thread] = {}
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, str] = {}
    for sample in samples:
        pid, tid = sample.pid, sample.tid
        key = (pid, tid, sample.unit, sample.container)
        thread = threads.get(key)
        if thread is None:
            thread = threads[key] = _Thread(array("q"), array("I"), array("Q"))
        thread.times.append(sample.timestamp)
        thread.stacks.append(interned.stack(sample))
        thread.weights.append(sample.weight)
        names[pid, tid] = sample.comm
        if tid == pid or pid not in processes:
            processes[pid] = sample.comm
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
