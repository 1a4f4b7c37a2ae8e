# SPDX-License-Identifier: Apache-2.0
"""The CPUs of this machine that are online."""

from __future__ import annotations

from pathlib import Path

__all__ = ["online_cpus"]

_ONLINE = Path("/sys/devices/system/cpu/online")


def online_cpus(path: Path = _ONLINE) -> list[int]:
    """Return the CPUs in a list as the kernel writes them, such as "0-3,5"."""
    cpus: list[int] = []
    for part in path.read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
