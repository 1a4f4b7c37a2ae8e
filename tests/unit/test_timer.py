# SPDX-License-Identifier: Apache-2.0
"""One descriptor for descriptors and a clock."""

from __future__ import annotations

import os
import select

import pytest

from rubyunwind.bpf import timer as timer_module
from rubyunwind.bpf.timer import Timer
from rubyunwind.errors import BpfError

LONG = 3600.0


def readable(timer: Timer, milliseconds: int = 0) -> bool:
    poll = select.poll()
    poll.register(timer.fileno(), select.POLLIN)
    return bool(poll.poll(milliseconds))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks


def test_it_becomes_readable_by_the_clock_and_quiet_when_cleared() -> None:
    with Timer(0.001) as timer:
        assert readable(timer, 5000)
    with Timer(LONG) as timer:
        assert not readable(timer)
        timer.clear()  # nothing was due


def test_it_becomes_readable_by_what_it_watches() -> None:
    read, write = os.pipe()
    with Timer(LONG) as timer:
        timer.watch(read)
        assert not readable(timer)
        os.write(write, b"x")
        assert readable(timer)
        timer.wait(LONG)
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("timeout", [0.0, -0.001, -5.0])
def test_a_wait_that_is_over_already_does_not_wait(timeout: float) -> None:
    with Timer(LONG) as timer:
        timer.wait(timeout)


@pytest.mark.parametrize("period", [0, -1, 1e-10])
def test_a_clock_without_a_period_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match="it must be above zero"):
        Timer(period)


def test_closing_twice_is_harmless_and_leaves_no_descriptor() -> None:
    before = descriptors()
    timer = Timer(LONG)
    timer.close()
    timer.close()
    assert descriptors() == before


@pytest.mark.parametrize("call", ["timerfd_create", "timerfd_settime"])
def test_a_refused_timer_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    real = timer_module.LIBC

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return (lambda *arguments: -1) if name == call else getattr(real, name)

    monkeypatch.setattr(timer_module, "LIBC", Refusing())
    before = descriptors()
    with pytest.raises(BpfError, match="timer"):
        Timer(LONG)
    assert descriptors() == before
