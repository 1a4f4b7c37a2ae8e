# SPDX-License-Identifier: Apache-2.0
"""From traces to samples: each distinct stack is named once, and again where what it rests on has changed."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from rubyunwind.abi import TraceOrigin
from rubyunwind.process.kernel_clock import offset_ns
from rubyunwind.profiler.known_stacks import KnownStack, KnownStacks, alike, digest_of
from rubyunwind.profiler.sample import Sample
from rubyunwind.profiler.samples import SampledStack, SampledThread, Samples
from rubyunwind.profiler.stack_namer import StackNamer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rubyunwind.abi import Trace
    from rubyunwind.bpf.maps import Map
    from rubyunwind.bpf.trace_batch import TraceBatch, TracedThread
    from rubyunwind.profiler.files import FileCache
    from rubyunwind.profiler.process import ProfiledProcess
    from rubyunwind.ruby.code_cache import Known, Seen
    from rubyunwind.ruby.symbolize import RubySymbolizer

__all__ = ["Assembler", "Processes", "StackKey"]

# Where there is no Ruby nothing changes.
_BELIEVED = 1.0
# Seconds after which a stack is named anew, whatever it rests on.
_ANEW = 30.0
# Stacks are kept while all of them have this many frames at most (8 bytes each; a frame itself is shared).
_MOST_FRAMES = 1 << 20
_ORIGINS = {TraceOrigin.SAMPLING: "sampling", TraceOrigin.OFF_CPU: "off-cpu"}
_TIME = "ns"
# What may have a name later.
_PASSING = ("unknown", "error")

# Process and digest.
StackKey = tuple[int, bytes]


class Processes(Protocol):
    """The processes that traces are of, such as a ProcessTracker has."""

    @property
    def files(self) -> FileCache:
        """The files that they map."""

    def get(self, pid: int, time: float | None = None) -> ProfiledProcess | None:
        """Return the process that has that pid, or had it at that time (monotonic seconds)."""

    def reused(self, pid: int) -> bool:
        """Whether there may be two processes of that pid."""


class Assembler:
    """Makes samples. `kernel_stacks` is the map that kernel_stack_id refers to, None if no trace has one.

    The weight of an off-CPU sample is its time, times the fraction `off_cpu_scale`: of how many switches one
    was chosen. `between` is called every now and then while names are looked up, so that somebody may empty
    the rings: the first sample of a deep stack takes longer to name than a ring of such stacks takes to fill.
    """

    def __init__(
        self,
        tracker: Processes,
        kernel_stacks: Map | None,
        off_cpu_scale: tuple[int, int] = (1, 1),
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._tracker = tracker
        self._scale = off_cpu_scale
        self._between = between
        self.namer = StackNamer(tracker.files, kernel_stacks, between)
        # Stacks named while their threads were away, for when those are back: the process may have ended.
        self.named_ahead: Mapping[StackKey, SampledStack] = {}
        # Of processes that still run, stacks whose code was gone, or other code, before they were named.
        self.unnamed = 0
        self.fresh = 0  # code and methods that were read and not known
        self._replaced = 0  # and that were found in the place of others
        # Of each process, by who names its code and digest: a deep stack has some ten kilobytes.
        # There is a new symbolizer after exec, and when more can be read of a Ruby that has just started.
        # Nobody else keeps a process that has ended: what was named of it goes with it.
        self._stacks: WeakKeyDictionary[ProfiledProcess, KnownStacks] = WeakKeyDictionary()
        self._kept = 0  # frames in them, or more
        # Both clocks tick alike; their distance places the kernel's times in unix time. It is taken once:
        # when somebody sets the wall clock, times go on as they were.
        self.clock_offset = offset_ns()
        self._epoch = time.time_ns() - time.monotonic_ns() + self.clock_offset

    def samples(self, batch: TraceBatch) -> Samples:
        """Return the samples that a batch of traces describes."""
        # When each stack was seen first and last: its names must be right for all of its samples.
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, ktime, offtime in zip(batch.stack, batch.ktime, batch.offtime, strict=True):
            time_of = ktime + offtime
            if time_of <= first.get(number, time_of):
                first[number] = time_of
            if time_of >= last.get(number, time_of):
                last[number] = time_of
        replaced = self._replaced
        stacks = self._all(batch.stacks, first, last)
        if self._replaced != replaced:
            # What was named before that was noticed may have been other code, too: now it has to be proven.
            stacks = self._all(batch.stacks, first, last)
        epoch = self._epoch
        return Samples.of_columns(
            stacks,
            self._threads(batch.threads),
            (
                array("q", [time + epoch for time in batch.ktime]),
                batch.stack,
                batch.thread,
                array("i", batch.cpu),
                self._weights(batch, stacks),
            ),
        )

    def _all(
        self, traces: Iterable[Trace], first: Mapping[int, int], last: Mapping[int, int]
    ) -> list[SampledStack]:
        stacks = []
        for number, trace in enumerate(traces):
            stacks.append(self.stack(trace, (first[number], last[number])))
            self._between()
        return stacks

    def _weights(self, batch: TraceBatch, stacks: Iterable[SampledStack]) -> array[int]:
        away = [stack.unit == _TIME for stack in stacks]
        if not any(away):
            return array("Q", [1]) * len(batch)
        return array(
            "Q",
            (
                self._time(time) if away[stack] else 1
                for time, stack in zip(batch.offtime, batch.stack, strict=True)
            ),
        )

    def _time(self, nanoseconds: int) -> int:
        times, of = self._scale
        return nanoseconds * times // of

    def _threads(self, threads: Iterable[TracedThread]) -> list[SampledThread]:
        """Return the threads that were sampled; their processes are noted as such."""
        found = []
        now = time.monotonic()
        for thread in threads:
            process = self._tracker.get(thread.pid)
            container = None
            if process is not None:
                process.sampled = now
                container = process.container
            found.append(SampledThread(thread.pid, thread.tid, thread.comm, container))
        return found

    def sample(self, trace: Trace, cpu: int) -> Sample:
        """Return the sample that one trace describes."""
        seen = trace.ktime + trace.offtime
        stack = self.stack(trace, (seen, seen))
        process = self._tracker.get(trace.pid)
        return Sample(
            timestamp=trace.ktime + self._epoch,
            pid=trace.pid,
            tid=trace.tid,
            comm=trace.comm,
            frames=stack.frames,
            complete=stack.complete,
            reason=stack.reason,
            weight=self._time(trace.offtime) if trace.origin == TraceOrigin.OFF_CPU else 1,
            unit=stack.unit,
            origin=stack.origin,
            container=process.container if process is not None else None,
            cpu=cpu,
        )

    @staticmethod
    def key(trace: Trace) -> StackKey:
        """Return what traces of equal stacks share."""
        return trace.pid, digest_of(trace)

    def stack(self, trace: Trace, sampled: tuple[int, int] | None = None) -> SampledStack:
        """Return the stack of a trace, every frame named.

        It was there from the first to the last of `sampled` (kernel's ns), or is.
        """
        now = time.monotonic()
        offset = self.clock_offset
        seen = ((sampled[0] + offset) / 1e9, (sampled[1] + offset) / 1e9) if sampled else (now, now)
        of = pid, digest = self.key(trace)
        reused = sampled is not None and self._tracker.reused(pid)
        process = self._tracker.get(pid, seen[0] if reused else None)
        if process is None:
            return self._named(trace, None, None, seen, of, set())
        symbolizer = _symbolizer_of(process, seen[0])
        stacks = self._stacks.get(process)
        if stacks is None:
            stacks = self._stacks[process] = KnownStacks()
        key = (symbolizer, digest)
        known = stacks.get(key)
        if known is None:
            known = self._first(trace, process, symbolizer, seen, of)
        elif not self._right(known, process, symbolizer, seen):
            known = self._anew(trace, process, symbolizer, seen, of, known)
        else:
            return known.named
        stacks[key] = known
        return known.named

    def _first(
        self,
        trace: Trace,
        process: ProfiledProcess,
        symbolizer: RubySymbolizer | None,
        seen: Seen,
        of: StackKey,
    ) -> KnownStack:
        """Name a stack that is not known, if it can be as one of which only the leaf is another."""
        leaf, loop = trace.leaf(), process.interpreter
        file = self._tracker.files.by_id(leaf.file_id) if leaf is not None else None
        # On aarch64 what a coroutine runs is told by its native frames, see coroutines.py.
        if leaf is None or file is None or file.aarch64 or symbolizer is None or loop is None:
            return self._anew(trace, process, symbolizer, seen, of, None)
        shared = alike(trace, leaf, in_loop=loop.holds(leaf))
        if shared is None:
            return self._anew(trace, process, symbolizer, seen, of, None)
        stacks, key = self._stacks[process], (symbolizer, shared)
        like = stacks.alike.get(key)
        if like is not None and self._right(like, process, symbolizer, seen):
            self._keep(process, len(like.named.frames))
            return like.with_leaf(self.namer.native(leaf))
        known = self._anew(trace, process, symbolizer, seen, of, None)
        if known.grounds is not None and known.named.frames[0] is self.namer.native(leaf):
            stacks.alike[key] = known
        return known

    def _right(
        self, known: KnownStack, process: ProfiledProcess, symbolizer: RubySymbolizer | None, seen: Seen
    ) -> bool:
        """Whether naming it again would give the same: sooner known than by naming hundreds of frames."""
        if known.loop is not process.interpreter or known.ruby is not process.ruby:
            return False
        age = seen[1] - known.right
        if symbolizer is None:
            return age <= _BELIEVED
        believed = symbolizer.believed_for(seen[1])
        if believed and age <= believed:
            return True
        if known.grounds is None or seen[1] - known.since > _ANEW:
            return False
        replaced = symbolizer.replaced
        right = symbolizer.proven(known.grounds, seen)
        if symbolizer.replaced != replaced:
            self._note_replaced(process, symbolizer)
        if right is None:
            return False
        known.right = right
        return True

    def _anew(
        self,
        trace: Trace,
        process: ProfiledProcess,
        symbolizer: RubySymbolizer | None,
        seen: Seen,
        of: StackKey,
        known: KnownStack | None,
    ) -> KnownStack:
        now = time.monotonic()
        replaced, read = (symbolizer.replaced, symbolizer.read) if symbolizer is not None else (0, 0)
        unnamed = self.namer.unnamed
        grounds: set[Known] = set()
        stack = self._named(trace, process, symbolizer, seen, of, grounds)
        if known is not None and known.named == stack:
            stack = known.named  # one tuple for equal stacks, so that formats can compare by identity
        else:
            self._keep(process, len(stack.frames))
        if symbolizer is None:
            return KnownStack(stack, now, now, None, process.interpreter, process.ruby)
        self.fresh += symbolizer.read - read
        if symbolizer.replaced != replaced:
            self._note_replaced(process, symbolizer)
        elif self.namer.unnamed != unnamed:
            self.unnamed += _runs(process, symbolizer)
        right = min((one.checked for one in grounds), default=now)
        lasts = all(one.final for one in grounds) and not any(one.kind in _PASSING for one in stack.frames)
        rests_on = tuple(grounds) if lasts else None
        return KnownStack(stack, now, right, rests_on, process.interpreter, process.ruby)

    def _note_replaced(self, process: ProfiledProcess, symbolizer: RubySymbolizer) -> None:
        self._replaced += 1
        self.unnamed += _runs(process, symbolizer)

    def _named(
        self,
        trace: Trace,
        process: ProfiledProcess | None,
        symbolizer: RubySymbolizer | None,
        seen: Seen,
        of: StackKey,
        grounds: set[Known],
    ) -> SampledStack:
        frames, reason = self.namer.name(trace, process, symbolizer, seen, grounds)
        origin = _ORIGINS.get(trace.origin, "unknown")
        unit = _TIME if trace.origin == TraceOrigin.OFF_CPU else "samples"
        ahead = self.named_ahead.get(of)
        if ahead is not None and any(frame.kind == "unknown" for frame in frames):
            return ahead
        return SampledStack(frames, reason is None, reason, origin, unit=unit)

    def _keep(self, process: ProfiledProcess, frames: int) -> None:
        """Note that so many frames more are kept; where there are too many, all are forgotten."""
        self._make_room()
        self._stacks[process].frames += frames
        self._kept += frames

    def _make_room(self) -> None:
        if self._kept <= _MOST_FRAMES:
            return
        self._kept = sum(stacks.frames for stacks in self._stacks.values())
        if self._kept > _MOST_FRAMES:
            for stacks in self._stacks.values():
                stacks.clear()
            self._kept = 0


def _symbolizer_of(process: ProfiledProcess, seen: float) -> RubySymbolizer | None:
    """Return who names what was seen then: before an exec it was the code of another program."""
    if process.former is not None and seen < process.former[1]:
        return process.former[0]
    return process.symbolizer


def _runs(process: ProfiledProcess, symbolizer: RubySymbolizer) -> bool:
    """Whether it still runs the program: of one that has ended nothing can be had by looking sooner."""
    return not (process.ended or symbolizer is not process.symbolizer or process.executed())
