# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of the agent and of the machine: CPU time, memory, descriptors."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rubyunwind.errors import AttachError
from rubyunwind.process.identity import read_status, running_pids, threads

__all__ = ["Size", "cpu_of", "size_of", "work_of_user_processes"]

# CPU time of everything that runs or has run: ns in version 1 of control groups, else us.
_V1 = Path("/sys/fs/cgroup/cpuacct/cpuacct.usage")
_V2 = Path("/sys/fs/cgroup/cpu.stat")


class Size(NamedTuple):
    """How much a process has at a moment: KiB of memory, and descriptors."""

    rss: int
    descriptors: int


def size_of(pid: int) -> Size:
    """Return what a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    (rss,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return Size(rss, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208 - names only


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process has used, by its threads' schedstat; 0 for one that has ended."""
    used = 0
    for thread in threads(pid):
        with suppress(OSError):
            used += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return used / 1e9


def work_of_user_processes(but: int) -> float:
    """Return the CPU seconds of all processes so far, also of those that have ended.

    Without kernel threads, which are not sampled, and the process `but`.
    """
    if _V1.exists():
        total = int(_V1.read_text()) / 1e9
    else:
        total = int(_V2.read_text().split()[1]) / 1e6  # usage_usec is the first
    return total - cpu_of(but) - sum(cpu_of(pid) for pid in running_pids() if _is_kernel_thread(pid))


def _is_kernel_thread(pid: int) -> bool:
    try:
        return read_status(pid).kernel_thread
    except AttachError:
        return False
