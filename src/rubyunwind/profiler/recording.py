# SPDX-License-Identifier: Apache-2.0
"""A whole recording in one call, and what comes out of it."""

from __future__ import annotations

import os
import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Protocol

from rubyunwind.elf.dependencies import command_files
from rubyunwind.errors import RubyUnwindError
from rubyunwind.profiler.backends import check_backend, why_refused
from rubyunwind.profiler.command import Command
from rubyunwind.profiler.off_cpu import OffCPU
from rubyunwind.profiler.profiler import Profiler
from rubyunwind.profiler.sample import Totals
from rubyunwind.profiler.samples import Samples
from rubyunwind.profiler.user_profiler import UserProfiler
from rubyunwind.ruby.layouts import known_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rubyunwind.formats.registry import Meta

__all__ = ["Profile", "Recording", "Sink", "record"]


@dataclass(slots=True)
class Profile:
    """Samples of a recording with their totals.

    `started` is unix time in ns, `duration` seconds, `rate` Hz; `command` as a user would type it;
    `exit_status` is that of a recorded command, None if there was none or it was still running. `backend` is
    what sampled, "bpf" or "user"; if "user" was only fallen back to, the first of the notes says why.
    """

    samples: Samples = field(default_factory=Samples)
    totals: Totals = field(default_factory=Totals)
    started: int = 0
    duration: float = 0.0
    rate: int = 0
    command: str = ""
    runtimes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exit_status: int | None = None
    backend: str = ""

    def write(self, target: str | os.PathLike[str] | BinaryIO, format: str = "flamegraph") -> None:  # noqa: A002
        """Write the profile to a path or a binary file.

        Raises UnknownFormat, and RubyUnwindError for a path that cannot be written.
        """
        from rubyunwind.formats.registry import write

        write(target, format, self.samples, self.totals, self.meta)

    @property
    def meta(self) -> Meta:
        """What the formats tell of it."""
        from rubyunwind.formats.registry import Meta

        return Meta(
            title=self.command,
            command=self.command,
            started=self.started,
            duration=self.duration,
            rate=float(self.rate),
            runtimes=self.runtimes,
            backend=self.backend,
            notes=self.notes,
        )


class Sink(Protocol):
    """Takes a recording while it goes on. What it raises ends the recording."""

    def add(self, samples: Samples, /) -> None:
        """Take the samples that have just come."""

    def update(self, totals: Totals, meta: Meta, /) -> None:
        """Take what is known by now; called every half second, and at the end."""


_PROGRESS = 0.1  # seconds between calls of whoever shows it
_UPDATE = 0.5  # seconds between updates of whoever keeps it


class Recording:
    """A recording that runs: a context manager around a Profiler and, if there is one, a command.

    `run` returns when the time is up, the processes have ended or `stop` was called (from a signal
    handler, say); `profile` is there at any time, with everything gathered so far. `began` is false while
    it is being set up: an exception from a signal handler then undoes everything, the command has not run.

    `backend` is "bpf", "user" (see UserProfiler), or "auto": BPF unless the kernel refuses it; `fallback`
    then says why and what that costs. `force_version` is as in Profiler, and so are `debug_tracer`,
    `unwinder`, `off_cpu` and `all_processes`, which are for BPF; with one of the last three there is no
    fallback. `command_output` is a descriptor (borrowed) that gets what the command would write to the
    terminal.

    Who has an event loop polls `profiler` while it is `running` and not `stopped`, instead of `run`.
    """

    def __init__(
        self,
        *,
        pids: Iterable[int] = (),
        command: Sequence[str] | None = None,
        rate: int = 99,
        children: bool = True,
        all_processes: bool = False,
        debug_tracer: bool = False,
        backend: str = "auto",
        unwinder: str | None = None,
        force_version: str | None = None,
        off_cpu: OffCPU | bool | str = False,
        command_output: int | None = None,
    ) -> None:
        check_backend(backend)
        if off_cpu and backend == "user":
            raise ValueError("off-CPU samples are taken by BPF programs, and the user backend has none")
        self._off_cpu = OffCPU.of(off_cpu)
        if unwinder is not None and backend == "user":
            raise ValueError("an unwinder is chosen for BPF programs, and the user backend has none")
        self._unwinder = unwinder
        self._force_version = known_version(force_version)
        self._pids = tuple(pids)
        self._words = list(command) if command is not None else None
        self._all = all_processes
        if bool(self._pids) + bool(self._words) + self._all != 1:
            raise ValueError("give processes, all of them, or a command to record, one of these")
        if self._all and backend == "user":
            raise ValueError("all processes are recorded by BPF programs, and the user backend has none")
        self._children = children
        self._debug = debug_tracer
        self._backend = backend
        self._command_output = command_output
        self.stopped = False
        self.fallback = ""
        self.profiler: Profiler | UserProfiler
        self.began = False
        self._exits = ExitStack()
        self.command: Command | None = None
        self.profile = Profile(rate=rate, command=self._title())

    def _title(self) -> str:
        if self._words:
            return shlex.join(self._words)
        if self._all:
            return "all processes"
        return ", ".join(f"pid {pid}" for pid in self._pids)

    def __enter__(self) -> Recording:
        with ExitStack() as exits:
            if self._words:
                # Forked before anything is loaded, so that the child inherits nothing of it.
                self.command = Command(self._words, output=self._command_output)
                exits.callback(self.command.close)
            self.profiler = self._enter_profiler(exits)
            self.profile.backend = self.profiler.backend
            self.profile.started = time.time_ns()
            self._began = time.monotonic()
            self.began = True
            if self.command is not None:
                self.command.start()
            self._exits = exits.pop_all()
        return self

    def _enter_profiler(self, exits: ExitStack) -> Profiler | UserProfiler:
        """Enter the profiler, so that `exits` closes it; with "auto" the other one where BPF is refused."""
        if self._backend != "user":
            try:
                with ExitStack() as undo:
                    bpf = Profiler(
                        self._pids,
                        all_processes=self._all,
                        rate=self.profile.rate,
                        children=self._children,
                        debug_tracer=self._debug,
                        unwinder=self._unwinder,
                        force_version=self._force_version,
                        off_cpu=self._off_cpu or False,
                    )
                    profiler = undo.enter_context(bpf)
                    if self.command is not None:
                        expected = command_files(self.command.arguments)
                        profiler.follow(self.command.pid, from_exec=True, expected=expected)
                    exits.push(undo.pop_all())
                return profiler
            except RubyUnwindError as error:
                reason = why_refused(error)
                bpf_only = self._unwinder is not None or self._off_cpu or self._all
                if self._backend == "bpf" or bpf_only or not reason:
                    raise
                self.fallback = reason
        user = exits.enter_context(
            UserProfiler(
                self._pids,
                rate=self.profile.rate,
                children=self._children,
                force_version=self._force_version,
            )
        )
        if self.command is not None:
            user.follow(self.command.pid, from_exec=True)
        return user

    def __exit__(self, *exc: object) -> None:
        self._exits.close()

    def stop(self) -> None:
        """Make `run` return soon. May be called from a signal handler or another thread."""
        self.stopped = True

    @property
    def running(self) -> bool:
        """Whether the command, or any of the processes, still runs."""
        if self.command is not None:
            # Its children may go on; they are not what was asked for.
            return self.command.poll() is None
        return self.profiler.running

    def run(
        self,
        duration: float | None = None,
        progress: Callable[[Profile], None] | None = None,
        sinks: Sequence[Sink] = (),
        *,
        keep: bool = True,
    ) -> Profile:
        """Gather samples; `progress` is called now and then, `sinks` get them as they come.

        Returns the profile, also kept in `profile`; unless they are to be kept, it has no samples.
        """
        profile = self.profile
        end = None if duration is None else self._began + duration
        due = update_due = 0.0
        while not self.stopped and (end is None or time.monotonic() < end):
            fresh = self.profiler.poll(0.1 if end is None else min(0.1, end - time.monotonic()))
            if keep:
                profile.samples += fresh
            for sink in sinks:
                sink.add(fresh)
            if not self.running:
                break
            now = time.monotonic()
            if progress is not None and now >= due:
                due = now + _PROGRESS
                self.update()
                progress(profile)
            if sinks and now >= update_due:
                update_due = now + _UPDATE
                self.update()
                for sink in sinks:
                    sink.update(profile.totals, profile.meta)
        fresh = self.profiler.stop()
        if keep:
            profile.samples += fresh
        self.update()
        for sink in sinks:
            sink.add(fresh)
            sink.update(profile.totals, profile.meta)
        return profile

    def update(self) -> None:
        """Bring all of `profile` but its samples up to date; `run` does so by itself."""
        profile = self.profile
        profile.duration = time.monotonic() - self._began
        profile.totals = self.profiler.stats
        profile.runtimes = self.profiler.runtimes
        profile.notes = (*((self.fallback,) if self.fallback else ()), *self.profiler.notes)
        profile.exit_status = self.command.poll() if self.command is not None else None


def record(
    pid: int | None = None,
    *,
    command: Sequence[str] | None = None,
    all_processes: bool = False,
    duration: float | None = None,
    rate: int = 99,
    children: bool = True,
    backend: str = "auto",
    unwinder: str | None = None,
    force_version: str | None = None,
    off_cpu: OffCPU | bool | str = False,
) -> Profile:
    """Record one process, all, or a command that is started for it, and return the profile. See Recording.

    Ends after `duration` seconds, or when the process ends. A command that still runs then goes on.
    Raises AttachError, CommandError, BpfError, NotSupported.
    """
    with Recording(
        pids=() if pid is None else (pid,),
        command=command,
        rate=rate,
        children=children,
        all_processes=all_processes,
        backend=backend,
        unwinder=unwinder,
        force_version=force_version,
        off_cpu=off_cpu,
    ) as recording:
        return recording.run(duration)
