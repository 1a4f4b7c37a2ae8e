# SPDX-License-Identifier: Apache-2.0
"""From traces to samples: every frame named, each distinct stack once."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from rubyunwind.abi import ErrorCode, FrameMarker, TraceFlag, TraceOrigin
from rubyunwind.process.kernel_clock import offset_ns
from rubyunwind.profiler.coroutines import without_what_precedes
from rubyunwind.profiler.kernel_symbols import KernelSymbols
from rubyunwind.profiler.placement import place_ruby_frames, shown_frames
from rubyunwind.profiler.reasons import NO_RUBY_INFORMATION, incompleteness, reason_of
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import SampledStack, SampledThread, Samples
from rubyunwind.profiler.waits import waiting_frames
from rubyunwind.ruby.symbolize import gc_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rubyunwind.abi import Step, Trace
    from rubyunwind.bpf.maps import Map
    from rubyunwind.bpf.trace_batch import TraceBatch, TracedThread
    from rubyunwind.profiler.files import FileCache
    from rubyunwind.profiler.process import ProfiledProcess
    from rubyunwind.ruby.symbolize import RubySymbolizer

__all__ = ["Assembler", "Processes", "StackKey"]

# Ruby reuses the memory behind the addresses in a stack, so its names are asked for again. Where there is no
# Ruby nothing changes.
_BELIEVED = 1.0
_AT_A_TIME = 32  # frames named until `between` is called
# Stacks are kept while all of them have this many frames at most (8 bytes each; a frame itself is shared).
_MOST_FRAMES = 1 << 20
# Plain numbers: of a deep stack there are thousands to compare.
_NATIVE, _RUBY, _CFUNC = int(FrameMarker.NATIVE), int(FrameMarker.RUBY), int(FrameMarker.RUBY_CFUNC)
_GC, _JIT = int(FrameMarker.RUBY_GC), int(FrameMarker.RUBY_JIT)
_KERNEL, _ABORT, _ERROR_BIT = int(FrameMarker.KERNEL), int(FrameMarker.ABORT), 0x80
_ORIGINS = {TraceOrigin.SAMPLING: "sampling", TraceOrigin.OFF_CPU: "off-cpu"}

# Ruby code as YJIT has compiled it. It sets the pc of its control frame where it calls, and nowhere else.
_COMPILED = Frame("jit", "[compiled code]", "the line of the Ruby frame that runs here may lag behind")

# Process and digest.
StackKey = tuple[int, bytes]

# What was named, and when.
_Stack = tuple[SampledStack, float]


class _Stacks(dict[tuple["RubySymbolizer | None", bytes], _Stack]):
    """The stacks of a process, and how many frames they have."""

    frames = 0


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
        self._kernel_stacks = kernel_stacks
        self.kernel_symbols = KernelSymbols()
        # Stacks named while their threads were away, for when those are back: the process may have ended.
        self.named_ahead: Mapping[StackKey, SampledStack] = {}
        self.unnamed = 0  # Ruby frames whose code was gone, or other code, before they were named
        self._kernel_frames: dict[int, Frame] = {}
        self._kernel_by_id: dict[int, tuple[Frame, ...]] = {}
        # Of each process, by who names its code and digest: a deep stack has some ten kilobytes.
        # There is a new symbolizer after exec, and when more can be read of a Ruby that has just started.
        # Nobody else keeps a process that has ended: what was named of it goes with it.
        self._stacks: WeakKeyDictionary[ProfiledProcess, _Stacks] = WeakKeyDictionary()
        self._kept = 0  # frames in them, or more
        # Both clocks tick alike; their distance places the kernel's times in unix time. It is taken once:
        # when somebody sets the wall clock, times go on as they were.
        self.clock_offset = offset_ns()
        self._epoch = time.time_ns() - time.monotonic_ns() + self.clock_offset

    def samples(self, batch: TraceBatch) -> Samples:
        """Return the samples that a batch of traces describes."""
        # When each stack was last there in its oldest sample: its names must be right for all of them.
        oldest: dict[int, int] = {}
        for number, ktime, offtime in zip(batch.stack, batch.ktime, batch.offtime, strict=True):
            time_of = ktime + offtime
            if time_of <= oldest.get(number, time_of):
                oldest[number] = time_of
        stacks = []
        for number, trace in enumerate(batch.stacks):
            stacks.append(self.stack(trace, oldest[number]))
            self._between()
        epoch = self._epoch
        return Samples.of_columns(
            stacks,
            self._threads(batch.threads),
            (
                array("q", [time + epoch for time in batch.ktime]),
                batch.stack,
                batch.thread,
                array("i", batch.cpu),
                self._weights(batch),
            ),
        )

    def _weights(self, batch: TraceBatch) -> array[int]:
        away = [trace.origin == TraceOrigin.OFF_CPU for trace in batch.stacks]
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
        stack = self.stack(trace, trace.ktime + trace.offtime)
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
        # Everything that decides the frames: kernel stack id, length, origin, flags, and the frames.
        raw = memoryview(bytes(trace))
        digest = blake2b(raw[56:72], digest_size=16)
        digest.update(raw[80:])
        return trace.pid, digest.digest()

    def stack(self, trace: Trace, sampled: int | None = None) -> SampledStack:
        """Return the stack of a trace, every frame named. It was there at `sampled` (kernel's ns), or is."""
        seen = (sampled + self.clock_offset) / 1e9 if sampled is not None else None
        process = self._tracker.get(trace.pid, seen if self._tracker.reused(trace.pid) else None)
        of = self.key(trace)
        now = time.monotonic()
        if process is None:
            return self._named(trace, None, now, of)
        symbolizer = _symbolizer_of(process, now if seen is None else seen)
        key = (symbolizer, of[1])
        stacks = self._stacks.get(process)
        if stacks is None:
            stacks = self._stacks[process] = _Stacks()
        now = time.monotonic()
        known = stacks.get(key)
        believed = symbolizer.believed_for(now) if symbolizer is not None else _BELIEVED
        if known is not None and now - known[1] <= believed:
            return known[0]
        stack = self._named(trace, process, now if seen is None else seen, of)
        if known is not None and known[0] == stack:
            stack = known[0]  # one tuple for equal stacks, so that formats can compare by identity
        else:
            self._make_room()
            stacks.frames += len(stack.frames)
            self._kept += len(stack.frames)
        stacks[key] = (stack, now)
        return stack

    def _named(
        self, trace: Trace, process: ProfiledProcess | None, seen: float, of: StackKey
    ) -> SampledStack:
        frames, reason = self._name(trace, process, seen)
        origin = _ORIGINS.get(trace.origin, "unknown")
        unit = "ns" if trace.origin == TraceOrigin.OFF_CPU else "samples"
        ahead = self.named_ahead.get(of)
        if ahead is not None and any(frame.kind == "unknown" for frame in frames):
            return ahead
        return SampledStack(frames, reason is None, reason, origin, unit=unit)

    def _make_room(self) -> None:
        if self._kept <= _MOST_FRAMES:
            return
        self._kept = sum(stacks.frames for stacks in self._stacks.values())
        if self._kept > _MOST_FRAMES:
            for stacks in self._stacks.values():
                stacks.clear()
                stacks.frames = 0
            self._kept = 0

    def _name(
        self, trace: Trace, process: ProfiledProcess | None, sampled: float
    ) -> tuple[tuple[Frame, ...], str | None]:
        frames: list[Frame] = []
        caller: Frame | None = None
        root_file = 0
        # Root first: a C function has the place of the Ruby frame that called it.
        items: Sequence[Step] = trace.steps()
        own = self._coroutine(items, process)
        items = items if own is None else own
        if process is not None and process.interpreter is not None:
            rooted = bool(trace.flags & TraceFlag.NATIVE_ROOT) or own is not None
            items = place_ruby_frames(items, process.interpreter.holds, rooted=rooted)
        symbolizer = _symbolizer_of(process, sampled) if process is not None else None
        if symbolizer is not None:
            items = shown_frames(items, symbolizer.folds)
        for number, item in enumerate(reversed(items)):
            if number % _AT_A_TIME == 0:
                self._between()
            kind = item.kind
            if kind == _NATIVE:
                root_file = root_file or item.file_id
                frame = self._native(item)
            elif kind == _RUBY:
                frame = caller = self._ruby(item, process, symbolizer, sampled)
            elif kind == _CFUNC:
                frame = self._cfunc(item, symbolizer, caller)
            elif kind == _GC:
                frame = gc_frame(item.addr_or_line)
            elif kind == _JIT:
                frame = _COMPILED
            elif kind == _KERNEL:
                frame = self._kernel(item.addr_or_line)
            elif kind == _ABORT:
                continue  # it is the reason, not a place
            elif kind & _ERROR_BIT:
                frame = Frame("error", f"[error: {reason_of(ErrorCode(item.addr_or_line))}]")
            else:
                frame = Frame("unknown", f"[frame of kind {kind:#x}]")
            frames.append(frame)
        frames.reverse()
        kernel = self._kernel_stack(trace.kernel_stack_id) if trace.kernel_stack_id >= 0 else ()
        loop = process.interpreter if process is not None else None
        in_ruby = loop is not None and loop.file_id == root_file
        reason = incompleteness(trace, in_ruby, coroutine=own is not None)
        # A loop that the kernel side did not know for one yet: its Ruby frames are missing.
        if (
            reason is None
            and loop is not None
            and not trace.flags & TraceFlag.RUBY_MET
            and any(item.kind == _NATIVE and loop.holds(item) for item in items)
        ):
            reason = NO_RUBY_INFORMATION
        # A Ruby whose loop was not found at all: whether the thread runs Ruby code cannot be told.
        if reason is None and loop is None and process is not None and process.ruby is not None:
            reason = None if caller is not None else NO_RUBY_INFORMATION
        if trace.origin == TraceOrigin.OFF_CPU:
            frames = waiting_frames(frames, runnable=bool(trace.flags & TraceFlag.RUNNABLE))
        return (*kernel, *frames), reason

    def _coroutine(self, items: Sequence[Step], process: ProfiledProcess | None) -> Sequence[Step] | None:
        """Return the frames of a coroutine where they lead to its beginning, see coroutines.py."""
        if process is None or process.interpreter is None:
            return None
        file_id = process.interpreter.file_id
        file = self._tracker.files.by_id(file_id)
        if file is None or not file.aarch64:
            return None
        return without_what_precedes(items, file_id, file.begin_of)

    def _native(self, item: Step) -> Frame:
        file = self._tracker.files.by_id(item.file_id)
        # A return address lies behind its call, which may have been the function's last instruction.
        address = item.addr_or_line - item.return_address
        if file is None:
            return Frame("unknown", "[code of an unknown file]", f"file {item.file_id:#x}", offset=address)
        return file.frame(address)

    def _ruby(
        self,
        item: Step,
        process: ProfiledProcess | None,
        symbolizer: RubySymbolizer | None,
        sampled: float,
    ) -> Frame:
        if process is None or symbolizer is None:
            return Frame("unknown", "[Ruby frame of a process that has ended]")
        before = symbolizer.replaced
        frame = symbolizer.ruby_frame(item.file_id, item.addr_or_line, item.method_entry, sampled)
        # Of one that has ended nothing can be had by looking sooner.
        if frame.kind == "unknown" or symbolizer.replaced != before:
            gone = process.ended or symbolizer is not process.symbolizer or process.executed()
            self.unnamed += not gone
        return frame

    @staticmethod
    def _cfunc(item: Step, symbolizer: RubySymbolizer | None, caller: Frame | None) -> Frame:
        if symbolizer is None:
            return Frame("unknown", "[C function of a process that has ended]")
        return symbolizer.cfunc_frame(item.file_id, caller)

    def _kernel_stack(self, stack_id: int) -> tuple[Frame, ...]:
        # An id keeps its meaning: the kernel side never lets a stack take another's slot.
        frames = self._kernel_by_id.get(stack_id)
        if frames is None:
            stacks = self._kernel_stacks
            addresses = () if stacks is None else stacks.get(stack_id.to_bytes(4, "little"), ())
            if not addresses:
                # The kernel takes a stack out of the map for the moment in which somebody reads it.
                return (Frame("unknown", "[kernel stack that cannot be read]"),)
            frames = self._kernel_by_id[stack_id] = tuple(self._kernel(address) for address in addresses)
        return frames

    def _kernel(self, address: int) -> Frame:
        frame = self._kernel_frames.get(address)
        if frame is None:
            self.kernel_symbols.load(self._between)
            name = self.kernel_symbols.lookup(address)
            frame = Frame("kernel", name) if name else Frame("kernel", "[kernel]", offset=address)
            self._kernel_frames[address] = frame
        return frame


def _symbolizer_of(process: ProfiledProcess, seen: float) -> RubySymbolizer | None:
    """Return who names what was seen then: before an exec it was the code of another program."""
    if process.former is not None and seen < process.former[1]:
        return process.former[0]
    return process.symbolizer
