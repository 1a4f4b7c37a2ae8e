# SPDX-License-Identifier: Apache-2.0
"""The process tracker: which processes are profiled, and when each has to be looked at again."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rubyunwind.abi import EVENT_TYPE_GENERIC_PID, FollowFlag
from rubyunwind.errors import DecodeError, RubyUnwindError
from rubyunwind.process.identity import descendants, read_status
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler.files import FileCache, is_code
from rubyunwind.profiler.native_tables import NativeTables
from rubyunwind.profiler.process import ProfiledProcess

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rubyunwind.elf.deltas import StackDeltas
    from rubyunwind.profiler.native_tables import TracerMaps

__all__ = ["ProcessTracker"]

# A process that has just changed (ld.so maps one library after the other) is looked at again soon, one
# that is quiet ever more seldom. What happens in between is reported by the kernel side as it samples.
_SOONEST, _LATEST = 0.004, 1.0
# Processes that have ended, kept for the traces that are still on their way.
_ENDED = 64

_log = logging.getLogger(__name__)


class ProcessTracker:
    """Registers processes with the kernel side, follows what they map, and drops them when they end.

    With `children`, processes that a known one forks are taken in; with `everything`, all that run. With
    `force_version` every Ruby is taken for that release.
    """

    def __init__(
        self,
        collection: TracerMaps,
        *,
        children: bool = True,
        everything: bool = False,
        force_version: str | None = None,
    ) -> None:
        self._collection = collection
        self._maps = collection.maps
        self._children = children
        self._everything = everything
        self._force_version = force_version
        self.files = FileCache()
        self._tables = NativeTables(collection)
        if not everything:
            self._maps["followed_pids"][0] = FollowFlag.PROCESS  # only what is in the map is sampled
        self._processes: dict[int, ProfiledProcess] = {}
        self._ended: dict[int, ProfiledProcess] = {}
        self._due: dict[int, tuple[float, float]] = {}
        self._leaving: dict[int, tuple[float, float]] = {}  # that are to be unfollowed, and when to look
        self.runtimes: set[str] = set()  # such as "ruby 3.1.2"

    @property
    def processes(self) -> dict[int, ProfiledProcess]:
        """The processes that run, by pid."""
        return self._processes

    @property
    def known(self) -> dict[int, ProfiledProcess]:
        """The processes that run, and the last ones that have ended, by pid."""
        return {**self._ended, **self._processes}

    def get(self, pid: int) -> ProfiledProcess | None:
        """Return a process, also one that has ended lately."""
        return self._processes.get(pid) or self._ended.get(pid)

    def follow(self, pid: int, *, from_exec: bool = False) -> ProfiledProcess:
        """Register `pid` and have it sampled, with `from_exec` once it has executed another program.

        With `children`, so are the processes it has forked and will fork. Raises RubyUnwindError if it has
        ended or may not be read.
        """
        process = self.add(pid, announced_only=from_exec)
        if self._everything:
            return process
        flags = FollowFlag.PROCESS | (FollowFlag.CHILDREN if self._children else 0)
        self._sample(pid, flags | (FollowFlag.FROM_EXEC if from_exec else 0))
        # What forks while we look is followed by then, or found at the next look.
        seen: set[int] = set()
        while self._children and (new := set(descendants(pid)) - seen):
            seen |= new
            for child in new:
                if child not in self._maps["followed_pids"] and self._sample(child, flags):
                    with suppress(RubyUnwindError):
                        self.add(child)
        return process

    def _sample(self, pid: int, flags: FollowFlag) -> bool:
        """Have the kernel side sample a process; False for one that has ended.

        It takes the entry out when the process ends. One that ended before would stay in, and whoever gets
        its number next would be sampled.
        """
        followed = self._maps["followed_pids"]
        followed[pid] = flags
        try:
            if not read_status(pid).ended:
                return True
        except RubyUnwindError:
            pass
        followed.pop(pid, None)
        return False

    def add(self, pid: int, *, announced_only: bool = False) -> ProfiledProcess:
        """Register `pid` with the kernel side. With `announced_only` it is about to execute its real program.

        Raises RubyUnwindError if it has ended or may not be read.
        """
        known = self._processes.get(pid)
        if known is not None:
            return known
        process = ProfiledProcess(
            pid, self._collection, self.files, self._tables, force_version=self._force_version
        )
        try:
            if not announced_only and (parent := self.get(read_status(pid).parent)) is not None:
                process.inherit(parent)
            process.announce()
            if not announced_only:
                process.sync()
                self._note_runtime(process)
        except BaseException:
            try:
                process.forget()
            finally:
                process.close()
            raise
        self._ended.pop(pid, None)
        self._processes[pid] = process
        if not announced_only:
            self._schedule(pid, _SOONEST)
        return process

    def expect(self, paths: Iterable[Path]) -> None:
        """Register files before a process maps them: what it samples there is unwound from the start."""
        files = [file for path in paths if (file := self.files.expect(path)) is not None]
        with LiveProcess(os.getpid()) as ours:  # every process has the same vdso
            for mapping in ours.mappings():
                if is_code(mapping) and not mapping.is_file:
                    file = self.files.open(ours, mapping)
                    files += [file] if file is not None else []
        fresh: dict[int, StackDeltas] = {}
        for file in files:
            if file.file_id not in self._tables:
                with suppress(DecodeError):
                    fresh[file.file_id] = file.deltas()
        self._tables.add(fresh)

    def run(self) -> float:
        """Handle what the kernel side reported and what is due; return seconds until the next call is."""
        self._handle_reports()
        now = time.monotonic()
        for pid, (due, wait) in list(self._due.items()):
            if due <= now:
                self._sync(pid, wait)
        for pid, (due, _) in list(self._leaving.items()):
            if due <= now:
                self._let_go(pid)
        looks = (*self._due.values(), *self._leaving.values())
        soonest = min((due for due, _ in looks), default=now + _LATEST)
        return max(0.0, soonest - time.monotonic())

    def _handle_reports(self) -> None:
        # Re-arm first: what comes while we read is then announced again, not forgotten.
        self._maps["inhibit_events"].pop(EVENT_TYPE_GENERIC_PID.to_bytes(4, "little"), None)
        events = self._maps["pid_events"]
        waiting = list(events)
        for key in waiting:
            events.pop(key, None)
        while waiting:
            # A child may come before its parent: those that nobody knows yet are asked about again.
            unknown = [key for key in waiting if not self._handle_report(int.from_bytes(key, "little"))]
            for key in set(waiting) - set(unknown):
                self._maps["reported_pids"].pop(key, None)
            if len(unknown) == len(waiting):
                break  # not ours: they stay in reported_pids, and are not reported again for a while
            waiting = unknown

    def _handle_report(self, pid: int) -> bool:
        """Look at a process that was reported; False if it does not belong to what is profiled."""
        if pid in self._processes:
            self._sync(pid, _SOONEST)
            return True
        if not self._wanted(pid):
            return False
        try:
            self.add(pid)
        except RubyUnwindError as error:
            _log.debug("pid %d is not followed: %s", pid, error)
            self._unfollow(pid)  # it may have ended before it was looked at
        return True

    def _wanted(self, pid: int) -> bool:
        """Whether a process that was reported belongs to what is profiled: the kernel side follows forks."""
        return self._everything or pid in self._maps["followed_pids"]

    def _sync(self, pid: int, wait: float) -> None:
        process = self._processes[pid]
        try:
            if process.identity is None or not process.identity.is_alive():
                raise RubyUnwindError(f"process {pid} has ended")
            changed = process.sync()
            self._note_runtime(process)
        except RubyUnwindError as error:
            _log.debug("pid %d: %s", pid, error)
            self._end(pid)
            return
        self._schedule(pid, _SOONEST if changed else min(wait * 2, _LATEST))

    def _note_runtime(self, process: ProfiledProcess) -> None:
        if process.ruby is not None:
            self.runtimes.add(f"ruby {process.ruby.version}")

    def _schedule(self, pid: int, wait: float) -> None:
        self._due[pid] = (time.monotonic() + wait, wait)

    def _end(self, pid: int) -> None:
        process = self._processes.pop(pid)
        self._due.pop(pid, None)
        self._ended[pid] = process
        try:
            process.forget()
            self._unfollow(pid)
        finally:
            process.close()
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    def _unfollow(self, pid: int) -> None:
        """Take a process that ends out of what is sampled, once nothing of it runs.

        The kernel side does that itself where it can tell the last thread of a process. One that has lost its
        memory already may run on for a moment, and would then stay in for whoever gets its number next.
        """
        self._leaving[pid] = (0.0, _SOONEST)
        self._let_go(pid)

    def _let_go(self, pid: int) -> None:
        followed = self._maps["followed_pids"]
        try:
            ended = read_status(pid).ended
        except RubyUnwindError:
            ended = True
        if ended:
            followed.pop(pid, None)
        if ended or pid in self._processes or pid not in followed:
            del self._leaving[pid]
            return
        _, wait = self._leaving[pid]
        self._leaving[pid] = (time.monotonic() + wait, min(2 * wait, _LATEST))

    def close(self) -> None:
        """Drop all processes and files. Twice is harmless."""
        for process in (*self._processes.values(), *self._ended.values()):
            process.close()
        self._processes.clear()
        self._ended.clear()
        self._due.clear()
        self._leaving.clear()
        self.files.close()
