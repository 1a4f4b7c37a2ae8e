# SPDX-License-Identifier: Apache-2.0
"""The UserProfiler: samples from user space, where the kernel does not let us run BPF programs."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter as Tally
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rubyunwind.bpf.hosted import HostedCollection
from rubyunwind.bpf.lifetime import LifetimeError, Resource
from rubyunwind.bpf.timer import Timer
from rubyunwind.errors import AttachError, RubyUnwindError
from rubyunwind.process.identity import check_attachable, descendants, read_status, witness
from rubyunwind.process.refusals import unreadable
from rubyunwind.profiler.reasons import TRUNCATIONS
from rubyunwind.profiler.sample import Sample, Totals
from rubyunwind.profiler.sampled_process import SampledProcess, cpu_time
from rubyunwind.profiler.samples import Samples
from rubyunwind.ruby.layouts import known_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["NOT_SAMPLED", "UserProfiler"]

NOT_SAMPLED = "no Ruby was found in it; it is not sampled"

# Seconds between looks for children.
_CHILDREN = 0.1
# Processes that have ended, kept for what is to be said of them.
_ENDED = 64
# Ticks of CPU time that are kept for a moment at which the thread runs, before one at which it waits will do.
_PATIENCE = 10
# From this share of late ticks on a user should know.
_LATE = 0.05

_log = logging.getLogger(__name__)


class UserProfiler:
    """Samples processes while it is entered, with the surface of Profiler and no right but to read memory.

    At each tick, `rate` times a second on an absolute schedule, a process has a sample if the thread that
    holds the lock of its main ractor runs at that moment (or was preempted) and the process has used
    CPU time that no sample stands for yet. The weight is 1, and more after ticks that came late, or at
    which it had been woken and waited for a CPU. So the sum of weights is the CPU time in ticks, as with BPF;
    it falls a little short for a program that mostly sleeps.

    Ruby frames and C functions only, of the thread that holds the lock: other ractors and native code that
    runs without the lock are not seen. Nothing is ever stopped: a stack that changed while it was read is
    read again, and counted as a "torn read" in `stats` if it keeps changing. `Sample.tid` is the thread
    that the execution context belongs to where Ruby keeps its id (3.1 and newer), else the one that used
    most of the CPU. Children are looked for ten times a second; one that lives shorter may be missed.

    `stats`, `notes` and `runtimes` stay after the close. Entering raises AttachError (no such process, may
    not be read), and use out of order LifetimeError, as in Profiler.
    """

    backend = "user"

    def __init__(
        self,
        pids: Iterable[int] = (),
        *,
        rate: int = 99,
        children: bool = True,
        force_version: str | None = None,
    ) -> None:
        if rate < 1:
            raise ValueError(f"a rate of {rate} Hz: it must be 1 or more")
        self._pids = tuple(pids)
        self._period_ns = 1_000_000_000 // rate
        self._children = children
        self._force_version = known_version(force_version)
        self._stack = ExitStack()
        self._resource: Resource | None = None
        self._processes: dict[int, SampledProcess] = {}
        self._ended: dict[int, SampledProcess] = {}
        self._found: set[str] = set()
        self._failed: Tally[str] = Tally()
        self._read = self._truncated = 0
        self._children_due = 0.0
        self._stopped = False
        self.ticks = self.late = 0

    def __enter__(self) -> UserProfiler:
        if self._resource is not None:
            raise LifetimeError("this UserProfiler was entered before; make a new one for another recording")
        self._resource = Resource("the UserProfiler", lambda: None)
        with ExitStack() as stack:
            stack.callback(self._resource.close)
            self._collection = stack.enter_context(HostedCollection())
            stack.callback(self._close_processes)
            self._timer = stack.enter_context(Timer(self._period_ns / 1e9))
            for pid in self._pids:
                self.follow(pid)
            self._timer.clear()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._resource is None:
            raise LifetimeError("this UserProfiler is not entered yet: use it in a `with` block")
        self._resource.check()

    @property
    def _open(self) -> bool:
        return self._resource is not None and not self._resource.closed

    def follow(self, pid: int, *, from_exec: bool = False, expected: Iterable[Path] = ()) -> None:
        """Sample one more process; with `from_exec` it is about to execute its real program.

        `expected` is for the other backend. Raises AttachError.
        """
        del expected
        self._check()
        if from_exec:  # what it is until then may be closed to us
            read_status(pid)
        else:
            _check_readable(pid)
        if pid not in self._processes:
            process = self._processes[pid] = SampledProcess(
                pid, self._collection, force_version=self._force_version
            )
            if not from_exec:
                self._sync(process)
        if self._children:
            self._take_children(pid)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the processes, and about how well the ticks were kept.

        What is so of a Ruby is said once, however many processes run it.
        """
        found: list[str] = []
        for pid, process in {**self._ended, **self._processes}.items():
            if process.refusal is not None:
                found.append(f"pid {pid}: {process.refusal}; it is not sampled")
            elif process.ruby is not None:
                found += [f"{process.ruby.mapping.path}: {note}" for note in process.ruby.notes]
            else:
                found.append(process.trouble or f"pid {pid}: {NOT_SAMPLED}")
        if self.late > _LATE * self.ticks:
            found.append(
                f"{self.late} of {self.ticks} ticks came late (a busy machine, or too high a rate): the next "
                "sample's weight stands for them"
            )
        return tuple(dict.fromkeys(found))

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The interpreters seen so far, such as "ruby 3.1.2"."""
        return tuple(sorted(self._found))

    @property
    def running(self) -> bool:
        """Whether any profiled process still runs."""
        return self._open and bool(self._processes)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `poll` has something to do. Borrowed."""
        self._check()
        return self._timer.fileno()

    def poll(self, timeout: float = 0.1) -> Samples:
        """Wait up to `timeout` seconds for the next tick and return its samples, one a process at most."""
        self._check()
        if self._stopped:
            return Samples()
        self._timer.wait(timeout)
        ticks = self._timer.clear()
        return Samples(self._tick(ticks) if ticks else ())

    def samples(self, duration: float | None = None) -> Iterator[Sample]:
        """Yield samples for `duration` seconds, or until every profiled process has ended."""
        self._check()
        end = None if duration is None else time.monotonic() + duration
        while self.running:
            left = 1.0 if end is None else end - time.monotonic()
            if left <= 0:
                break
            yield from self.poll(left)
        if self._open:  # the reader of the samples may have closed us
            self.stop()

    def stop(self) -> Samples:
        """Stop sampling; nothing is on its way then. The profiler stays readable until closed."""
        self._check()
        self._stopped = True
        return Samples()

    def _tick(self, ticks: int) -> list[Sample]:
        self.ticks += ticks
        self.late += ticks - 1
        samples = []
        for process in tuple(self._processes.values()):
            try:
                sample = self._sample(process, ticks)
            except AttachError:
                self._end(process)
                continue
            if sample is not None:
                samples.append(sample)
        now = time.monotonic()
        for process in tuple(self._processes.values()):
            if process.due <= now:
                self._sync(process)
        if self._children and now >= self._children_due:
            self._children_due = now + _CHILDREN
            for pid in tuple(self._processes):
                self._take_children(pid)
        return samples

    def _sample(self, process: SampledProcess, ticks: int) -> Sample | None:
        before, process.cpu_ns = process.cpu_ns, cpu_time(process.pid)
        process.owed_ns += process.cpu_ns - before
        owed = (process.owed_ns + self._period_ns // 2) // self._period_ns
        if owed < 1:
            return None
        if process.ruby is None and process.executed():
            process.due = 0.0
        stack = process.running(patient=owed < _PATIENCE)
        if stack is None:
            return None
        weight = min(ticks + process.waited, owed)
        process.waited = 0
        process.owed_ns -= weight * self._period_ns
        if isinstance(stack, str):
            self._failed[stack] += weight
            return None
        self._read += 1
        if stack.reason is not None:
            self._failed[stack.reason] += 1
            self._truncated += stack.reason in TRUNCATIONS
        return Sample(
            timestamp=time.time_ns(),
            pid=process.pid,
            tid=stack.tid,
            comm=stack.comm,
            frames=stack.frames,
            complete=stack.reason is None,
            reason=stack.reason,
            weight=weight,
            backend=self.backend,
        )

    def _sync(self, process: SampledProcess) -> None:
        try:
            process.sync()
            process.trouble = ""
        except RubyUnwindError as error:
            if not process.identity.is_alive():
                self._end(process)
                return
            # It has just been forked or calls exec, or runs as another user now.
            _log.debug("pid %d: %s", process.pid, error)
            process.trouble = str(error)
            process.due = time.monotonic() + _CHILDREN
        if process.ruby is not None:
            self._found.add(f"ruby {process.ruby.version}")

    def _take_children(self, pid: int) -> None:
        for child in descendants(pid):
            if child in self._processes:
                continue
            try:
                parent = self._processes.get(read_status(child).parent)
                process = SampledProcess(child, self._collection, parent, force_version=self._force_version)
            except AttachError:
                continue
            self._processes[child] = process
            self._sync(process)

    def _end(self, process: SampledProcess) -> None:
        del self._processes[process.pid]
        process.close()
        self._ended[process.pid] = process
        if len(self._ended) > _ENDED:
            del self._ended[next(iter(self._ended))]

    @property
    def stats(self) -> Totals:
        """Counts so far; see Totals. `lost` is 0: nothing waits to be read."""
        return Totals(
            read=self._read,
            truncated=self._truncated,
            failed=tuple(sorted(self._failed.items(), key=lambda item: (-item[1], item[0]))),
        )

    def _close_processes(self) -> None:
        for process in self._processes.values():
            process.close()

    def close(self) -> None:
        """Stop and release everything. Closing twice is harmless."""
        self._stack.close()


def _check_readable(pid: int) -> None:
    """Raise AttachError, with the setting or right that is in the way, unless a process can be sampled."""
    try:
        check_attachable(pid)
    except AttachError:
        try:
            os.close(os.open(f"/proc/{witness(pid)}/mem", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            raise unreadable(pid) from None
        except OSError:
            pass
        raise
