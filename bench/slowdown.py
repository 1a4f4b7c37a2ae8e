# SPDX-License-Identifier: Apache-2.0
"""How much a profiled program is slowed down.

A Ruby process does the same piece of work over and over, on a CPU of its own: alone, with a perf event
that runs no program, and with the whole profiler. Each round has every arm once, in random order, and gives
a ratio of each to the arm without anything; the machine's noise is larger than what is measured, so that
only the median of many short rounds says something. The profiler is loaded all the time, events come and go.
"""

from __future__ import annotations

import random
import select
import time
from contextlib import ExitStack
from statistics import median

from report import Row, say
from stats import Interval, bootstrap
from target import Ruby, stay_apart

from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.profiler.profiler import Profiler
from rubyunwind.profiler.ticks import Ticks

__all__ = ["measure"]

DEPTH = 50
RATES = (99, 999)
_NOTHING, _EVENT, _PROFILER = "nothing", "event", "profiler"
_Arm = tuple[str, int]
_FIRST_ROUNDS = 200_000


class _Bench:
    def __init__(self, ruby: Ruby, profilers: dict[int, Profiler]) -> None:
        self.ruby = ruby
        self.profilers = profilers
        self.samples: dict[int, int] = dict.fromkeys(profilers, 0)
        self.seconds: dict[int, float] = dict.fromkeys(profilers, 0.0)

    def calibrate(self, seconds: float) -> int:
        """Return how many rounds take about `seconds`."""
        times = []
        for _ in range(5):
            self.ruby.ask(_FIRST_ROUNDS)
            times.append(int(self.ruby.answer()) / _FIRST_ROUNDS)
        return int(seconds * 1e9 / median(times))

    def chunk(self, arm: _Arm, rounds: int) -> float:
        """Let the target work once under an arm; return the nanoseconds it took by its own clock."""
        kind, rate = arm
        with ExitStack() as stack:
            if kind == _EVENT:
                stack.enter_context(perf_event_open(pid=self.ruby.pid, frequency=rate, inherit=True))
            if kind == _PROFILER:
                program = self.profilers[rate]._collection.programs["native_tracer_entry"]
                stack.enter_context(Ticks(program, rate)).follow(self.ruby.pid)
            self.ruby.ask(rounds)
            took = self._wait(self.profilers[rate] if kind == _PROFILER else None)
        if kind == _PROFILER:
            self.samples[rate] += len(self.profilers[rate].poll(0))
            self.seconds[rate] += took / 1e9
        return took

    def _wait(self, profiler: Profiler | None) -> float:
        """Do what a recorder does until the target has answered."""
        watched = [self.ruby.output.fileno()] + ([profiler.fileno()] if profiler else [])
        while True:
            ready = select.select(watched, [], [], 30.0)[0]
            if not ready:
                raise TimeoutError("the target has not answered")
            if profiler is not None and profiler.fileno() in ready:
                self.samples[profiler._rate] += len(profiler.poll(0))
            if watched[0] in ready:
                return float(self.ruby.answer())


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    pairs, seconds = (30, 0.06) if quick else (120, 0.1)
    say(f"slowdown: {pairs} rounds of {1 + 2 * len(RATES)} chunks of {1000 * seconds:.0f} ms")
    stay_apart()
    arms: list[_Arm] = [(_NOTHING, 0), *((kind, rate) for rate in RATES for kind in (_EVENT, _PROFILER))]
    draw = random.Random(1)
    times: dict[_Arm, list[float]] = {arm: [] for arm in arms}
    with ExitStack() as stack:
        ruby = stack.enter_context(Ruby.working(DEPTH))
        profilers = {rate: stack.enter_context(Profiler(rate=rate)) for rate in RATES}
        bench = _Bench(ruby, profilers)
        rounds = bench.calibrate(seconds)
        for profiler in profilers.values():
            profiler._tracker.add(ruby.pid)
        for arm in arms:  # names are looked up and caches filled before anything counts
            bench.chunk(arm, rounds)
        time.sleep(0.05)
        bench.samples, bench.seconds = dict.fromkeys(RATES, 0), dict.fromkeys(RATES, 0.0)
        for _ in range(pairs):
            for arm in draw.sample(arms, len(arms)):
                times[arm].append(bench.chunk(arm, rounds))
    rows = []
    base = times[_NOTHING, 0]
    how = f"{pairs} rounds of {1000 * seconds:.0f} ms, Ruby depth {DEPTH}, median ratio, 95 % interval"
    for rate in RATES:
        event, whole = times[_EVENT, rate], times[_PROFILER, rate]
        due = bench.seconds[rate] * rate
        rows += [
            Row(f"slowdown at {rate} Hz, event alone", _percent(event, base), "%", how),
            Row(
                f"slowdown at {rate} Hz, profiler",
                _percent(whole, base),
                "%",
                f"the same; {bench.samples[rate]} samples read, {due:.0f} due",
            ),
            Row(f"slowdown at {rate} Hz, profiler over event alone", _percent(whole, event), "%", "ratio of the two, the same rounds"),
        ]
    return rows


def _percent(times: list[float], base: list[float]) -> str:
    found: Interval = bootstrap([time / other for time, other in zip(times, base, strict=True)])
    middle, low, high = (100 * (ratio - 1) for ratio in (found.median, found.low, found.high))
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"
