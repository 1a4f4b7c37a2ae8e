# SPDX-License-Identifier: Apache-2.0
"""How much a profiled program is slowed down.

A Ruby process does the same piece of work over and over, on a CPU of its own: alone, with a perf event
that runs no program, and with the whole profiler. Each round has every arm once, in random order, and gives
a ratio of each to the arm without anything; the machine's noise is larger than what is measured, so that
only the median of many short rounds says something. The profiler is loaded all the time, events come and go.

Times are the target's CPU time, which holds the interrupts too (unless the kernel accounts for them apart,
CONFIG_IRQ_TIME_ACCOUNTING), but not what neighbours took; the wall clock's ratio stands beside it.
"""

from __future__ import annotations

import random
import select
import time
from contextlib import ExitStack
from statistics import median

from report import Row, say
from stats import bootstrap
from target import Ruby, stay_apart

from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.profiler.profiler import Profiler
from rubyunwind.profiler.ticks import Ticks
from rubyunwind.profiler.tracer import entry_of

__all__ = ["measure"]

DEPTH = 50
RATES = (99, 999)
_NOTHING, _EVENT, _PROFILER = "nothing", "event", "profiler"
_Arm = tuple[str, int]
_Times = tuple[float, float]  # CPU and wall, ns
_CPU, _WALL = 0, 1
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
            times.append(_times(self.ruby.answer())[_CPU] / _FIRST_ROUNDS)
        return int(seconds * 1e9 / median(times))

    def chunk(self, arm: _Arm, rounds: int) -> _Times:
        """Let the target work once under an arm; return the times it took by its own clocks."""
        kind, rate = arm
        with ExitStack() as stack:
            if kind == _EVENT:
                for cpu in online_cpus():
                    stack.enter_context(perf_event_open(pid=-1, cpu=cpu, frequency=rate))
            if kind == _PROFILER:
                program = entry_of(self.profilers[rate].collection)
                stack.enter_context(Ticks(program, rate)).start()
            self.ruby.ask(rounds)
            took = self._wait(self.profilers[rate] if kind == _PROFILER else None)
        if kind == _PROFILER:
            self.samples[rate] += len(self.profilers[rate].poll(0))
            self.seconds[rate] += took[_CPU] / 1e9
        return took

    def _wait(self, profiler: Profiler | None) -> _Times:
        """Do what a recorder does until the target has answered."""
        watched = [self.ruby.output.fileno()] + ([profiler.fileno()] if profiler else [])
        while True:
            ready = select.select(watched, [], [], 30.0)[0]
            if not ready:
                raise TimeoutError("the target has not answered")
            if profiler is not None and profiler.fileno() in ready:
                self.samples[profiler._rate] += len(profiler.poll(0))
            if watched[0] in ready:
                return _times(self.ruby.answer())


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    pairs, seconds = (30, 0.06) if quick else (160, 0.1)
    say(f"slowdown: {pairs} rounds of {1 + 2 * len(RATES)} chunks of {1000 * seconds:.0f} ms")
    stay_apart()
    arms: list[_Arm] = [(_NOTHING, 0), *((kind, rate) for rate in RATES for kind in (_EVENT, _PROFILER))]
    draw = random.Random(1)
    times: dict[_Arm, list[_Times]] = {arm: [] for arm in arms}
    with ExitStack() as stack:
        ruby = stack.enter_context(Ruby.working(DEPTH))
        profilers = {rate: stack.enter_context(Profiler(rate=rate)) for rate in RATES}
        bench = _Bench(ruby, profilers)
        rounds = bench.calibrate(seconds)
        for profiler in profilers.values():
            profiler._ticks.close()  # each chunk has its own
            profiler._tracker.follow(ruby.pid)
        for arm in arms:  # names are looked up and caches filled before anything counts
            bench.chunk(arm, rounds)
        time.sleep(0.05)
        bench.samples, bench.seconds = dict.fromkeys(RATES, 0), dict.fromkeys(RATES, 0.0)
        for _ in range(pairs):
            for arm in draw.sample(arms, len(arms)):
                times[arm].append(bench.chunk(arm, rounds))
    rows = []
    base = times[_NOTHING, 0]
    how = f"CPU time; {pairs} rounds of {1000 * seconds:.0f} ms, depth {DEPTH}; median ratio, 95 % interval"
    for rate in RATES:
        event, whole = times[_EVENT, rate], times[_PROFILER, rate]
        name = f"slowdown at {rate} Hz"
        read = f"{bench.samples[rate]} samples read, {bench.seconds[rate] * rate:.0f} due by CPU time"
        rows += [
            Row(f"{name}, bare event", _percent(event, base), "%", how),
            Row(f"{name}, profiler", _percent(whole, base), "%", f"the same; {read}"),
            Row(f"{name}, profiler over bare event", _percent(whole, event), "%", "the same rounds"),
            Row(f"{name}, profiler, wall clock", _percent(whole, base, _WALL), "%", "the same rounds"),
        ]
    return rows


def _times(answer: bytes) -> _Times:
    cpu, wall = answer.split()
    return float(cpu), float(wall)


def _percent(times: list[_Times], base: list[_Times], clock: int = _CPU) -> str:
    found = bootstrap([time[clock] / other[clock] for time, other in zip(times, base, strict=True)])
    middle, low, high = (100 * (ratio - 1) for ratio in (found.median, found.low, found.high))
    return f"{middle:+.2f} ({low:+.2f} to {high:+.2f})"
