# SPDX-License-Identifier: Apache-2.0
"""The calls of ptrace(2) that stop threads, read their registers and let them go.

The kernel ties a traced thread to the thread that seized it: everything here must be called from that one.
Where a thread is not traced by the caller, is not stopped or is gone, the calls raise ProcessLookupError
(ESRCH means all three).
"""

from __future__ import annotations

import contextlib
import os
from enum import Enum

from rubyunwind._libbpf import ffi

__all__ = [
    "Life",
    "detach",
    "interrupt",
    "life",
    "pending_signal",
    "registers",
    "seize",
    "take_signal",
    "thread_pointer",
]

# include/uapi/linux/ptrace.h
_CONT, _DETACH, _GETSIGINFO, _GETREGSET, _SEIZE, _INTERRUPT = 7, 17, 0x4202, 0x4204, 0x4206, 0x4207
_EVENT_STOP = 128
# include/uapi/linux/elf.h
_NT_PRSTATUS, _NT_ARM_TLS = 1, 0x401
_WALL = 0x40000000  # include/uapi/linux/wait.h: also threads, which Python has no name for
_MAX_REGISTERS = 512  # bytes; the largest set asked for has 272
_ENDS = (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED)

_libc = ffi.dlopen(None)


class Life(Enum):
    """What became of a seized thread: it lives, it has ended, or its id is no thread of ours any more."""

    ALIVE = "alive"
    ENDED = "ended"
    VANISHED = "vanished"


def _call(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, tid, address, data) == -1:
        code = ffi.errno
        raise OSError(code, f"ptrace {request:#x} of thread {tid}: {os.strerror(code)}")


def seize(tid: int) -> None:
    """Begin to trace a thread without stopping it. Raises PermissionError, ProcessLookupError."""
    _call(_SEIZE, tid)


def interrupt(tid: int) -> None:
    """Ask a seized thread to stop as soon as it can; a sleeping system call is restarted afterwards."""
    _call(_INTERRUPT, tid)


def detach(tid: int) -> None:
    """Let a stopped thread go on, or back into a stop that its whole process is in."""
    _call(_DETACH, tid)


def _register_set(tid: int, kind: int) -> bytes:
    buffer = ffi.new("char[]", _MAX_REGISTERS)
    vector = ffi.new("struct iovec *", {"iov_base": buffer, "iov_len": _MAX_REGISTERS})
    _call(_GETREGSET, tid, kind, int(ffi.cast("uintptr_t", vector)))
    return bytes(ffi.buffer(buffer, vector.iov_len))


def registers(tid: int) -> bytes:
    """Return the general registers of a stopped thread; see RegisterLayout.decode."""
    return _register_set(tid, _NT_PRSTATUS)


def thread_pointer(tid: int) -> int:
    """Return TPIDR_EL0 of a stopped thread, on AArch64 (on x86_64 it is among the registers)."""
    return int.from_bytes(_register_set(tid, _NT_ARM_TLS)[:8], "little")


def pending_signal(tid: int) -> int:
    """Return the signal that a thread stopped for, before taking it; 0 if it stopped because of `interrupt`.

    A stop of the latter kind is seen no more by wait afterwards. The tracer may be the parent, too, and
    whatever looks after its children would take the stop for their end, as subprocess.Popen.poll does.
    """
    info = ffi.new("int[32]")  # siginfo_t, 128 bytes: si_signo, si_errno, si_code, ...
    _call(_GETSIGINFO, tid, 0, int(ffi.cast("uintptr_t", info)))
    # An interrupt, and a stop of the whole process, have PTRACE_EVENT_STOP above the signal in si_code.
    if info[2] >> 8 != _EVENT_STOP:
        return int(info[0])
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, tid, os.WSTOPPED | os.WNOHANG | _WALL)
    return 0


def take_signal(tid: int, signal: int) -> None:
    """Let a thread that stopped for a signal take it and stop again, at the latest at its handler."""
    _call(_INTERRUPT, tid)  # first: the stop for the signal has cancelled the one that was asked for
    _call(_CONT, tid, 0, signal)


def life(tid: int, *, reap: bool) -> Life:
    """Return what became of a seized thread. With `reap`, one that has ended is given back to the kernel.

    An ended thread stays until its tracer has seen its end, and exec in another one waits for that. The
    main thread must not be reaped: its exit status is its parent's to collect, which may be this process.
    """
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL
    try:
        news = os.waitid(os.P_PID, tid, options)
        # The stop of a traced thread is reported whether it was asked for or not.
        if news is None or news.si_code not in _ENDS:
            return Life.ALIVE
        if reap:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, tid, options & ~os.WNOWAIT)
    except ChildProcessError:
        return Life.VANISHED
    return Life.ENDED
