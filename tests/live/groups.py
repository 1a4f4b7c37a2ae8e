# SPDX-License-Identifier: Apache-2.0
"""Control groups of a test's own, with bounds on what may be in them, and an end for all that is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .recorder import until

BASE = Path("/sys/fs/cgroup")


def _make(name: str) -> tuple[Path, ...]:
    """Make a group in which processes and memory can be bounded; of version 1 there is one for each."""
    if (BASE / "cgroup.controllers").exists():
        with suppress(OSError):
            (BASE / "cgroup.subtree_control").write_text("+pids +memory")
        group = BASE / name
        group.mkdir()
        return (group,)
    made = tuple(BASE / controller / name for controller in ("pids", "memory"))
    for group in made:
        group.mkdir()
    return made


def _bound(groups: tuple[Path, ...], processes: int, memory: int) -> None:
    (groups[0] / "pids.max").write_text(str(processes))
    limit = groups[-1] / ("memory.max" if len(groups) == 1 else "memory.limit_in_bytes")
    limit.write_text(str(memory))


def members(group: Path) -> list[int]:
    """The processes in a group."""
    with suppress(OSError):
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    return []


def _kill(group: Path) -> None:
    """Kill what is in a group, which cannot grow meanwhile."""
    with suppress(OSError):
        (group / "pids.max").write_text("1")
    if (group / "cgroup.kill").exists():
        (group / "cgroup.kill").write_text("1")

    def empty() -> bool:
        for pid in members(group):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members(group)

    until(empty, "somebody is left in the group")


@contextmanager
def bounded_group(processes: int, memory: int) -> Iterator[tuple[Path, ...]]:
    """A group of at most so many processes and bytes; skips where none can be made. All in it are killed."""
    name = f"rubyunwind-test-{os.getpid()}"
    try:
        groups = _make(name)
        _bound(groups, processes, memory)
    except OSError as error:
        for group in BASE.glob(f"**/{name}"):
            group.rmdir()
        pytest.skip(f"no control group with bounds can be made here: {error}")
    try:
        yield groups
    finally:
        _kill(groups[0])
        for group in groups:
            until(lambda group=group: not members(group), "somebody is left in the group")  # type: ignore[misc]
            group.rmdir()
