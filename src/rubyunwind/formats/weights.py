# SPDX-License-Identifier: Apache-2.0
"""What samples weigh by stack, thread and time: all that a page needs to filter by thread and time itself."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.formats.difference import side_stacks
from rubyunwind.formats.stacks import Marker, incompleteness, process_names
from rubyunwind.formats.tree import Tree, merge
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.formats.difference import Side
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Frame, Sample
    from rubyunwind.profiler.samples import SampledThread

__all__ = ["Timeline", "Track", "Weights", "weigh", "weigh_sides"]

# A page is some 1,000 pixels wide, so more slices of time cannot be told apart.
_MOST_SLICES = 1000
# With more entries than this the slices are made longer: the page would not stay small. An entry takes three
# to four bytes of it.
_MOST_ENTRIES = 400_000
# How far a sample may lie outside the time of the recording, which another clock may have told.
_SLACK = 10_000_000_000


class Track(NamedTuple):
    """One thread in one unit. `comm` is its last name."""

    pid: int
    tid: int
    comm: str
    container: str | None
    unit: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Slices of time, all `width` ns long, from `start` (unix ns) on."""

    start: int
    width: int
    slices: int

    @classmethod
    def between(cls, first: int, last: int, least: int = 1) -> Timeline:
        """Return slices that hold both moments: a round number of ns, at least `least`, in each."""
        width = 1
        while width < least or (last - first) // width >= _MOST_SLICES:
            width = _next(width)
        return cls(first, width, (last - first) // width + 1)


def _next(width: int) -> int:
    """1, 2, 5, 10, 20, 50 and so on."""
    return width * 5 // 2 if str(width)[0] == "2" else width * 2


@dataclass(frozen=True, slots=True)
class Weights:
    """Columns of one entry for each node, track and slice in which there were samples, in that order.

    `nodes` are nodes of the tree, `tracks_of` indices into `tracks`.
    """

    tree: Tree
    tracks: tuple[Track, ...]
    timeline: Timeline
    nodes: array[int]
    tracks_of: array[int]
    slices: array[int]
    weights: array[int]


class _Paths:
    """Paths of stacks from the root, each with the markers that stand there."""

    def __init__(self, samples: Samples) -> None:
        self._stacks = samples.stacks
        comms = process_names(samples.threads)
        self._processes = {pid: Marker("process", f"{comm} ({pid})") for pid, comm in comms.items()}
        self._several = len(comms) > 1
        self._known: dict[tuple[int, int], int] = {}
        self._markers: dict[Marker, Marker] = {}
        self.paths: list[tuple[Frame | Marker, ...]] = []

    def index(self, stack: int, pid: int) -> int:
        key = (stack, pid if self._several else 0)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.paths)
            self.paths.append(self._path(stack, pid))
        return known

    def _path(self, stack: int, pid: int) -> tuple[Frame | Marker, ...]:
        frames, complete, reason, *_ = self._stacks[stack]
        markers = [self._processes[pid]] if self._several else []
        marker = incompleteness(complete, reason, frames)
        if marker is not None:
            markers.append(self._markers.setdefault(marker, marker))
        return tuple(chain(markers, reversed(frames)))


class _Tracks:
    """Threads are told apart by their ids: a thread that changed its name is one."""

    def __init__(self, threads: Sequence[SampledThread]) -> None:
        self._threads = threads
        self._last = {(thread.pid, thread.tid): thread for thread in threads}
        self._known: dict[Track, int] = {}
        self._found: dict[tuple[int, str], int] = {}

    def index(self, thread: int, unit: str) -> int:
        found = self._found.get((thread, unit))
        if found is None:
            at = self._threads[thread]
            track = Track(*self._last[at.pid, at.tid], unit)
            found = self._found[thread, unit] = self._known.setdefault(track, len(self._known))
        return found

    def sorted(self) -> tuple[tuple[Track, ...], list[int]]:
        order = sorted(self._known, key=lambda track: (track.unit, track.pid, track.tid))
        place = {track: number for number, track in enumerate(order)}
        return tuple(order), [place[track] for track in self._known]


def _timeline(samples: Samples, meta: Meta) -> Timeline:
    times = [(min(columns[0]), max(columns[0])) for columns in samples.columns()]
    if not times:
        return Timeline(meta.started, 1, 0)
    first, last = min(low for low, _ in times), max(high for _, high in times)
    end = meta.started + int(meta.duration * 1e9)
    if meta.started - _SLACK <= first and last <= end + _SLACK:
        first, last = min(first, meta.started), max(last, end - 1)
    return Timeline.between(first, last)


def _sums(samples: Samples, timeline: Timeline) -> dict[tuple[int, int, int], int]:
    """Weights by stack, thread and slice."""
    start, width = timeline.start, timeline.width
    sums: dict[tuple[int, int, int], int] = {}
    for times, stacks, threads, _, weights in samples.columns():
        for time, stack, thread, weight in zip(times, stacks, threads, weights, strict=True):
            key = (stack, thread, (time - start) // width)
            sums[key] = sums.get(key, 0) + weight
    return sums


def weigh(samples: Iterable[Sample], meta: Meta) -> Weights:
    """Return what the samples weigh. Reads them once; those that are not `Samples` are gathered first.

    Markers stand at the root of the tree: `comm (pid)` when there are several processes, then what `group`
    puts there for a stack that did not reach its root. Units are told apart by the tracks.
    """
    if not isinstance(samples, Samples):
        samples = Samples(samples)
    timeline = _timeline(samples, meta)
    sums = _sums(samples, timeline)
    while len(sums) > _MOST_ENTRIES and timeline.slices > 1:
        end = timeline.start + timeline.slices * timeline.width - 1
        timeline = Timeline.between(timeline.start, end, _next(timeline.width))
        sums = _sums(samples, timeline)
    paths, tracks = _Paths(samples), _Tracks(samples.threads)
    stacks, threads = samples.stacks, samples.threads
    parts = [
        (paths.index(stack, threads[thread].pid), tracks.index(thread, stacks[stack].unit), at, weight)
        for (stack, thread, at), weight in sums.items()
    ]
    tree = merge(paths.paths)
    order, moved = tracks.sorted()
    merged = _Merged(tree, order, timeline)
    for path, track, at, weight in parts:
        merged.add(tree.leaves[path], moved[track], at, weight)
    return merged.weights()


def weigh_sides(before: Side, after: Side) -> Weights:
    """Return what two profiles weigh in one tree. A track is a side and a unit; `tid` is the side, 0 or 1.

    There is one slice: the times of two recordings have nothing in common.
    """
    found = list(side_stacks(before, after))
    tree = merge([each.path for each in found])
    tracks = sorted(
        {Track(0, each.side, "", None, each.unit) for each in found}, key=lambda it: (it.unit, it.tid)
    )
    numbers = {(track.tid, track.unit): number for number, track in enumerate(tracks)}
    merged = _Merged(tree, tuple(tracks), Timeline(before.meta.started, 1, 1))
    for each, leaf in zip(found, tree.leaves, strict=True):
        merged.add(leaf, numbers[each.side, each.unit], 0, each.weight)
    return merged.weights()


class _Merged:
    """Weights by node, track and slice. The three are one number, which is fast to look up and to sort."""

    def __init__(self, tree: Tree, tracks: tuple[Track, ...], timeline: Timeline) -> None:
        self._tree, self._tracks, self._timeline = tree, tracks, timeline
        self._slices = max(timeline.slices, 1)
        self._step = self._slices * max(len(tracks), 1)
        self._sums: dict[int, int] = {}

    def add(self, node: int, track: int, at: int, weight: int) -> None:
        key = node * self._step + track * self._slices + at
        self._sums[key] = self._sums.get(key, 0) + weight

    def weights(self) -> Weights:
        keys, step, slices = sorted(self._sums), self._step, self._slices
        return Weights(
            tree=self._tree,
            tracks=self._tracks,
            timeline=self._timeline,
            nodes=array("I", [key // step for key in keys]),
            tracks_of=array("I", [key % step // slices for key in keys]),
            slices=array("I", [key % slices for key in keys]),
            weights=array("Q", list(map(self._sums.__getitem__, keys))),
        )
