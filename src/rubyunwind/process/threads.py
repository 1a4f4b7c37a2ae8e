# SPDX-License-Identifier: Apache-2.0
"""What the threads of a process are doing, from /proc alone: cheap enough to ask at every sample."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

__all__ = ["ENDED", "ThreadInfo", "read_thread", "read_wait_channel", "thread_info"]

ENDED = ("Z", "X")
"""The states of a thread that runs no more."""

_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread at one moment.

    `state` is the kernel's letter (R running or ready, S asleep, D in uninterruptible sleep, T stopped,
    t stopped by a tracer, Z ended). `cpu_ns` is the time on a CPU so far: it grows exactly when the thread
    runs, though while it stays on a CPU the kernel brings it up to date once a tick (1 to 10 ms).
    """

    tid: int
    name: str
    state: str
    cpu_ns: int


def thread_info(pid: int) -> tuple[ThreadInfo, ...]:
    """Return the threads of `pid` by ascending id; empty once it is gone."""
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        tids = sorted(int(name) for name in os.listdir(folder))  # noqa: PTH208 (a descriptor, no path)
        found = [_read(folder, tid) for tid in tids]
    except OSError:
        return ()
    finally:
        os.close(folder)
    return tuple(thread for thread in found if thread is not None)


def read_thread(pid: int, tid: int) -> ThreadInfo | None:
    """Return one thread of `pid`, None if it is gone."""
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read(folder, tid)
    finally:
        os.close(folder)


def read_wait_channel(pid: int, tid: int) -> str:
    """Return the kernel function in which a thread sleeps; "" if it does not or the kernel does not tell."""
    try:
        name = _contents(f"/proc/{pid}/task/{tid}/wchan", None).decode("ascii", "replace")
    except OSError:
        return ""
    return "" if name == "0" else name


def _read(folder: int, tid: int) -> ThreadInfo | None:
    try:
        text = _contents(f"{tid}/stat", folder)
    except OSError:
        return None
    cpu_ns = 0
    # The first number is se.sum_exec_runtime. All three are 0 where the kernel keeps no such account.
    with contextlib.suppress(OSError, ValueError, IndexError):
        cpu_ns = int(_contents(f"{tid}/schedstat", folder).split()[0])
    return _parse(tid, text, cpu_ns)


def _parse(tid: int, stat: bytes, cpu_ns: int) -> ThreadInfo | None:
    """Make sense of a thread's stat file; the clock ticks in it serve when `cpu_ns` is 0."""
    opening, closing = stat.find(b"("), stat.rfind(b")")
    # Behind the name: state (field 3 of proc(5)) ... utime (14), stime (15).
    fields = stat[closing + 1 :].split(None, 13)
    if opening < 0 or closing < opening or len(fields) < 13:
        return None
    return ThreadInfo(
        tid=tid,
        name=stat[opening + 1 : closing].decode("utf-8", "surrogateescape"),
        state=fields[0].decode("ascii", "replace"),
        cpu_ns=cpu_ns or (int(fields[11]) + int(fields[12])) * _NS_PER_TICK,
    )


def _contents(path: str, folder: int | None) -> bytes:
    # Path.read_bytes takes three times as long.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
