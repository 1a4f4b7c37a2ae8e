# SPDX-License-Identifier: Apache-2.0
"""How much is kept at a time where everything that runs is profiled."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

__all__ = ["Limits", "limits_by_descriptors"]

# The kernel's tables have room for some 2000 processes of 200 prefixes each (pid_mappings of maps.h).
_MOST_PROCESSES = 2048
_MOST_FILES = 2048
_FEWEST = 32


class Limits(NamedTuple):
    """The most processes that are registered, and files that are open; each takes a descriptor."""

    processes: int = _MOST_PROCESSES
    files: int = _MOST_FILES


def limits_by_descriptors() -> Limits:
    """Return what the descriptors that this process may still open allow: half of them are left for it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Limits()
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    share = max((soft - used) // 4, _FEWEST)
    return Limits(min(share, _MOST_PROCESSES), min(share, _MOST_FILES))
