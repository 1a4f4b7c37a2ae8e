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

from rubyunwind.bpf.perf_event import PerfEvent, perf_event_open
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from rubyunwind.bpf.program import Program

__all__ = ["RATE_LIMIT", "Ticks", "online_cpus", "out_of_step", "rate_in_force"]

RATE_LIMIT = Path("/proc/sys/kernel/perf_event_max_sample_rate")
# The part of a period that is farthest from any simple fraction.
_GOLDEN = (5**0.5 - 1) / 2
_ONLINE = Path("/sys/devices/system/cpu/online")


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

    def start(self) -> None:
        """Begin on the CPUs that are online and do not tick yet. Raises BpfError."""
        for cpu in online_cpus():
            if cpu in self._events:
                continue
            try:
                event = perf_event_open(pid=-1, cpu=cpu, frequency=self._rate)
            except BpfError as error:
                if error.errno == errno.ENODEV:  # it went offline meanwhile
                    continue
                raise
            self._events[cpu] = event
            event.attach(self._program)

    def close(self) -> None:
        """Stop sampling and close the events. Closing twice is harmless."""
        for event in self._events.values():
            event.close()
        self._events.clear()

    def __enter__(self) -> Ticks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def online_cpus(path: Path = _ONLINE) -> list[int]:
    """Return the CPUs in a list as the kernel writes them, such as "0-3,5"."""
    cpus: list[int] = []
    for part in path.read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
