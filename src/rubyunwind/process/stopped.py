# SPDX-License-Identifier: Apache-2.0
"""A process held still for a moment, so that registers and memory of all its threads belong together."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass

from rubyunwind.errors import AttachError, DecodeError
from rubyunwind.process import ptrace
from rubyunwind.process.identity import read_status
from rubyunwind.process.identity import threads as thread_ids
from rubyunwind.process.refusals import check_traceable, refusal
from rubyunwind.process.registers import RegisterLayout, layout_of
from rubyunwind.process.threads import ENDED, ThreadInfo, read_thread, read_wait_channel

__all__ = ["DEFAULT_TIMEOUT", "StoppedProcess", "StoppedThread", "UnstoppedThread"]

DEFAULT_TIMEOUT = 0.2
"""How long to wait for threads to stop, in seconds: those in uninterruptible sleep may take forever."""

_ATTEMPTS = 3
_PATIENCE = 0.01  # seconds until the calling thread sees after the tracing one
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 1e-3


@dataclass(frozen=True, slots=True)
class UnstoppedThread:
    """A thread that did not stop in time. `state_before` and `wait_channel` as in StoppedThread."""

    tid: int
    name: str
    state_before: str
    wait_channel: str


@dataclass(frozen=True, slots=True)
class StoppedThread:
    """A thread that is stopped, with the user registers at which it goes on.

    `state_before` is the kernel's letter just before the stop (R, S, D, T), `wait_channel` the kernel
    function in which it then slept ("" if it did not, or the kernel does not tell). `registers` has the
    kernel's names: rip, rsp, rax, orig_rax, fs_base, ... on x86_64, x0 to x30, sp, pc, pstate on AArch64.
    """

    tid: int
    name: str
    state_before: str
    wait_channel: str
    registers: dict[str, int]
    thread_pointer: int
    layout: RegisterLayout

    @property
    def pc(self) -> int:
        """The next instruction; behind the system call instruction for a thread that is in one."""
        return self.registers[self.layout.pc]

    @property
    def sp(self) -> int:
        """The stack pointer."""
        return self.registers[self.layout.sp]

    @property
    def fp(self) -> int:
        """The frame pointer register, whatever the program uses it for."""
        return self.registers[self.layout.fp]

    @property
    def lr(self) -> int:
        """The link register, with its authentication bits if any; 0 on x86_64, which has none."""
        return self.registers[self.layout.lr] if self.layout.lr else 0


class StoppedProcess:
    """A context manager that stops every thread of a process inside and lets it go on behind.

    The process neither sees a signal nor loses one, and what was stopped before (SIGSTOP) stays so. A system
    call that slept is restarted by the kernel, save the few that never are (epoll_wait, see signal(7)):
    they return EINTR. If this process is killed meanwhile, the kernel lets the target go on.

    All tracing is done by a thread that lives as long as the stop: a thread in uninterruptible sleep cannot
    be let go by any call, only by the end of the one that seized it. To be used once, from any thread.
    Entering raises AttachError with the reason: gone, ended, a kernel thread, not ours, traced by
    another, forbidden by Yama, 32-bit code; NotSupported on an unknown machine.
    """

    def __init__(self, pid: int, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.pid = pid
        self.threads: tuple[StoppedThread, ...] = ()
        """Those that stopped, by ascending id."""
        self.unstopped: tuple[UnstoppedThread, ...] = ()
        """Those that did not stop in time; they may run, and change memory, at any moment."""
        self._layout = layout_of()
        self._timeout = timeout
        self._before: dict[int, tuple[ThreadInfo, str]] = {}  # every thread seen, by id
        self._waiting: set[int] = set()  # seized, not stopped yet
        self._stopped: dict[int, StoppedThread] = {}
        self._began = self._ended = 0
        self._error: BaseException | None = None
        self._ready, self._release = threading.Event(), threading.Event()
        self._tracer = threading.Thread(target=self._trace, name=f"rubyunwind-stop-{pid}", daemon=True)

    @property
    def stopped_ns(self) -> int:
        """Nanoseconds from the first thread's seizure to the last one's release, or to now while it lasts."""
        return (self._ended or time.monotonic_ns()) - self._began if self._began else 0

    def __enter__(self) -> StoppedProcess:
        check_traceable(self.pid)
        self._tracer.start()
        try:
            while not self._ready.wait(_PATIENCE):
                self._reap()
        except BaseException:
            self.__exit__()
            raise
        if self._error is not None:
            self.__exit__()
            raise self._error
        return self

    def __exit__(self, *exc: object) -> None:
        self._release.set()
        while self._tracer.is_alive():
            self._tracer.join(_PATIENCE)
            self._reap()

    def _reap(self) -> None:
        """Give back ended threads in the tracing thread's place, in case that hangs.

        To seize a thread the kernel waits for the end of an exec in another one, which waits for the end of
        the threads it killed, which waits for somebody to look at those that are seized. Also signals wake
        neither of them.
        """
        for tid in (*self._waiting, *self._stopped):
            if tid != self.pid:
                ptrace.life(tid, reap=True)

    # ---- everything below runs in the tracing thread ----

    def _trace(self) -> None:
        # The target may keep every CPU busy, and the first of its threads to go on would delay the others.
        with contextlib.suppress(OSError):  # without CAP_SYS_NICE
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        try:
            self._stop()
            self.threads = tuple(self._stopped[tid] for tid in sorted(self._stopped))
            self.unstopped = tuple(self._left_out(tid) for tid in sorted(self._waiting))
            if not self.threads and not self.unstopped:
                raise AttachError(f"process {self.pid}: it ended while it was being stopped")
        except BaseException as error:
            self._error = error
        else:
            self._ready.set()
            self._release.wait()
        finally:
            self._let_go()
            self._ready.set()

    def _left_out(self, tid: int) -> UnstoppedThread:
        info, channel = self._before[tid]
        return UnstoppedThread(tid, info.name, info.state, channel)

    def _stop(self) -> None:
        """Stop threads until there are none that run, or time is up."""
        deadline = time.monotonic() + self._timeout
        while True:
            listing = thread_ids(self.pid)
            fresh = {tid: self._note(tid) for tid in listing if tid not in self._before}
            # A main thread that has ended is there while others live; one that is gone may have called exec.
            ended = all(state in ENDED for state in fresh.values())
            if ended and not self._waiting and self._is_whole(listing) and self._all_hold():
                return
            alive = [tid for tid, state in fresh.items() if state not in ("", *ENDED)]
            if time.monotonic() > deadline:
                self._waiting.update(alive)  # too late: these are not even seized
                return
            for tid in [tid for tid in alive if self._seize(tid)]:
                with contextlib.suppress(ProcessLookupError):
                    ptrace.interrupt(tid)
            self._await(deadline)

    def _note(self, tid: int) -> str:
        """Return the state of a thread, "" if it is gone; write down what it does unless it has ended."""
        info = read_thread(self.pid, tid)
        if info is None or info.state in ENDED:
            return info.state if info else ""
        channel = read_wait_channel(self.pid, tid) if info.state in "SD" else ""
        self._before[tid] = (info, channel)
        return info.state

    def _seize(self, tid: int) -> bool:
        """Seize one thread; return whether it is now to be interrupted."""
        self._began = self._began or time.monotonic_ns()
        for _ in range(_ATTEMPTS):
            try:
                ptrace.seize(tid)
            except ProcessLookupError:
                break
            except PermissionError:
                now = read_thread(self.pid, tid)
                if now is None or now.state in ENDED:
                    break
                # When another thread calls exec it takes the main thread's id, and may be seized already.
                # If it was not, and the main thread had just ended, the next attempt succeeds.
                with contextlib.suppress(ProcessLookupError):
                    ptrace.interrupt(tid)
                    self._waiting.add(tid)
                    return False
            else:
                self._waiting.add(tid)
                return True
        else:
            raise refusal(self.pid, tid)
        self._forget(tid)
        return False

    def _await(self, deadline: float) -> None:
        """Wait until every seized thread has stopped or ended, no longer than `deadline` (monotonic)."""
        pause = _SHORTEST_PAUSE
        while True:
            for tid in tuple(self._waiting):
                if tid in self._waiting:  # burying another one may have changed that
                    self._look(tid)
            if not self._waiting or self._release.is_set() or time.monotonic() > deadline:
                return
            # Exec kills the other threads, also stopped ones, and then waits until we have seen their end.
            for tid in tuple(self._stopped):
                if tid in self._stopped:
                    self._bury(tid)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self, tid: int) -> None:
        """Take the registers of a thread if it has stopped; forget it if it has ended."""
        try:
            data = ptrace.registers(tid)
            if signal := ptrace.pending_signal(tid):
                # Were we killed while it waits for us with a signal, that could get lost.
                ptrace.take_signal(tid, signal)
                return
            registers = self._layout.decode(data)
            pointer = self._layout.thread_pointer
            thread_pointer = registers[pointer] if pointer else ptrace.thread_pointer(tid)
        except ProcessLookupError:
            self._bury(tid)
            return
        except DecodeError as error:
            raise AttachError(
                f"process {self.pid}: thread {tid} runs 32-bit code, which cannot be unwound: {error}"
            ) from None
        info, channel = self._before[tid]
        self._waiting.discard(tid)
        self._stopped[tid] = StoppedThread(
            tid, info.name, info.state, channel, registers, thread_pointer, self._layout
        )

    def _is_whole(self, listing: list[int]) -> bool:
        """Whether a listing has all threads: the kernel cuts it short when one ends in the middle of it."""
        try:
            return read_status(self.pid).threads <= len(listing)
        except AttachError:
            return True

    def _all_hold(self) -> bool:
        """Whether every stopped thread still is: exec and SIGKILL wake them. Others are awaited again."""
        for tid in tuple(self._stopped):
            try:
                ptrace.registers(tid)
            except ProcessLookupError:
                del self._stopped[tid]
                self._waiting.add(tid)
        return not self._waiting

    def _bury(self, tid: int) -> None:
        """Forget a thread if it has ended, and see to it that the kernel can, too."""
        life = ptrace.life(tid, reap=tid != self.pid)
        if life is not ptrace.Life.ALIVE:
            self._forget(tid)
        if life is ptrace.Life.VANISHED or (
            tid == self.pid and life is ptrace.Life.ALIVE and self._is_other()
        ):
            self._forget(self.pid)

    def _is_other(self) -> bool:
        """Whether the main thread is not the one that was seized: it has ended, or another called exec."""
        info = read_thread(self.pid, self.pid)
        if info is None or info.state in ENDED:
            return True
        try:
            ptrace.interrupt(self.pid)
        except ProcessLookupError:
            return True
        return False

    def _forget(self, tid: int) -> None:
        """Forget a thread that is gone, or another by now. If the id is listed again it is seized anew."""
        self._waiting.discard(tid)
        self._stopped.pop(tid, None)
        self._before.pop(tid, None)

    def _let_go(self) -> None:
        """Detach from all threads that are stopped. The end of this thread does it for the rest."""
        for tid in (*self._stopped, *self._waiting):
            with contextlib.suppress(OSError):
                ptrace.detach(tid)
        self._ended = time.monotonic_ns() if self._began else 0
