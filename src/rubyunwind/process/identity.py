# SPDX-License-Identifier: Apache-2.0
"""Which process a pid means: pid and start time together, since the kernel reuses pids."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rubyunwind.errors import AttachError

__all__ = [
    "ProcessIdentity",
    "ProcessStatus",
    "check_attachable",
    "descendants",
    "read_status",
    "running_pids",
    "threads",
    "witness",
]

_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_HIDDEN = (
    "; /proc is mounted with hidepid, which hides processes of others: run as root, give CAP_SYS_PTRACE, "
    "or join the group that its gid option names"
)
# proc(5): with these, not even the directory of another user's process is there; words since Linux 5.8.
_HIDING = ("hidepid=2", "hidepid=invisible", "hidepid=4", "hidepid=ptraceable")
_MOST_STAT = 4096  # bytes; 52 numbers and a name of 15 bytes


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What /proc/PID/stat says. `start_time` is in clock ticks since boot, `state` the main thread's letter.

    `threads` counts those that the kernel still keeps: a process that has ended has one, its zombie.
    """

    pid: int
    comm: str
    state: str
    parent: int
    start_time: int
    kernel_thread: bool
    threads: int = 1

    @property
    def ended(self) -> bool:
        """Whether nothing of the process runs any more.

        A zombie main thread alone does not say so: it may have left the others behind, and it is one for a
        moment while another thread calls exec, which then takes its place (de_thread of fs/exec.c).
        """
        return self.state in "ZX" and self.threads <= 1


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that stays distinguishable from a later one with the same pid."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """Return the identity of the process that has `pid` now; AttachError if there is none."""
        return cls(pid, read_status(pid).start_time)

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        try:
            status = read_status(self.pid)
        except AttachError:
            return False
        return status.start_time == self.start_time and not status.ended

    @property
    def comm(self) -> str:
        """The process's current name (at most 15 bytes); "" once it is gone."""
        try:
            return read_status(self.pid).comm
        except AttachError:
            return ""


def parse_status(pid: int, text: bytes) -> ProcessStatus:
    """Parse a stat file. The name is bracketed but may itself hold brackets and spaces: split at the last."""
    opening, closing = text.find(b"("), text.rfind(b")")
    fields = text[closing + 1 :].split()
    # Behind the name come state (field 3 of proc(5)), ppid (4), flags (9), num_threads (20), starttime (22).
    if opening < 0 or closing < opening or len(fields) < 20:
        raise AttachError(f"process {pid}: its stat file is not understood: {text[:80]!r}")
    return ProcessStatus(
        pid=pid,
        comm=text[opening + 1 : closing].decode("utf-8", "surrogateescape"),
        state=fields[0].decode("ascii", "replace"),
        parent=int(fields[1]),
        start_time=int(fields[19]),
        kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
        threads=int(fields[17]),
    )


def _stat(pid: int) -> bytes:
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_STAT)
    finally:
        os.close(fd)


def read_status(pid: int) -> ProcessStatus:
    """Read /proc/PID/stat. Raises AttachError when there is no such process."""
    if pid <= 0:
        raise AttachError(f"process {pid}: a pid is a positive number")
    try:
        status = parse_status(pid, _stat(pid))
        # The state is read before the number of threads: an exec that falls between them looks like an end.
        # A second look meets the new main thread; a zombie stays one.
        return parse_status(pid, _stat(pid)) if status.ended else status
    except (FileNotFoundError, ProcessLookupError):
        raise AttachError(
            f"process {pid}: no such process (look at `ps`; in a container, pids are those seen from here"
            f"{_HIDDEN if _is_there(pid) and _proc_hides() else ''})"
        ) from None
    except PermissionError:
        raise AttachError(f"process {pid}: /proc hides it from this user; run as root") from None


def _is_there(pid: int) -> bool:
    """Whether a process runs that /proc does not show: most that are looked for in vain have just ended."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _proc_hides() -> bool:
    """Whether /proc is mounted so that it does not show a user the processes of others."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # The last one mounted there is the one that is seen.
    options = [fields[3] for line in mounts if (fields := line.split())[1:3] == ["/proc", "proc"]]
    return bool(options) and any(option in _HIDING for option in options[-1].split(","))


def threads(pid: int) -> list[int]:
    """Return the thread ids of `pid` in ascending order; empty once it is gone."""
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Return the processes that `pid` has forked and those that they have, parents first.

    From /proc/PID/task/TID/children; one that lost its parent is not found.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop(0)
        for thread in threads(parent):
            try:
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text(encoding="ascii").split()
            except OSError:
                continue
            new = [int(child) for child in children]
            found += new
            waiting += new
    return found


def running_pids() -> set[int]:
    """Return the processes that /proc lists, zombies included."""
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - names only


def witness(pid: int) -> int:
    """Return a thread of `pid` whose /proc entry shows the process: the leader, while that runs.

    The leader may end before the other threads (pthread_exit in main); its maps and mem are empty then.
    Returns `pid` itself when no thread is left.
    """
    if _is_seen(pid):
        return pid
    return next(filter(_is_seen, threads(pid)), pid)


def _is_seen(thread: int) -> bool:
    try:
        return read_status(thread).state not in "ZX"
    except AttachError:
        return False


def check_attachable(pid: int) -> ProcessIdentity:
    """Return the identity of a process whose memory can be read.

    Raises AttachError with the reason for: no such process, a thread's id instead of a process's, a
    zombie, a kernel thread, no permission.
    """
    status = read_status(pid)
    if status.kernel_thread:
        raise AttachError(f"process {pid} ({status.comm}) is a kernel thread: it runs no program")
    seen = witness(pid)
    if status.state in "ZX" and seen == pid:
        raise AttachError(f"process {pid} ({status.comm}) has ended and waits for its parent (a zombie)")
    leader = _thread_group(pid)
    if leader not in (0, pid):
        raise AttachError(
            f"{pid} is a thread of process {leader} ({status.comm}); name the process: {leader}"
        )
    try:
        os.close(os.open(f"/proc/{seen}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        raise AttachError(
            f"process {pid} ({status.comm}): its memory may not be read; run as root or give CAP_SYS_PTRACE"
        ) from None
    except OSError as error:
        raise AttachError(
            f"process {pid} ({status.comm}): its memory cannot be read: {error.strerror}"
        ) from None
    return ProcessIdentity(pid, status.start_time)


def _thread_group(pid: int) -> int:
    """Return the process a thread belongs to, 0 if that cannot be told."""
    try:
        for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n"):
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    except OSError:
        pass
    return 0
