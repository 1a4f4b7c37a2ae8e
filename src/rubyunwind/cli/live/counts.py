# SPDX-License-Identifier: Apache-2.0
"""Samples counted by thread and method: of the last intervals, and since the start.

Nothing here knows of a terminal or a clock: samples and times are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.profiler.sample import Frame, Sample

__all__ = ["EARLIER", "HIDDEN_KINDS", "Counts", "Method", "Tally", "Thread"]

HIDDEN_KINDS = frozenset({"native", "kernel", "jit"})
"""The kinds of frames that are left out when native frames are switched off."""

# Threads that are counted each by itself since the start, and distinct stacks that are remembered. Both are
# far above what a program has at a time.
_MOST_THREADS = 1000
_MOST_STACKS = 1 << 15


class Method(NamedTuple):
    """What a row of the table is about. `file` is the path of Ruby code or the module of native code."""

    kind: str
    name: str
    file: str | None = None


class Thread(NamedTuple):
    """A thread, or with `tid` 0 a whole process."""

    pid: int
    tid: int = 0


EARLIER = Thread(0)
"""Stands for the threads seen least lately when there were too many to be told apart."""

Place = tuple["str | None", "int | None"]

_NO_FRAMES = Method("none", "[no frames]")
_NATIVE_ONLY = Method("none", "[native code only]")

# What one stack counts for, leaf first, each method once, with the place where it was met first.
_Line = tuple[tuple[Method, Place], ...]


class Tally:
    """Weights by method. `own` of a method is what had it at the leaf, `total` what had it anywhere.

    `weight` is the sum of all, and so of `own`, too. `places` are the lines that a method was met at.
    """

    __slots__ = ("own", "places", "total", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.own: dict[Method, int] = {}
        self.total: dict[Method, int] = {}
        self.places: dict[Method, dict[Place, int]] = {}

    def count(self, line: _Line, weight: int) -> None:
        """Count a stack."""
        self.weight += weight
        leaf = line[0][0]
        self.own[leaf] = self.own.get(leaf, 0) + weight
        for method, place in line:
            self.total[method] = self.total.get(method, 0) + weight
            places = self.places.setdefault(method, {})
            places[place] = places.get(place, 0) + weight

    def add(self, other: Tally) -> None:
        """Add what another tally has."""
        self.weight += other.weight
        for mine, others in ((self.own, other.own), (self.total, other.total)):
            for method, weight in others.items():
                mine[method] = mine.get(method, 0) + weight
        for method, places in other.places.items():
            mine_ = self.places.setdefault(method, {})
            for place, weight in places.items():
                mine_[place] = mine_.get(place, 0) + weight

    @property
    def hottest(self) -> Method | None:
        """The method that was at the leaf most often."""
        return max(self.own, key=lambda method: (self.own[method], method), default=None)


# With native frames, and without.
_Tallies = tuple[Tally, Tally]


class _Interval(NamedTuple):
    seconds: float
    threads: dict[Thread, _Tallies]


class Counts:
    """Counts samples in intervals: `add` them, and `close` the interval from time to time.

    The table shows intervals that are closed: the last `window` of them ("now"), and all since the start or
    the last `reset`. Memory is bounded by threads and methods, not by time.
    """

    def __init__(self, window: int = 1) -> None:
        self._open: dict[tuple[Thread, int], int] = {}
        self._lines: list[tuple[_Line, _Line]] = []
        # By the identity of the frames, which equal stacks share. The tuple is kept: no other gets its id.
        self._known: dict[int, tuple[int, tuple[Frame, ...]]] = {}
        self._window: deque[_Interval] = deque(maxlen=window)
        self._start: dict[Thread, _Tallies] = {}
        self._seconds = 0.0
        self.comms: dict[Thread, str] = {}
        self.incomplete = 0

    def add(self, samples: Iterable[Sample]) -> None:
        """Count samples into the interval that is open."""
        for sample in samples.merged() if isinstance(samples, Samples) else samples:
            thread = Thread(sample.pid, sample.tid)
            self.comms[thread] = sample.comm
            key = (thread, self._line(sample.frames))
            self._open[key] = self._open.get(key, 0) + sample.weight
            if not sample.complete:
                self.incomplete += sample.weight

    def close(self, seconds: float) -> None:
        """End the interval, which lasted so long."""
        threads: dict[Thread, _Tallies] = {}
        for (thread, index), weight in self._open.items():
            tallies = threads.setdefault(thread, (Tally(), Tally()))
            for tally, line in zip(tallies, self._lines[index], strict=True):
                tally.count(line, weight)
        self._open.clear()
        if len(self._lines) > _MOST_STACKS:
            self._lines.clear()
            self._known.clear()
        self._window.append(_Interval(seconds, threads))
        self._seconds += seconds
        for thread, tallies in threads.items():
            self._add_to_start(thread, tallies)
        if len(self._start) > _MOST_THREADS:
            self._forget_threads()

    def forget_window(self) -> None:
        """Begin "now" anew."""
        self._window.clear()

    def reset(self) -> None:
        """Begin all counts anew, with the interval that is open, too."""
        self._open.clear()
        self._window.clear()
        self._start.clear()
        self._seconds = 0.0
        self.incomplete = 0

    @property
    def seconds(self) -> tuple[float, float]:
        """How long "now" is, and how long all of it."""
        return sum(interval.seconds for interval in self._window), self._seconds

    def now(self, native: bool) -> dict[Thread, Tally]:
        """Return what the last intervals had, by thread."""
        found: dict[Thread, Tally] = {}
        for interval in self._window:
            for thread, tallies in interval.threads.items():
                found.setdefault(thread, Tally()).add(tallies[not native])
        return found

    def start(self, native: bool) -> dict[Thread, Tally]:
        """Return what there was since the start, by thread. Not to be changed."""
        return {thread: tallies[not native] for thread, tallies in self._start.items()}

    def _add_to_start(self, thread: Thread, tallies: _Tallies) -> None:
        # Taken out and put in again: what was seen least lately stands first.
        mine = self._start.pop(thread, None) or (Tally(), Tally())
        for tally, other in zip(mine, tallies, strict=True):
            tally.add(other)
        self._start[thread] = mine

    def _forget_threads(self) -> None:
        """Put half of the threads together, those that were seen least lately."""
        for thread in [thread for thread in self._start if thread != EARLIER][: _MOST_THREADS // 2]:
            self._add_to_start(EARLIER, self._start.pop(thread))
            if not any(thread in interval.threads for interval in self._window):
                self.comms.pop(thread, None)

    def _line(self, frames: tuple[Frame, ...]) -> int:
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = (len(self._lines), frames)
            shown = tuple(frame for frame in frames if frame.kind not in HIDDEN_KINDS)
            self._lines.append(
                (_methods(frames, _NO_FRAMES), _methods(shown, _NATIVE_ONLY if frames else _NO_FRAMES))
            )
        return known[0]


def _methods(frames: tuple[Frame, ...], otherwise: Method) -> _Line:
    found: dict[Method, Place] = {}
    for frame in frames:
        native = frame.path is None
        # A C function has its caller's path, which is where it was called and not where it is.
        file = frame.module if native else None if frame.kind == "cfunc" else frame.path
        place = (frame.module, None) if native else (frame.path, frame.line)
        found.setdefault(Method(frame.kind, frame.name, file), place)
    return tuple(found.items()) or ((otherwise, (None, None)),)
