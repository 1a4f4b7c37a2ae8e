# SPDX-License-Identifier: Apache-2.0
"""Which container a process is in, by the names that container runtimes give to control groups."""

from __future__ import annotations

import os
import re
from functools import lru_cache

__all__ = ["container_of", "parse_cgroup"]

# Bytes of a cgroup file that are read: a line for each hierarchy, of which there are some twenty.
_MOST = 1 << 16

# The last part of a path. Docker, containerd, CRI-O, podman: 64 digits, alone or behind the name of the
# runtime, as a scope where systemd manages the groups. Amazon ECS: 32 digits and a number. LXC and
# systemd-nspawn: a name.
_SHAPES = (
    re.compile(r"(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?"),
    re.compile(r"([0-9a-f]{32}-[0-9]{1,10})"),
    re.compile(r"lxc\.payload\.(.+)"),
    re.compile(r"machine-(?!qemu)(.+)\.scope"),
)
# What watches over a container for CRI-O and podman runs in a group of its own, beside it.
_MONITOR = re.compile(r"(?:crio|libpod)-conmon-")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@lru_cache(maxsize=256)
def parse_cgroup(text: str) -> str | None:
    """Return the id of the innermost container in a /proc/PID/cgroup file, of v1 or v2; None: it has none.

    In a cgroup namespace of its own the paths begin at the reader's group: what runs beside the reader in
    its container is in no container then.
    """
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        before = ""
        found = None
        for part in path.split("/"):
            if _MONITOR.match(part):
                found = None
            elif before in ("lxc", "lxc.payload"):
                found = part
            else:
                found = next((match[1] for shape in _SHAPES if (match := shape.fullmatch(part))), found)
            before = part
        if found:
            return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), found)
    return None


def container_of(pid: int) -> str | None:
    """Return the id of the container that a process is in; None if it is in none, or has ended."""
    try:
        fd = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parse_cgroup(os.read(fd, _MOST).decode("utf-8", "surrogateescape"))
    except OSError:
        return None
    finally:
        os.close(fd)
