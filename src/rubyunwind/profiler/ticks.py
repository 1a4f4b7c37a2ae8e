# SPDX-License-Identifier: Apache-2.0
"""The clock: perf events that run the tracer on the threads of a process, or on every CPU."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rubyunwind.bpf.perf_event import PerfEvent, perf_event_open
from rubyunwind.errors import AttachError, BpfError
from rubyunwind.process.identity import threads

if TYPE_CHECKING:
    from rubyunwind.bpf.program import Program

__all__ = ["Ticks"]

_ROUNDS = 20


class Ticks:
    """Owns the events. Everything they sample runs `program`. A context manager.

    An event is bound to one thread and inherited by what that thread starts later: threads, and with
    `children` forked processes. Threads that were there before need an event each.
    """

    def __init__(self, program: Program, rate: int, *, children: bool = True) -> None:
        self._program = program
        self._rate = rate
        self._children = children
        self._events: list[PerfEvent] = []
        self._threads: set[int] = set()

    def follow(self, pid: int, *, from_exec: bool = False) -> None:
        """Sample all threads of `pid`. With `from_exec` its one thread, once it executes another program.

        Raises AttachError if the process has gone, BpfError if the kernel refuses.
        """
        # Threads may start while we look: go on until a look finds none that is new.
        tried: set[int] = set()
        for _ in range(_ROUNDS):
            new = set(threads(pid)) - self._threads - tried
            if not new:
                break
            tried |= new
            self._threads |= {thread for thread in sorted(new) if self._open(thread, from_exec)}
        if not self._threads & (tried | set(threads(pid))):
            raise AttachError(f"process {pid} ended before it could be sampled")

    def follow_all(self) -> None:
        """Sample whatever runs, on every CPU that is online. Raises BpfError."""
        for cpu in sorted(os.sched_getaffinity(0) | set(_online_cpus())):
            self._attach(perf_event_open(pid=-1, cpu=cpu, frequency=self._rate))

    def _open(self, thread: int, from_exec: bool) -> bool:
        """Open the event of a thread; False if the thread has ended."""
        try:
            event = perf_event_open(
                pid=thread,
                frequency=self._rate,
                inherit=self._children,
                inherit_thread=not self._children,
                disabled=from_exec,
                enable_on_exec=from_exec,
            )
        except BpfError as error:
            if error.errno == errno.ESRCH:  # it ended meanwhile
                return False
            if error.errno != errno.EINVAL or self._children:
                raise
            # Before 5.13 threads are inherited together with children; the tracker ignores those.
            event = perf_event_open(
                pid=thread,
                frequency=self._rate,
                inherit=True,
                disabled=from_exec,
                enable_on_exec=from_exec,
            )
        self._attach(event)
        return True

    def _attach(self, event: PerfEvent) -> None:
        self._events.append(event)
        event.attach(self._program)

    def close(self) -> None:
        """Stop sampling and close the events. Closing twice is harmless."""
        for event in self._events:
            event.close()
        self._events.clear()

    def __enter__(self) -> Ticks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _online_cpus() -> list[int]:
    """Parse /sys/devices/system/cpu/online, which reads "0-3,5"."""
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
