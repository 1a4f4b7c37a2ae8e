# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come online while something is recorded.

The kernel ends the perf events of a CPU that goes offline, for good: when it is back, it neither ticks nor
takes records until there are new ones. That is looked for now and then. The list of CPUs that are online does
not tell of one that went and came back between two looks; the clocks of the events do.
"""

from __future__ import annotations

import errno
import time
from typing import TYPE_CHECKING

from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rubyunwind.bpf.perf_buffer import PerfBuffer
    from rubyunwind.bpf.timer import Timer
    from rubyunwind.profiler.ticks import Ticks

__all__ = ["Hotplug"]

# Seconds between looks, or more if that would take more than so much of a CPU: each ring is asked by itself.
_PERIOD, _SHARE = 0.8, 0.002


class Hotplug:
    """Keeps rings and ticks on every CPU that is online. Owns none of them.

    `timer` is told of the descriptors of new rings. `buffers` get a ring for each CPU before `ticks` run
    there. What a ring held when its CPU went is read all the same.
    """

    def __init__(self, timer: Timer, buffers: Sequence[PerfBuffer], ticks: Ticks) -> None:
        self._timer = timer
        self._buffers = buffers
        self._ticks = ticks
        self._refused: dict[int, RubyUnwindError] = {}
        self._due = time.monotonic() + _PERIOD

    def notes(self) -> list[str]:
        """Return what a user should know: CPUs that are online and cannot be sampled."""
        return [f"CPU {cpu} came online and is not sampled: {error}" for cpu, error in self._refused.items()]

    def look(self, *, at_once: bool = False) -> None:
        """Take in CPUs that have come, and let go of those that went, now and then."""
        if time.monotonic() < self._due and not at_once:
            return
        used = time.thread_time()
        online = set(online_cpus())
        live = set.intersection(*(buffer.live() for buffer in self._buffers))
        self._due = time.monotonic() + max(_PERIOD, (time.thread_time() - used) / _SHARE)
        for cpu in {cpu for buffer in self._buffers for cpu in buffer.cpus} - live - online:
            self._leave(cpu)
        self._refused = {}
        ready = (online & live) | {cpu for cpu in sorted(online - live) if self._try(cpu, self._renew)}
        for cpu in sorted(ready):
            self._try(cpu, self._ticks.add)

    def _leave(self, cpu: int) -> None:
        self._ticks.drop(cpu)
        for buffer in self._buffers:
            buffer.retire(cpu)

    def _renew(self, cpu: int) -> None:
        self._leave(cpu)
        for buffer in self._buffers:
            self._timer.watch(buffer.add(cpu))

    def _try(self, cpu: int, start: Callable[[int], object]) -> bool:
        try:
            start(cpu)
            return True
        except RubyUnwindError as error:
            if getattr(error, "errno", 0) != errno.ENODEV:  # it went offline meanwhile
                self._refused[cpu] = error
        return False
