# SPDX-License-Identifier: Apache-2.0
"""Stopping a process's threads with ptrace, to read its memory and thread pointers while nothing moves."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Iterator

from rubyunwind.process.identity import threads

# sys/ptrace.h, elf.h
_CONT_DETACH, _GETREGSET, _SEIZE, _INTERRUPT = 17, 0x4204, 0x4206, 0x4207
_NT_PRSTATUS, _NT_ARM_TLS = 1, 0x401
_FS_BASE_WORD = 21  # of struct user_regs_struct, x86_64
_WALL = 0x40000000


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _ptrace(request: int, tid: int, address: int = 0, data: object = None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    argument = data if data is not None else ctypes.c_void_p(0)
    if libc.ptrace(ctypes.c_long(request), ctypes.c_long(tid), ctypes.c_void_p(address), argument) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"ptrace {request:#x} of {tid}")


def _thread_pointer(tid: int) -> int:
    words = (ctypes.c_uint64 * 64)()
    vector = _Iovec(ctypes.cast(words, ctypes.c_void_p), ctypes.sizeof(words))
    if platform.machine() == "aarch64":
        _ptrace(_GETREGSET, tid, _NT_ARM_TLS, ctypes.byref(vector))
        return int(words[0])
    _ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.byref(vector))
    return int(words[_FS_BASE_WORD])


@contextlib.contextmanager
def stopped_threads(pid: int) -> Iterator[dict[int, int]]:
    """Stop every thread of `pid` and yield {tid: thread pointer}; they run on afterwards."""
    held: list[int] = []
    try:
        for tid in threads(pid):
            _ptrace(_SEIZE, tid)
            held.append(tid)
            _ptrace(_INTERRUPT, tid)
            os.waitpid(tid, _WALL)
        yield {tid: _thread_pointer(tid) for tid in held}
    finally:
        for tid in held:
            with contextlib.suppress(OSError):
                _ptrace(_CONT_DETACH, tid)


def end(pid: int) -> None:
    """Kill a process that a test started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
