# SPDX-License-Identifier: Apache-2.0
"""Capabilities of Linux that matter here, and which of them this thread has."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

__all__ = ["Capability", "effective", "holds"]


class Capability(IntEnum):
    """Bit numbers of include/uapi/linux/capability.h."""

    CAP_SYS_PTRACE = 19
    CAP_SYS_ADMIN = 21
    CAP_SYSLOG = 34
    CAP_PERFMON = 38  # this and BPF: Linux 5.8; before, and still, CAP_SYS_ADMIN has both
    CAP_BPF = 39
    CAP_CHECKPOINT_RESTORE = 40  # Linux 5.9; so has this


_BY_ADMIN = frozenset({Capability.CAP_PERFMON, Capability.CAP_BPF, Capability.CAP_CHECKPOINT_RESTORE})


def effective() -> int:
    """Return the mask of effective capabilities of this thread; all of them if the kernel does not tell."""
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return (1 << 64) - 1


def holds(mask: int, capability: Capability) -> bool:
    """Whether a mask has a capability, or CAP_SYS_ADMIN where that stands for it."""
    admin = bool(mask >> Capability.CAP_SYS_ADMIN & 1)
    return bool(mask >> capability & 1) or (admin and capability in _BY_ADMIN)
