# SPDX-License-Identifier: Apache-2.0
"""Pace: when the rings are looked at.

Traces wait for a timer, or for a ring that is half full (the kernel wakes at that, whatever is asked for): a
wake-up for each would cost the sampled program several microseconds. Unless they come more seldom than the
timer ticks: then each is named at once, and nobody is woken for nothing.
"""

from __future__ import annotations

import time

from rubyunwind.bpf.timer import Timer
from rubyunwind.profiler.ticks import out_of_step

__all__ = ["Pace"]

_NO_WAKE_UPS = 1 << 20
# Seconds between looks at the rings. Names of Ruby code are read from the process, so where code does not
# live that long (an `eval` at each request) we look more often, for some seconds after it was last seen; and
# less often once all that was sampled for a while had been read before.
_SHORT_PERIOD, _PERIOD, _QUIET_PERIOD = 0.002, 0.025, 0.1
_HURRY, _NEWS = 5.0, 2.0
# And where nothing is expected but what the kernel wakes us for.
_LONG_PERIOD = 0.25
# Seconds by which a look at the processes may be early, where we are awake anyhow.
_EARLY = 0.003


class Pace:
    """The clock of a profiler of so many `ticks` a second on each of so many `cpus`. Makes its timer.

    `prompt`: all samples are of ticks, so that each may wake the reader where ticks are rare, and the rings
    hold what comes while nothing is new.
    """

    def __init__(self, ticks: int, cpus: int, *, prompt: bool) -> None:
        self._prompt = prompt and ticks * cpus * _PERIOD <= 1
        self._short, self._usual, self._quiet, self._long = (
            out_of_step(period, ticks) for period in (_SHORT_PERIOD, _PERIOD, _QUIET_PERIOD, _LONG_PERIOD)
        )
        self._relaxes = prompt
        self._set = self._usual
        self._unnamed = self._news = 0
        self._hurry_until = self._due = self._look_due = self._fires = 0.0
        self._news_until = time.monotonic() + _NEWS
        self.timer = Timer(self._usual)

    @property
    def wakeup_events(self) -> int:
        """How many records wake the reader of a ring."""
        return 1 if self._prompt else _NO_WAKE_UPS

    @property
    def left(self) -> float:
        """Seconds until there is something to do, if nothing comes meanwhile."""
        return max(0.0, self._due - time.monotonic())

    def may_rest(self, unnamed: int, news: int) -> bool:
        """Whether no process is to be looked at yet; the next look at the rings is set then. See `go_on`."""
        now = time.monotonic()
        if now + _EARLY >= self._look_due:
            return False
        self._due = min(self._look_due, now + self._period(now, self._look_due - now, unnamed, news))
        return True

    def go_on(self, wait: float, unnamed: int, news: int) -> None:
        """Set the timer for the next look at the rings.

        `wait`: seconds until the processes are to be looked at; `unnamed`: how many stacks there have been
        whose Ruby code had gone; `news`: how much that was not known, code and processes.
        """
        now = time.monotonic()
        self._look_due = now + wait
        self._due = now + min(wait, self._period(now, wait, unnamed, news))

    def _period(self, now: float, wait: float, unnamed: int, news: int) -> float:
        if unnamed != self._unnamed:
            self._unnamed = unnamed
            self._hurry_until = now + _HURRY
        if news != self._news:
            self._news = news
            self._news_until = now + _NEWS
        if self._prompt:
            # Whatever is sampled wakes us by itself: the timer is for the processes alone.
            period = min(max(wait, self._short), self._long)
            if abs(now + period - self._fires) > _EARLY:
                self._fires = now + period
                self.timer.set_period(period)
            return period
        if now < self._hurry_until:
            period = self._short
        else:
            period = self._quiet if self._relaxes and now >= self._news_until else self._usual
        if period != self._set:
            self._set = period
            self.timer.set_period(period)
        return period
