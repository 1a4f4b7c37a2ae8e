# SPDX-License-Identifier: Apache-2.0
"""The process tracker: which processes are profiled, and when each has to be looked at again."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rubyunwind.abi import FollowFlag
from rubyunwind.errors import BpfError, RubyUnwindError
from rubyunwind.process.identity import descendants, read_status, running_pids
from rubyunwind.profiler.budget import Budget
from rubyunwind.profiler.code_registry import CodeRegistry
from rubyunwind.profiler.files import given_up_notes
from rubyunwind.profiler.followed import FollowedPids
from rubyunwind.profiler.limits import Limits
from rubyunwind.profiler.process import ProfiledProcess
from rubyunwind.profiler.process_notes import process_notes
from rubyunwind.profiler.reports import Reports

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rubyunwind.profiler.native_tables import TracerMaps

__all__ = ["TOO_MANY", "ProcessTracker"]

TOO_MANY = (
    "processes came faster than a quarter of the time of one CPU allows to look at them: samples of those "
    "that had to wait are counted as not registered yet"
)

# A process that has just changed (ld.so maps one library after the other) is looked at again soon, one
# that is quiet ever more seldom. What happens in between is reported by the kernel side as it samples, and
# sooner than the next sample nobody needs to know: a look at half the time between two suffices.
_SOONEST, _LATEST = 0.004, 1.0
_OF_A_TICK = 0.5
# The part of that by which a look may be early, as we are awake anyhow.
_EARLY = 0.25
# Processes that have ended, kept for traces that are still on their way and for what is to be said of them.
_ENDED = 64
# Seconds between looks for what was left behind.
_SWEEP = 2.0
# Seconds that a call may register processes for: then it is the turn of the traces, and the rest waits.
_LONGEST = 0.1
# A look that takes long (a process may map what it likes) is followed by a pause of so many times its length.
_PAUSE = 20

# Processes that come and go may take a quarter of the time of one CPU, and half a second at once: a machine
# full of them when it begins. A fork bomb gets no more. It goes on when so much may be done at a stretch.
_SHARE, _BURST, _STRETCH = 0.25, 0.5, 0.01
# So often used up is no machine that was full when it began.
_OFTEN = 20

_log = logging.getLogger(__name__)
# Nothing is said to those who have not set up logging: notes and stats say it, too.
logging.getLogger("rubyunwind").addHandler(logging.NullHandler())


class ProcessTracker:
    """Registers processes with the kernel side, follows what they map, and drops them when they end.

    With `children`, processes that a known one forks are taken in. With `everything`, all that run are, once
    they are sampled, but those of `without`; where there are more than `limits` allow, those go that were
    sampled least lately. `rate` is how often a second a thread is sampled. `pressure` counts those, and what
    the kernel's tables could not take. With `force_version` every Ruby is taken for that release.
    """

    def __init__(
        self,
        collection: TracerMaps,
        *,
        children: bool = True,
        everything: bool = False,
        rate: int = 1000,
        force_version: str | None = None,
        without: Iterable[int] = (),
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
    ) -> None:
        self._collection = collection
        self._maps = collection.maps
        self._children = children
        self._soonest = min(max(_SOONEST, _OF_A_TICK / rate), _LATEST)
        self._everything = everything
        self._force_version = force_version
        self._limits = limits
        self._code = CodeRegistry(collection, limits.files)
        self.files = self._code.files
        self._followed = FollowedPids(collection, everything=everything)
        for pid in without:
            self._followed.ignore(pid)
        self._processes: dict[int, ProfiledProcess] = {}
        self._ended: dict[int, ProfiledProcess] = {}
        self._due: dict[int, tuple[float, float]] = {}
        self._muted: set[int] = set()  # that are not reported before the next look
        self._reports = Reports(self._maps)
        self._sweep_due = time.monotonic() + _SWEEP
        self._idle_until = 0.0  # nothing is due before
        self.runtimes: set[str] = set()  # such as "ruby 3.1.2"
        self.changes = 0  # processes that came, and changes that were seen in one
        self._evicted = self._no_room = 0
        self._budget = Budget(_SHARE, _BURST)

    @property
    def processes(self) -> dict[int, ProfiledProcess]:
        """The processes that run, by pid."""
        return self._processes

    @property
    def known(self) -> dict[int, ProfiledProcess]:
        """The processes that run, and the last ones that have ended, by pid."""
        return {**self._ended, **self._processes}

    def pressure(self) -> dict[str, int]:
        """Return how the tables and what has to wait for a place in them are doing: fields of Totals."""
        no_room = self._no_room + self._code.no_room
        return {
            "waiting": len(self._reports),
            "evicted": self._evicted,
            "no_room": no_room,
            "given_up": len(self.files.given_up),
        }

    def notes(self) -> list[str]:
        """Return what a user should know about the processes: no Ruby in it, a layout that was assumed, ...

        What is so of a Ruby is said once, however many processes run it. Where everything is profiled, nobody
        expects each of them to be a Ruby.
        """
        ahead = given_up_notes(self.files.given_up)
        found = process_notes(self.known, everything=self._everything, ahead=ahead)
        return [TOO_MANY, *found] if self._budget.exceeded >= _OFTEN else found

    def get(self, pid: int, time: float | None = None) -> ProfiledProcess | None:
        """Return a process, also one that has ended lately; the one that had the pid at that `time`."""
        process = self._processes.get(pid)
        before = self._ended.get(pid)
        if process is None or (before is not None and time is not None and time < process.since):
            return before
        return process

    def reused(self, pid: int) -> bool:
        """Whether a process has ended whose pid another one has now."""
        return pid in self._ended and pid in self._processes

    def follow(self, pid: int, *, from_exec: bool = False) -> ProfiledProcess:
        """Register `pid` and have it sampled, with `from_exec` once it has executed another program.

        With `children`, so are the processes it has forked and will fork. Raises RubyUnwindError if it has
        ended or may not be read.
        """
        self._idle_until = 0.0
        process = self.add(pid, announced_only=from_exec)
        if self._everything:
            return process
        flags = FollowFlag.PROCESS | (FollowFlag.CHILDREN if self._children else 0)
        self._followed.sample(pid, flags | (FollowFlag.FROM_EXEC if from_exec else 0))
        # What forks while we look is followed by then, or found at the next look.
        seen: set[int] = set()
        while self._children and (new := set(descendants(pid)) - seen):
            seen |= new
            for child in new:
                if child not in self._followed and self._followed.sample(child, flags):
                    with suppress(RubyUnwindError):
                        self.add(child)
        return process

    def add(self, pid: int, *, announced_only: bool = False) -> ProfiledProcess:
        """Register `pid` with the kernel side. With `announced_only` it is about to execute its real program.

        Raises RubyUnwindError if it has ended or may not be read.
        """
        known = self._processes.get(pid)
        if known is not None:
            return known
        if self._everything and len(self._processes) >= self._limits.processes:
            self._evict()
        process = ProfiledProcess(
            pid, self._collection, self.files, self._code.tables, force_version=self._force_version
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
        self._processes[pid] = process
        self.changes += 1
        if not announced_only:
            self._schedule(pid, self._soonest)
        return process

    def expect(self, paths: Iterable[Path]) -> None:
        """Register files before a process maps them: what it samples there is unwound from the start."""
        self._code.expect(paths)

    def run(self, reported: bool = True) -> float:
        """Handle what the kernel side reported and what is due; return seconds until the next call is.

        `reported` is false if it has not said since the last call that anything is on its list.
        """
        left = self._idle_until - time.monotonic()
        if left > self._soonest * _EARLY and not (reported or self._reports):
            return left
        wait = self._run(reported)
        self._idle_until = min(time.monotonic() + wait, self._sweep_due)
        return wait

    def _run(self, reported: bool) -> float:
        if reported:
            self._reports.take()
        worked = time.thread_time()
        self._reports.handle(self._handle_report, self._processes, min(self._budget.left(), _LONGEST))
        now = time.monotonic()
        soon = now + self._soonest * _EARLY
        for _, pid in sorted((due, pid) for pid, (due, _) in self._due.items() if due <= soon):
            if time.thread_time() - worked > self._budget.left():
                break
            if pid in self._due:
                self._look(pid, self._due[pid][1])
        self._budget.spend(time.thread_time() - worked)
        self._followed.look(now, self._processes)
        if now >= self._sweep_due:
            self._sweep(now)
        if self._reports:
            return self._budget.wait(_STRETCH)
        if not self._budget.left() > 0:
            return max(_STRETCH, self._budget.wait(_STRETCH))
        # Among all that run, those that have not changed at the last look wait until something is sampled.
        dues = (due for due, wait in self._due.values() if wait <= self._soonest or not self._everything)
        return max(0.0, min((*dues, *self._followed.due()), default=now + _LATEST) - time.monotonic())

    def _handle_report(self, pid: int) -> bool:
        """Look at a process that was reported; False if it is not to be reported again for a while."""
        if pid in self._processes:
            changed = self._sync(pid, self._due.get(pid, (0.0, self._soonest))[1])
            if pid in self._processes:
                # Code that is in no file is met again at each sample: not before the next look, then.
                self._muted |= set() if changed else {pid}
                return changed
            if not self._everything:
                return True  # else another one may have its pid already
        if not self._wanted(pid):
            return False
        try:
            self.add(pid)
        except BpfError as error:
            _log.warning("pid %d: no room for it: %s", pid, error)
            self._no_room += 1
            return False
        except RubyUnwindError as error:
            _log.debug("pid %d is not followed: %s", pid, error)
            if self._everything:
                return self._cannot_be_read(pid)
            self._followed.unfollow(pid, self._processes)  # it may have ended before it was looked at
        return True

    def _cannot_be_read(self, pid: int) -> bool:
        """Whether a process that could not be added has ended; a kernel thread is not sampled again."""
        try:
            status = read_status(pid)
        except RubyUnwindError:
            return True
        if status.kernel_thread:
            self._followed.ignore(pid)
        return status.ended or status.kernel_thread

    def _look(self, pid: int, wait: float) -> None:
        """Look at a process that is due. Among all that run, one that sleeps is not worth it.

        What has just changed is looked at again all the same: it may start, and be sampled any moment.
        """
        process = self._processes[pid]
        due, _ = self._due[pid]
        if pid in self._muted:
            self._muted.discard(pid)
            self._reports.let_through(pid)
        if self._everything and wait > self._soonest and process.sampled < due - wait:
            self._schedule(pid, min(2 * wait, _LATEST))
        else:
            self._sync(pid, wait)

    def _wanted(self, pid: int) -> bool:
        """Whether a process that was reported belongs to what is profiled: the kernel side follows forks."""
        return self._everything or pid in self._followed

    def _sync(self, pid: int, wait: float) -> bool:
        """Look at a process and drop it if it has ended; whether anything in it has changed."""
        process = self._processes[pid]
        began = time.monotonic()
        try:
            if not process.runs():
                raise RubyUnwindError(f"process {pid} has ended")
            changed = process.sync()
            self.changes += changed
            self._note_runtime(process)
        except RubyUnwindError as error:
            _log.debug("pid %d: %s", pid, error)
            self._no_room += isinstance(error, BpfError)
            self._end(pid)
            return True
        wait = self._soonest if changed else min(wait * 2, _LATEST)
        self._schedule(pid, max(wait, _PAUSE * (time.monotonic() - began)))
        return changed

    def _note_runtime(self, process: ProfiledProcess) -> None:
        if process.ruby is not None:
            self.runtimes.add(f"ruby {process.ruby.version}")

    def _schedule(self, pid: int, wait: float) -> None:
        due = time.monotonic() + wait
        self._due[pid] = (due, wait)
        self._idle_until = min(self._idle_until, due)

    def _end(self, pid: int) -> None:
        process = self._processes.pop(pid)
        self._due.pop(pid, None)
        self._muted.discard(pid)
        self._ended.pop(pid, None)
        self._ended[pid] = process
        process.ended = time.monotonic()
        try:
            process.forget()
            self._followed.unfollow(pid, self._processes)
        finally:
            process.close()
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    def _evict(self) -> None:
        """Take out the process that was sampled least lately. It is reported again when it is sampled."""
        pid = min(self._processes, key=lambda pid: self._processes[pid].sampled)
        self._end(pid)
        self._evicted += 1

    def _sweep(self, now: float) -> None:
        """Look for what has ended unseen, drop what is left of it, and files that nobody maps any more."""
        self._sweep_due = now + _SWEEP
        running = running_pids()
        for pid in self._processes.keys() - running:
            self._sync(pid, self._soonest)
        self._reports.drop_all_but(running)
        self._followed.drop_all_but(running)
        if self._everything:
            # Nobody asks for notes on each of them; their names and memory are a lot.
            self._ended = {
                pid: process for pid, process in self._ended.items() if process.ended > now - _SWEEP
            }
        self._code.tidy()

    def close(self) -> None:
        """Drop all processes and files, but nothing in the maps, which go, too. Twice is harmless."""
        for process in (*self._processes.values(), *self._ended.values()):
            process.close()
        self._processes.clear()
        self._ended.clear()
        self._due.clear()
        self._followed.clear()
        self._code.close()
