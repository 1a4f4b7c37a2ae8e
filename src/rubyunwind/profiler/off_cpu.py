# SPDX-License-Identifier: Apache-2.0
"""Off-CPU samples: what is asked for, the threads that are away, and what the counters say."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.abi import (
    OFF_CPU_THRESHOLD_MAX,
    Counter,
    Frame,
    OffCPURoom,
    OffCPUThread,
    Trace,
    decode_trace,
)
from rubyunwind.process.kernel_clock import kernel_ns
from rubyunwind.profiler.sample import Switches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rubyunwind.bpf.maps import Map
    from rubyunwind.profiler.assembler import Assembler, StackKey
    from rubyunwind.profiler.samples import SampledStack

__all__ = ["BOTH", "MODES", "ONLY", "OffCPU", "ThreadsAway", "switches"]

BOTH, ONLY = "both", "only"
MODES = (BOTH, ONLY)
_THREADS = "off_cpu_threads"
_TRACES = {
    OffCPURoom.FEW: "off_cpu_traces_few",
    OffCPURoom.SOME: "off_cpu_traces_some",
    OffCPURoom.MANY: "off_cpu_traces_many",
}
_OFFSETS = {name: Trace.members[name].offset for name in ("stack_len", "frames")}

# Threads are looked at after so many seconds, or later if that would take more than so much of a CPU; those
# that have been away for so long are named.
_PERIOD, _SHARE, _LONG_NS = 0.1, 0.02, 50_000_000


@dataclass(frozen=True, slots=True)
class OffCPU:
    """How threads that leave their CPU are recorded.

    One of so many switches is, by `probability`, in steps of a thousandth; samples are weighted back.
    Threads that are away for less than `shortest` seconds are counted only. With `only`, nothing else is
    sampled. Raises ValueError for what is out of range.
    """

    only: bool = False
    probability: float = 1.0
    shortest: float = 0.0

    def __post_init__(self) -> None:
        if not 1 / OFF_CPU_THRESHOLD_MAX <= self.probability <= 1:
            raise ValueError(
                f"an off-CPU probability of {self.probability}: it must be {1 / OFF_CPU_THRESHOLD_MAX} to 1"
            )
        if not 0 <= self.shortest < 1 << 32:
            raise ValueError(f"a shortest off-CPU time of {self.shortest} s: it must be 0 or more")

    @classmethod
    def of(cls, wish: OffCPU | bool | str) -> OffCPU | None:
        """Return what False, True, "both", "only" or an OffCPU ask for; None for nothing."""
        if isinstance(wish, OffCPU):
            return wish
        if wish is False:
            return None
        if wish is not True and wish not in MODES:
            raise ValueError(
                f"off_cpu is {wish!r}: it must be False, True, an OffCPU or one of {', '.join(MODES)}"
            )
        return cls(wish == ONLY)

    @property
    def threshold(self) -> int:
        """The probability as SystemConfig.off_cpu_threshold has it."""
        return round(self.probability * OFF_CPU_THRESHOLD_MAX)

    @property
    def scale(self) -> tuple[int, int]:
        """The fraction by which what was chosen stands for all."""
        return OFF_CPU_THRESHOLD_MAX, self.threshold

    @property
    def shortest_ns(self) -> int:
        """`shortest` in ns."""
        return round(self.shortest * 1e9)


class ThreadsAway:
    """The threads that are off the CPU, as the kernel side's maps have them.

    Their traces come when they are back, which may be when their process ends: then there is nobody left to
    ask for names. So stacks are named ahead where a thread is away for longer.
    """

    def __init__(self, maps: Mapping[str, Map], assembler: Assembler) -> None:
        self._maps = maps
        self._assembler = assembler
        self._named: dict[tuple[bytes, int], tuple[StackKey, SampledStack]] = {}
        self._due = 0.0

    def look(self) -> None:
        """Name the stacks of those that have been away for some time, now and then."""
        begin, used = time.monotonic(), time.thread_time()
        if begin < self._due:
            return
        # Those of the last look stay for one more: their traces may be under way.
        before, self._named = self._named, {}
        now = kernel_ns(self._assembler.clock_offset)
        for tid, thread in self._threads():
            which = (tid, thread.since)
            known = before.get(which)
            if known is None and now - thread.since > _LONG_NS:
                known = self._name(tid, thread)
            if known is not None:
                self._named[which] = known
        self._assembler.named_ahead = {**dict(before.values()), **dict(self._named.values())}
        self._due = time.monotonic() + max(_PERIOD, (time.thread_time() - used) / _SHARE)

    def _name(self, tid: bytes, thread: OffCPUThread) -> tuple[StackKey, SampledStack] | None:
        trace = self._trace(tid, thread)
        if trace is None:
            return None
        stack = self._assembler.stack(trace)
        if any(frame.kind == "unknown" for frame in stack.frames):  # more may be known of a Ruby that starts
            return None
        return self._assembler.key(trace), stack

    def traces(self) -> list[Trace]:
        """Return the traces of all, with the time so far as `offtime`.

        For when the program for switches does not run any more: what comes back then is not noticed.
        """
        now = kernel_ns(self._assembler.clock_offset)
        found = []
        for tid, thread in self._threads():
            trace = self._trace(tid, thread)
            if trace is not None:
                found.append(trace.replace(offtime=max(0, now - thread.since)))
        return found

    def _threads(self) -> Iterator[tuple[bytes, OffCPUThread]]:
        for tid, value in self._maps[_THREADS].items():
            yield tid, OffCPUThread.from_bytes(value)

    def _trace(self, tid: bytes, thread: OffCPUThread) -> Trace | None:
        raw = self._maps[_TRACES[OffCPURoom(thread.room)]].get(tid)
        if raw is None:  # it came back while we looked
            return None
        length = int.from_bytes(raw[_OFFSETS["stack_len"] :][:4], "little")
        return decode_trace(raw[: _OFFSETS["frames"] + Frame.size * length])


def switches(counters: Mapping[Counter, int]) -> Switches:
    """Return what became of the switches, by the kernel side's counters."""
    seen, sent, not_chosen, short, failed = (
        sum(counters.get(which, 0) for which in of)
        for of in (
            (Counter.OFF_CPU_SWITCHES,),
            (Counter.OFF_CPU_SENT,),
            (Counter.OFF_CPU_NOT_CHOSEN,),
            (Counter.OFF_CPU_SHORT,),
            (
                Counter.OFF_CPU_NO_ROOM,
                Counter.OFF_CPU_OUTPUT_FAILED,
            ),
        )
    )
    return Switches(
        seen=seen,
        sent=sent,
        # Counters of other CPUs may be read a moment before those that they are the sum of.
        waiting=max(0, seen - sent - not_chosen - short - failed),
        not_chosen=not_chosen,
        short=short,
        failed=failed,
        short_ns=counters.get(Counter.OFF_CPU_SHORT_NS, 0),
    )
