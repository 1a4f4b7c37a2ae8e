# SPDX-License-Identifier: Apache-2.0
"""When the rings are looked at: seldom while nothing is new, often where code comes and goes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rubyunwind.profiler import pace as pace_module
from rubyunwind.profiler.pace import Pace


class Clock:
    """Stands for the time module."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Timer:
    """Stands for a Timer: only its period."""

    def __init__(self, period: float) -> None:
        self.period = period

    def set_period(self, period: float) -> None:
        self.period = period


Started = Callable[..., tuple[Pace, Clock, Timer]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Makes a pace at 99 ticks on two CPUs, and gives its clock and timer."""

    def start(ticks: int = 99, *, prompt: bool = True) -> tuple[Pace, Clock, Timer]:
        clock = Clock()
        monkeypatch.setattr(pace_module, "time", clock)
        monkeypatch.setattr(pace_module, "Timer", Timer)
        pace = Pace(ticks, 2, prompt=prompt)
        timer = pace.timer
        assert isinstance(timer, Timer)
        return pace, clock, timer

    return start


def about(period: float) -> object:
    return pytest.approx(period, rel=0.3)


def test_while_nothing_is_new_the_rings_are_looked_at_seldom(started: Started) -> None:
    pace, clock, timer = started()
    assert timer.period == about(0.025)  # all is new in the beginning
    clock.now += 1
    pace.go_on(1.0, 0, 5)
    assert timer.period == about(0.025)
    clock.now += 1.9
    pace.go_on(1.0, 0, 5)
    assert timer.period == about(0.025)
    clock.now += 0.2
    pace.go_on(1.0, 0, 5)
    assert timer.period == about(0.1)
    assert pace.left == about(0.1)
    clock.now += 0.1
    assert pace.may_rest(0, 5)
    assert timer.period == about(0.1)
    # A method that was not known, or a process.
    pace.go_on(1.0, 0, 6)
    assert timer.period == about(0.025)
    assert pace.left == about(0.025)


def test_where_code_goes_they_are_looked_at_often_for_some_seconds(started: Started) -> None:
    pace, clock, timer = started()
    clock.now += 10
    pace.go_on(1.0, 0, 0)
    assert timer.period == about(0.1)
    pace.go_on(1.0, 1, 0)
    assert timer.period == about(0.002)
    clock.now += 4
    pace.go_on(1.0, 1, 1)
    assert timer.period == about(0.002)
    clock.now += 1.5
    assert not pace.may_rest(1, 1)  # the processes are due
    pace.go_on(1.0, 1, 1)
    assert timer.period == about(0.025)
    clock.now += 2
    pace.go_on(1.0, 1, 1)
    assert timer.period == about(0.1)


def test_the_processes_are_looked_at_when_that_is_due(started: Started) -> None:
    pace, clock, _ = started()
    clock.now += 10
    pace.go_on(0.004, 0, 0)
    assert pace.left == pytest.approx(0.004)
    pace.go_on(0.15, 0, 0)
    clock.now += 0.1
    assert pace.may_rest(0, 0)
    assert pace.left == pytest.approx(0.05)
    clock.now += 0.051
    assert not pace.may_rest(0, 0)


def test_with_off_cpu_samples_the_rings_fill_faster_than_ticks_tell(started: Started) -> None:
    pace, clock, timer = started(prompt=False)
    clock.now += 10
    pace.go_on(1.0, 0, 0)
    assert timer.period == about(0.025)


def test_where_ticks_are_rare_each_wakes_the_reader(started: Started) -> None:
    pace, clock, timer = started(ticks=10)
    assert pace.wakeup_events == 1
    clock.now += 10
    pace.go_on(1.0, 0, 0)
    assert timer.period == about(0.25)
    pace.go_on(0.004, 0, 0)
    assert timer.period < 0.1
    assert started(ticks=99)[0].wakeup_events > 1000


def test_where_each_tick_wakes_the_reader_the_timer_is_for_the_processes_alone(started: Started) -> None:
    pace, clock, timer = started(ticks=10)
    set_to: list[float] = []
    timer.set_period = set_to.append  # type: ignore[method-assign]
    pace.go_on(0.08, 0, 0)
    assert set_to == [0.08]
    clock.now += 0.03  # woken by a sample
    pace.go_on(0.05, 0, 0)
    assert set_to == [0.08]  # it goes off then already
    pace.go_on(0.025, 0, 0)
    assert set_to == [0.08, 0.025]
    clock.now += 0.023
    assert not pace.may_rest(0, 0)  # so close to it nobody is woken once more
