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

# What one stack counts for: numbers of spots, leaf first, each method once, where it is met first.
_Line = tuple[int, ...]


class Tally:
    """Weights by spot, which is the number of a method at a place: see Counts.spots.

    `own` is what was there at the leaf, `total` what was there anywhere; `weight` is the sum of all, and so
    of `own`.
    """

    __slots__ = ("own", "total", "weight")

    def __init__(self) -> None:
        self.weight = 0
        self.own: dict[int, int] = {}
        self.total: dict[int, int] = {}

    def count(self, line: _Line, weight: int) -> None:
        """Count a stack."""
        self.weight += weight
        own, total = self.own, self.total
        own[line[0]] = own.get(line[0], 0) + weight
        for spot in line:
            total[spot] = total.get(spot, 0) + weight

    def add(self, other: Tally) -> None:
        """Add what another tally has."""
        self.weight += other.weight
        for mine, others in ((self.own, other.own), (self.total, other.total)):
            for spot, weight in others.items():
                mine[spot] = mine.get(spot, 0) + weight


# With native frames, and without.
_Tallies = tuple[Tally, Tally]


class _Interval(NamedTuple):
    seconds: float
    threads: dict[Thread, _Tallies]
    whole: _Tallies


class Counts:
    """Counts samples in intervals: `add` them, and `close` the interval from time to time.

    The table shows intervals that are closed: the last `window` of them ("now"), and all since the start or
    the last `reset`. `spots` are the methods and places that tallies have numbers of, `comms` the names of
    threads, `incomplete` is the weight of stacks that are not whole. Memory is bounded by the code that runs,
    not by time.
    """

    def __init__(self, window: int = 1) -> None:
        self.spots: list[tuple[Method, Place]] = []
        self.comms: dict[Thread, str] = {}
        self.incomplete = 0
        self._spot_numbers: dict[tuple[Method, Place], int] = {}
        self._open: dict[tuple[Thread, int], int] = {}
        self._lines: list[tuple[_Line, _Line]] = []
        # By the identity of the frames, which equal stacks share. The tuple is kept: no other gets its id.
        self._known: dict[int, tuple[int, tuple[Frame, ...]]] = {}
        self._window: deque[_Interval] = deque(maxlen=window)
        self._start: dict[Thread, _Tallies] = {}
        self._whole: _Tallies = (Tally(), Tally())
        self._seconds = 0.0

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
        whole = (Tally(), Tally())
        for tallies in threads.values():
            _add(whole, tallies)
        _add(self._whole, whole)
        self._window.append(_Interval(seconds, threads, whole))
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
        self._whole = (Tally(), Tally())
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
        """Return what there was since the start, by thread. The tallies are not to be changed."""
        return {thread: tallies[not native] for thread, tallies in self._start.items()}

    def whole(self, native: bool) -> tuple[Tally, Tally]:
        """Return what all threads together had, now and since the start. Not to be changed."""
        now = Tally()
        for interval in self._window:
            now.add(interval.whole[not native])
        return now, self._whole[not native]

    def _add_to_start(self, thread: Thread, tallies: _Tallies) -> None:
        # Taken out and put in again: what was seen least lately stands first.
        mine = self._start.pop(thread, None) or (Tally(), Tally())
        _add(mine, tallies)
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
            native_only = _NATIVE_ONLY if frames else _NO_FRAMES
            self._lines.append((self._spots(frames, _NO_FRAMES), self._spots(shown, native_only)))
        return known[0]

    def _spots(self, frames: tuple[Frame, ...], otherwise: Method) -> _Line:
        found: dict[Method, Place] = {}
        for frame in frames:
            native = frame.path is None
            # A C function has its caller's path, which is where it was called and not where it is.
            file = frame.module if native else None if frame.kind == "cfunc" else frame.path
            place = (frame.module, None) if native else (frame.path, frame.line)
            found.setdefault(Method(frame.kind, frame.name, file), place)
        return tuple(map(self._number, found.items())) or (self._number((otherwise, (None, None))),)

    def _number(self, spot: tuple[Method, Place]) -> int:
        number = self._spot_numbers.setdefault(spot, len(self.spots))
        if number == len(self.spots):
            self.spots.append(spot)
        return number


def _add(mine: _Tallies, others: _Tallies) -> None:
    for tally, other in zip(mine, others, strict=True):
        tally.add(other)
