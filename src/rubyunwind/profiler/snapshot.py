# SPDX-License-Identifier: Apache-2.0
"""What each thread of a process does at one moment, of one that runs or of one that left a core file."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rubyunwind.abi import TraceFlag, decode_trace
from rubyunwind.bpf.hosted import HostedCollection, HostMemory, HostTask
from rubyunwind.errors import NotSupported
from rubyunwind.process.core import CoreFile
from rubyunwind.process.image import CoreProcess, LiveProcess
from rubyunwind.process.memory import LiveMemory, MemoryReadError
from rubyunwind.process.registers import AARCH64, X86_64, RegisterLayout, layout_of
from rubyunwind.profiler.assembler import Assembler
from rubyunwind.profiler.context_reader import ContextReader
from rubyunwind.profiler.files import FileCache, given_up_notes
from rubyunwind.profiler.native_tables import NativeTables
from rubyunwind.profiler.process import ProfiledProcess
from rubyunwind.profiler.reasons import TORN
from rubyunwind.ruby.layouts import known_version
from rubyunwind.ruby.threads import RubyThread, ruby_threads
from rubyunwind.ruby.tls import thread_context

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rubyunwind.process.image import ProcessImage
    from rubyunwind.profiler.sample import Frame
    from rubyunwind.ruby.detect import RubyRuntime

__all__ = ["Snapshot", "ThreadStack", "snapshot", "take_snapshot"]

# struct pt_regs of a program begins like ptrace's register set; these many words of it.
_PT_REGS_WORDS = {"x86_64": 21, "aarch64": 34}
_EM_AARCH64 = 183  # elf.h
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "in uninterruptible sleep",
    "T": "stopped",
    "t": "traced",
    "I": "idle",
}
NO_STACK = "no registers"
NATIVE_ENDED = "native walk did not meet Ruby"
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread and its stack, leaf first.

    `state` is what it was doing when it was stopped ("running", "sleeping", ...; of a core "dead", or the
    signal that it got), `wait_channel` the kernel function it slept in, "" if unknown. `complete` and
    `reason` are as in Sample; a thread that could not be stopped has no frames and says so.
    """

    tid: int
    name: str
    state: str
    frames: tuple[Frame, ...]
    complete: bool
    reason: str | None = None
    wait_channel: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All threads of a process. `stopped_ns` is how long it stood still, 0 for a core."""

    pid: int
    comm: str
    threads: tuple[ThreadStack, ...]
    runtimes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stopped_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """A thread; `traces` are what the unwinder said of it: of its registers, and of its context alone."""

    tid: int
    name: str
    state: str
    wait_channel: str
    traces: tuple[bytes, ...]
    lacking: str = NO_STACK  # why there is no trace


class _OneProcess:
    """What the Assembler asks of a tracker, for a single process."""

    def __init__(self, pid: int, process: ProfiledProcess, files: FileCache) -> None:
        self._pid = pid
        self._process = process
        self.files = files

    def get(self, pid: int, time: float | None = None) -> ProfiledProcess | None:
        del time
        return self._process if pid == self._pid else None

    def reused(self, pid: int) -> bool:
        return False


def snapshot(
    pid: int | None = None, *, core: str | os.PathLike[str] | None = None, sysroot: str | None = None
) -> tuple[ThreadStack, ...]:
    """Return the stacks of all threads of a process, or of a core file. See take_snapshot."""
    return take_snapshot(pid, core=core, sysroot=sysroot).threads


def take_snapshot(
    pid: int | None = None,
    *,
    core: str | os.PathLike[str] | None = None,
    sysroot: str | None = None,
    context: int = 0,
    nonblocking: bool = False,
    force_version: str | None = None,
) -> Snapshot:
    """Unwind every thread of process `pid`, or of the process that wrote the core file `core`.

    A process is stopped for some milliseconds; needs the right to trace it (root, CAP_SYS_PTRACE, or the
    same user). Files that a core's process had mapped are looked for below `sysroot`. `context` is the
    address of the main thread's execution context, or of the variable that points to it, for a Ruby that
    hides both. With `nonblocking` the process is not stopped: Ruby frames only, of Ruby's own threads, and a
    stack that changed while it was read is left out with the reason "torn read". `force_version` is as in
    Profiler.
    Raises AttachError, DecodeError (the core), NotSupported (of another machine).
    """
    if (pid is None) == (core is None):
        raise ValueError("name a process or a core file, one of them")
    force_version = known_version(force_version)
    with ExitStack() as stack:
        if core is not None:
            dead = stack.enter_context(CoreFile.open(core, sysroot))
            return _of_core(dead, context, force_version)
        assert pid is not None
        if nonblocking:
            return _of_running_process(pid, force_version)
        return _of_process(pid, context, force_version)


def _of_process(pid: int, context: int, force_version: str | None) -> Snapshot:
    from rubyunwind.process.identity import check_attachable
    from rubyunwind.process.stopped import StoppedProcess

    identity = check_attachable(pid)
    with ExitStack() as stack:
        image = LiveProcess(pid)
        unwinder = stack.enter_context(_Unwinder(pid, image, layout_of(), context, force_version))
        comm = identity.comm
        with StoppedProcess(pid) as stopped:
            unwinder.process.sync()  # mapped since, by the threads that are stopped now
            memory = HostMemory.of_process(image.memory)
            held = [
                _Held(
                    thread.tid,
                    thread.name,
                    _STATES.get(thread.state_before, thread.state_before),
                    thread.wait_channel,
                    unwinder.unwind(thread.tid, comm, thread.registers, thread.thread_pointer, memory),
                )
                for thread in stopped.threads
            ]
        held += [
            _Held(thread.tid, thread.name, _STATES.get(thread.state_before, ""), thread.wait_channel, ())
            for thread in stopped.unstopped
        ]
        return unwinder.result(comm, held, stopped.stopped_ns)


def _of_running_process(pid: int, force_version: str | None) -> Snapshot:
    from rubyunwind.process.identity import check_attachable
    from rubyunwind.process.threads import thread_info

    identity = check_attachable(pid)
    with _Unwinder(pid, LiveProcess(pid), layout_of(), 0, force_version) as unwinder:
        ruby = unwinder.process.ruby
        if ruby is None:
            return unwinder.result(identity.comm, (), 0)
        held = []
        native = {thread.tid: thread for thread in thread_info(pid)}
        for thread in unwinder.ruby_threads(ruby):
            known = native.get(thread.tid)
            state = _STATES.get(known.state, known.state) if known is not None else ""
            name = thread.name or (known.name if known is not None else "")
            trace = unwinder.read(ruby, thread, identity.comm)
            held.append(_Held(thread.tid, name, state, "", (trace,) if trace is not None else (), TORN))
        return unwinder.result(identity.comm, held, 0)


def _of_core(core: CoreFile, context: int, force_version: str | None) -> Snapshot:
    layout = AARCH64 if core.machine == _EM_AARCH64 else X86_64
    if layout.machine != os.uname().machine:
        raise NotSupported(
            f"{core.name} is a core file of {layout.machine}, this is {os.uname().machine}: unwinders are "
            "built for one machine. Look at it on a machine of its kind",
            feature=f"core files of {layout.machine}",
            needs=layout.machine,
        )
    with _Unwinder(core.pid, CoreProcess(core), layout, context, force_version) as unwinder:
        memory = HostMemory(memory=core.memory)
        held = [
            _Held(
                thread.tid,
                thread.name,
                f"signal {thread.signal}" if thread.signal else "dead",
                "",
                unwinder.unwind(thread.tid, core.comm, thread.registers.named, thread.thread_pointer, memory),
            )
            for thread in core.threads
        ]
        return unwinder.result(core.comm, held, 0, tuple(core.missing))


class _Unwinder:
    """The unwinders in user space, filled for one process. A context manager that owns the image."""

    def __init__(
        self,
        pid: int,
        image: ProcessImage,
        layout: RegisterLayout,
        context: int,
        force_version: str | None,
    ) -> None:
        self.pid = pid
        self._image = image
        self._registers = layout.names[: _PT_REGS_WORDS[layout.machine]]
        self._files = FileCache()
        self._collection = HostedCollection()
        tables = NativeTables(self._collection)
        self.process = ProfiledProcess(
            pid,
            self._collection,
            self._files,
            tables,
            image,
            context=context,
            search=True,
            force_version=force_version,
        )
        self.process.sync()

    def unwind(
        self, tid: int, comm: str, registers: Mapping[str, int], thread_pointer: int, memory: HostMemory
    ) -> tuple[bytes, ...]:
        """Unwind a thread from its registers; where that does not reach Ruby's base, Ruby by itself, too."""
        words = [registers[name] for name in self._registers]
        task = HostTask(self.pid, tid, words, thread_pointer, comm, time.monotonic_ns())
        mixed = self._collection.run(task, memory)
        if mixed is None:
            return ()
        context = 0 if decode_trace(mixed).flags & TraceFlag.RUBY_BASE else self._context(tid, thread_pointer)
        alone = self._collection.run_context(context, task, memory) if context else None
        return (mixed,) if alone is None else (mixed, alone)

    def ruby_threads(self, ruby: RubyRuntime) -> list[RubyThread]:
        """Return Ruby's threads; where their list cannot be found, the one that runs."""
        found = ruby_threads(self._image.memory, ruby)
        if found:
            return found
        try:
            return [RubyThread(ruby.running_context(self._image.memory), self.pid, "")]
        except MemoryReadError:
            return []

    def read(self, ruby: RubyRuntime, thread: RubyThread, comm: str) -> bytes | None:
        """Read the Ruby stack of a thread that may be running; None if it never held still for that."""
        memory = self._image.memory
        is_live = isinstance(memory, LiveMemory)
        host = HostMemory.of_process(cast("LiveMemory", memory)) if is_live else HostMemory(memory=memory)
        reader = ContextReader(self._collection, host, ruby.proc_info, self.pid)
        for _ in range(_ATTEMPTS):
            record = reader.read(thread.context, thread.tid, comm, time.monotonic_ns())
            if record is not None:
                return record
        return None

    def _context(self, tid: int, thread_pointer: int) -> int:
        """Return the thread's execution context, 0 if it has none that can be told."""
        ruby = self.process.ruby
        if ruby is None:
            return 0
        try:
            if ruby.tls is not None:
                return thread_context(self._image.memory, ruby.tls, thread_pointer)
            # Without thread-local contexts there is only the running one: the main thread's, if it is alone.
            return ruby.running_context(self._image.memory) if tid == self.pid else 0
        except MemoryReadError:
            return 0

    def result(
        self, comm: str, held: Sequence[_Held], stopped_ns: int, notes: tuple[str, ...] = ()
    ) -> Snapshot:
        """Name the frames. Nothing needs to stand still for that any more."""
        processes = _OneProcess(self.pid, self.process, self._files)
        assembler = Assembler(processes, self._collection.maps["kernel_stackmap"])
        threads = tuple(_name(each, assembler) for each in held)
        ruby = self.process.ruby
        notes += tuple(given_up_notes(self._files.given_up))
        if self.process.refusal is not None:
            notes += (f"{self.process.refusal}; native frames only",)
        elif ruby is None:
            notes += ("no Ruby was found in it; native frames only",)
        else:
            notes += ruby.notes
        runtimes = (f"ruby {ruby.version}",) if ruby is not None else ()
        return Snapshot(self.pid, comm, threads, runtimes, notes, stopped_ns)

    def __enter__(self) -> _Unwinder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.close()
        self._files.close()
        self._collection.close()


def _name(held: _Held, assembler: Assembler) -> ThreadStack:
    samples = [assembler.sample(decode_trace(trace), -1) for trace in held.traces]
    frames: tuple[Frame, ...] = ()
    reason: str | None = held.lacking
    if samples:
        frames, reason = samples[0].frames, samples[0].reason
    if len(samples) > 1 and samples[1].frames:
        # The native walk ended early: what it found, and all that Ruby is doing.
        frames = tuple(frame for frame in frames if frame.kind not in ("ruby", "cfunc")) + samples[1].frames
        reason = reason or samples[1].reason or NATIVE_ENDED
    return ThreadStack(held.tid, held.name, held.state, frames, reason is None, reason, held.wait_channel)
