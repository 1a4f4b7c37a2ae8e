# SPDX-License-Identifier: Apache-2.0
"""The clock: a perf event on every CPU, whose program looks whether the process that runs is followed.

Not an event per thread that new threads and children inherit: the kernel hands such events from task to
task at a switch, and an event that a short-lived task takes with it takes the time it has counted, too. A
program that forks many children would lose nearly all of its samples, and nobody would know.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.bpf.perf_event import PerfEvent, perf_event_open
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from rubyunwind.bpf.program import Program

__all__ = ["RATE_LIMIT", "Ticks", "out_of_step", "rate_in_force"]

RATE_LIMIT = Path("/proc/sys/kernel/perf_event_max_sample_rate")
# The part of a period that is farthest from any simple fraction.
_GOLDEN = (5**0.5 - 1) / 2


def rate_in_force(rate: int, path: Path = RATE_LIMIT) -> int:
    """Return the rate that the kernel allows now: it lowers its limit when ticks take long."""
    try:
        return min(rate, int(path.read_text()))
    except (OSError, ValueError):
        return rate


def out_of_step(period: float, rate: int) -> float:
    """Return about that many seconds, but such that what is done with that period meets ticks by chance only.

    Where one is a multiple of the other all ticks find the CPU at the same work, or none: we would hide
    what else runs behind our own wake-ups.
    """
    ticks = period * rate
    if ticks >= 0.5:
        return max(round(ticks - _GOLDEN) + _GOLDEN, _GOLDEN) / rate
    return 1 / (rate * (round(1 / ticks - _GOLDEN) + _GOLDEN))


class Ticks:
    """Runs `program` `rate` times a second on every CPU that is online. Owns the events."""

    def __init__(self, program: Program, rate: int) -> None:
        self._program = program
        self._rate = rate
        self._events: dict[int, PerfEvent] = {}
        self._started = False

    def start(self) -> None:
        """Begin on the CPUs that are online and do not tick yet. Raises BpfError."""
        self._started = True
        for cpu in online_cpus():
            try:
                self.add(cpu)
            except BpfError as error:
                if error.errno != errno.ENODEV:  # it went offline meanwhile
                    raise

    def add(self, cpu: int) -> None:
        """Tick on that CPU, too, if it has been started and that CPU does not tick yet. Raises BpfError."""
        if self._started and cpu not in self._events:
            event = perf_event_open(pid=-1, cpu=cpu, frequency=self._rate)
            try:
                event.attach(self._program)
            except BaseException:
                event.close()
                raise
            self._events[cpu] = event

    def drop(self, cpu: int) -> None:
        """Close the event of a CPU, if there is one: once it was offline it never ticks again."""
        event = self._events.pop(cpu, None)
        if event is not None:
            event.close()

    def close(self) -> None:
        """Stop sampling and close the events. Closing twice is harmless."""
        self._started = False
        for cpu in list(self._events):
            self.drop(cpu)

    def __enter__(self) -> Ticks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
