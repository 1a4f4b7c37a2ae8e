# SPDX-License-Identifier: Apache-2.0
"""Processes that the kernel side has reported: which is looked at next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rubyunwind.abi import EVENT_TYPE_GENERIC_PID

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from rubyunwind.bpf.maps import Map

__all__ = ["Reports"]

_GENERIC_PID = EVENT_TYPE_GENERIC_PID.to_bytes(4, "little")


class Reports:
    """Takes pids off the kernel side's list and has them looked at; what has to wait stays here."""

    def __init__(self, maps: Mapping[str, Map]) -> None:
        self._maps = maps
        self._waiting: dict[int, bool] = {}  # whether it was only forked; in the order in which they came

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> None:
        """Take what was reported off the list."""
        # Re-arm first: what comes while we read is then announced again, not forgotten.
        self._maps["inhibit_events"].discard(_GENERIC_PID)
        events = self._maps["pid_events"]
        for key in list(iter(events)):  # a list of the map itself would count it first, call by call
            events.discard(key)
            # Those that were sampled before those that have only been forked.
            self._waiting[int.from_bytes(key, "little")] = key not in self._maps["reported_pids"]

    def handle(self, look: Callable[[int], bool], known: Container[int], seconds: float) -> None:
        """Call `look` for so much CPU time; what returns False is not to be reported again for 30 s.

        Those that are known come first, as what is known of them does not hold any more, and all of them.
        Then come those that were sampled, then those that have only been forked.
        """
        end = time.thread_time() + seconds
        for pid in sorted(self._waiting, key=lambda pid: (pid not in known, self._waiting[pid])):
            if pid not in known and time.thread_time() >= end:
                break
            del self._waiting[pid]
            if look(pid):
                self.let_through(pid)

    def let_through(self, pid: int) -> None:
        """Have a process reported again as soon as there is something to say of it."""
        self._maps["reported_pids"].discard(_key(pid))

    def drop_all_but(self, running: Container[int]) -> None:
        """Let go of pids that no process has any more."""
        reported = self._maps["reported_pids"]
        for key in list(iter(reported)):
            if int.from_bytes(key, "little") not in running:
                reported.discard(key)


def _key(pid: int) -> bytes:
    return pid.to_bytes(4, "little")
