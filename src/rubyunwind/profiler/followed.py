# SPDX-License-Identifier: Apache-2.0
"""FollowedPids: the kernel side's map of who is sampled, and how a process is taken out of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rubyunwind.abi import FollowFlag
from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.identity import read_status

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from rubyunwind.profiler.native_tables import TracerMaps

__all__ = ["FollowedPids"]

# Seconds between looks at a process that is to be taken out and still runs.
_SOONEST, _LATEST = 0.004, 1.0


class FollowedPids:
    """Who is sampled. With `everything` all are, but those that are ignored; else those in the map only."""

    def __init__(self, collection: TracerMaps, *, everything: bool) -> None:
        self._map = collection.maps["followed_pids"]
        self._ignored: set[int] = set()
        self._leaving: dict[
            int, tuple[float, float]
        ] = {}  # when to look at each again, and the wait after it
        if not everything:
            self._map[0] = FollowFlag.PROCESS

    def __contains__(self, pid: int) -> bool:
        return pid in self._map

    def ignore(self, pid: int) -> None:
        """Where everything is sampled, leave this process out, until it ends or executes another program."""
        self._map[pid] = FollowFlag.NEVER
        self._ignored.add(pid)

    def sample(self, pid: int, flags: FollowFlag) -> bool:
        """Have the kernel side sample a process; False for one that has ended.

        It takes the entry out when the process ends. One that ended before would stay in, and whoever gets
        its number next would be sampled.
        """
        self._map[pid] = flags
        try:
            if not read_status(pid).ended:
                return True
        except RubyUnwindError:
            pass
        self._map.pop(pid, None)
        return False

    def unfollow(self, pid: int, processes: Container[int]) -> None:
        """Take a process that ends out of what is sampled, once nothing of it runs.

        The kernel side does that itself where it can tell the last thread of a process. One that has lost its
        memory already may run on for a moment, and would then stay in for whoever gets its number next.
        `processes`: those that are known to run.
        """
        self._leaving[pid] = (0.0, _SOONEST)
        self._let_go(pid, processes)

    def due(self) -> Iterable[float]:
        """Return when `look` has something to do (monotonic seconds)."""
        return (due for due, _ in self._leaving.values())

    def look(self, now: float, processes: Container[int]) -> None:
        """Take out those that have come to their end."""
        for pid, (due, _) in list(self._leaving.items()):
            if due <= now:
                self._let_go(pid, processes)

    def _let_go(self, pid: int, processes: Container[int]) -> None:
        if pid not in self._map:
            del self._leaving[pid]
            return
        try:
            ended = read_status(pid).ended
        except RubyUnwindError:
            ended = True
        if ended:
            self._map.pop(pid, None)
        if ended or pid in processes:
            del self._leaving[pid]
            return
        _, wait = self._leaving[pid]
        self._leaving[pid] = (time.monotonic() + wait, min(2 * wait, _LATEST))

    def drop_all_but(self, running: set[int]) -> None:
        """Forget ignored processes that have ended unseen."""
        for pid in self._ignored - running:
            self._map.pop(pid, None)
        self._ignored &= running

    def clear(self) -> None:
        """Wait for nobody any more."""
        self._leaving.clear()
