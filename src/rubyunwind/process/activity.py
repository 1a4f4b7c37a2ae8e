# SPDX-License-Identifier: Apache-2.0
"""Whether a thread is on a CPU at this moment, and if it only waits for one, what it did before.

The kernel's letter R means both, and for a busy machine that is a great difference: a thread that slept and
waits for a CPU still has the stack of its sleep. But it also counts how often a thread came to a CPU
(the third number of schedstat) and how often it left one, to sleep or because it had to (the two
numbers of context switches in status). Who is on a CPU has come once more than it left.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

__all__ = ["Activity", "ActivityWatch"]


@dataclass(frozen=True, slots=True)
class Activity:
    """A thread at one moment. `name` is the kernel's, at most 15 bytes.

    "running": it is on a CPU, or the kernel does not keep the counts. "preempted": it had to leave one and
    is ready. "woken": it slept before, and is ready; or it cannot be told which of the two. "asleep": the
    rest.
    """

    tid: int
    name: str
    state: Literal["running", "preempted", "woken", "asleep"]


class ActivityWatch:
    """Looks at the threads of one process, one after the other, again and again.

    Holds two descriptors for the last thread, since to open the files takes as long as to read them.
    """

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._folder = f"{proc}/{pid}/task/"
        self._tid = 0
        self._files: tuple[int, int] | None = None
        self._voluntary = self._forced = -1
        self._slept = True

    def look(self, tid: int) -> Activity | None:
        """Return what a thread does, None if it is gone.

        What it did before is known only if it was looked at the last time, too.
        """
        if tid != self._tid or self._files is None:
            self.close()
            self._tid, self._voluntary, self._forced = tid, -1, -1
            try:
                self._files = (_open(f"{self._folder}{tid}/status"), _open(f"{self._folder}{tid}/schedstat"))
            except OSError:
                return None
        try:
            arrivals = _third_number(os.pread(self._files[1], 128, 0)) if self._files[1] >= 0 else 0
            status = os.pread(self._files[0], 8192, 0)
        except OSError:
            return None
        name = _field(status, b"Name:").decode("utf-8", "surrogateescape")
        voluntary = int(_field(status, b"\nvoluntary_ctxt_switches:") or 0)
        forced = int(_field(status, b"\nnonvoluntary_ctxt_switches:") or 0)
        before = self._voluntary, self._forced
        self._voluntary, self._forced = voluntary, forced
        if _field(status, b"\nState:")[:1] != b"R":
            self._slept = True
            return Activity(tid, name, "asleep")
        if not arrivals or arrivals > voluntary + forced:
            self._slept = False
            return Activity(tid, name, "running")
        if voluntary != before[0]:
            self._slept = True
        elif forced != before[1]:
            self._slept = False
        return Activity(tid, name, "woken" if self._slept else "preempted")

    def close(self) -> None:
        """Close the descriptors; the next look opens them again."""
        for fd in self._files or ():
            if fd >= 0:
                os.close(fd)
        self._files = None


def _open(path: str) -> int:
    """Open a file; -1 for a schedstat that this kernel does not have."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        if path.endswith("/status"):
            raise
        return -1


def _third_number(schedstat: bytes) -> int:
    numbers = schedstat.split()
    return int(numbers[2]) if len(numbers) > 2 else 0


def _field(status: bytes, name: bytes) -> bytes:
    """Return the value of a line of a status file, b"" if there is none."""
    start = status.find(name)
    if start < 0:
        return b""
    start += len(name)
    return status[start : status.find(b"\n", start)].strip()
