# SPDX-License-Identifier: Apache-2.0
"""The kernel's monotonic clock, which traces have; in a time namespace ours is another one."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["kernel_ns", "offset_ns"]

_OFFSETS = Path("/proc/self/timens_offsets")  # Linux 5.6


def offset_ns(path: Path = _OFFSETS) -> int:
    """Return how far CLOCK_MONOTONIC, as this process sees it, is ahead of the kernel's own, in ns."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            clock, seconds, nanoseconds = line.split()
            if clock == "monotonic":
                return int(seconds) * 1_000_000_000 + int(nanoseconds)
    except (OSError, ValueError):
        pass
    return 0


def kernel_ns(ahead: int) -> int:
    """Return the kernel's monotonic time, `ahead` being offset_ns()."""
    return time.monotonic_ns() - ahead
