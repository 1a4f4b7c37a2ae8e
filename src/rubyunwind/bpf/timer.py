# SPDX-License-Identifier: Apache-2.0
"""One descriptor to wait for: other descriptors, or a period of time, whichever comes first."""

from __future__ import annotations

import os
import select
import sys

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.library import LIBC
from rubyunwind.errors import BpfError

__all__ = ["Timer"]

# include/uapi/linux/time.h, include/uapi/linux/timerfd.h
_CLOCK_MONOTONIC = 1
_TFD_CLOEXEC, _TFD_NONBLOCK = 0o2000000, 0o4000


class Timer:
    """An epoll over descriptors, a timerfd and an eventfd of its own. Never owns the descriptors it watches.

    An outer event loop needs no timer then: `fileno` becomes readable at least every `period` seconds.
    Raises BpfError when no descriptor is left.
    """

    def __init__(self, period: float) -> None:
        self._epoll = select.epoll()
        self._clock = self._bell = -1
        try:
            self._start()
            self.set_period(period)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        fd = LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_CLOEXEC | _TFD_NONBLOCK)
        if fd < 0:
            raise BpfError(ffi.errno, "create a timer")
        self._clock = int(fd)
        self.watch(self._clock)
        try:
            self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            raise BpfError(error.errno or 0, "create an event descriptor") from None
        self.watch(self._bell)

    def set_period(self, period: float) -> None:
        """Tick every `period` seconds from now on."""
        nanoseconds = int(period * 1e9)
        if nanoseconds < 1:
            raise ValueError(f"a period of {period} s: it must be above zero")
        interval = ffi.new("struct itimerspec *")
        interval.it_interval.tv_sec, interval.it_interval.tv_nsec = divmod(nanoseconds, 1_000_000_000)
        interval.it_value = interval.it_interval
        if LIBC.timerfd_settime(self._clock, 0, interval, ffi.NULL) < 0:
            raise BpfError(ffi.errno, f"set a timer to {nanoseconds} ns")

    def watch(self, fd: int) -> None:
        """Become readable when `fd` is, too."""
        self._epoll.register(fd, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor to wait for; borrowed, never close it."""
        return self._epoll.fileno()

    def wait(self, timeout: float) -> None:
        """Wait until something is due, at most `timeout` seconds; not at all for zero and below."""
        self._epoll.poll(max(0.0, timeout))

    def wake(self) -> None:
        """End a wait of another thread, and those to come."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def clear(self) -> int:
        """Take the ticks that are due, so that `fileno` is quiet until the next one; return their number."""
        try:
            return int.from_bytes(os.read(self._clock, 8), sys.byteorder)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the descriptors. Twice is harmless."""
        self._epoll.close()
        for fd in (self._clock, self._bell):
            if fd >= 0:
                os.close(fd)
        self._clock = self._bell = -1

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
