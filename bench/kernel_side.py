# SPDX-License-Identifier: Apache-2.0
"""What the kernel side costs: loading the programs, and nanoseconds a sample by depth of the stack.

The kernel's run-time statistics time a program from its entry to its end; what it tail-calls runs inside of
that and has no count of its own, so the time of `native_tracer_entry` is that of the whole chain.

The chain reads as the reference does (six times for a Ruby frame, twice for a native one, the ABI's maps):
what the walker saves is the quotient of the slopes over the depths that both can walk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

from report import Row, say
from stats import spread, timed
from target import ROOT, Ruby, stay_apart

from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.refusals import check
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.profiler.backends import UNWINDERS, WALKER
from rubyunwind.profiler.map_sizes import FOR_A_FEW
from rubyunwind.profiler.profiler import Profiler
from rubyunwind.profiler.sample import Sample
from rubyunwind.profiler.tracer import entry_of, load_tracer

__all__ = ["measure"]

RATE = 999
_BPF_STATS_RUN_TIME = 0  # include/uapi/linux/bpf.h: enum bpf_stats_type
_BOUNCES = ROOT / "tests/ruby/bounces.rb"
_SMALL, _LARGE, _DEEP = "small", "large", "deep"
# Ruby frames; turns between Ruby and C. The last ones only the walker can walk.
DEPTHS = {_SMALL: 10, _LARGE: 100, _DEEP: 1000}
BOUNCES = {_SMALL: 2, _LARGE: 11, _DEEP: 200}


@contextmanager
def run_statistics() -> Iterator[None]:
    """Let the kernel time its BPF programs (5.8 and newer)."""
    fd = check(load_library().lib.bpf_enable_stats(_BPF_STATS_RUN_TIME), "turn run-time statistics on")
    try:
        yield
    finally:
        os.close(fd)


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    stay_apart()
    return [*_load(3 if quick else 10), *_samples(3 if quick else 9, 0.3)]


def _load(runs: int) -> list[Row]:
    say(f"loading the programs, {runs} times")
    parsing, spec = timed(runs, load_collection_spec)
    how = f"no kernel involved; {runs} runs, median (range)"
    rows = [Row("parse the object", spread(parsing, scale=1e3), "ms", how)]
    for unwinder in UNWINDERS:
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            with load_tracer(spec, unwinder=unwinder, max_entries=FOR_A_FEW) as collection:
                seconds.append(time.perf_counter() - start)
                stats = {name: program.stats() for name, program in collection.programs.items()}
        verified = {name: found.verified_instructions for name, found in stats.items()}
        how = ", ".join(f"{name} {count:,}" for name, count in verified.items())
        rows += [
            Row(f"load the {unwinder}", spread(seconds, scale=1e3), "ms", f"maps and programs; {runs} runs"),
            Row(f"verified instructions, {unwinder}", f"{sum(verified.values()):,}", "", how),
        ]
    return rows


class _Arm(NamedTuple):
    """A target and what walks its stacks."""

    unwinder: str
    what: str
    size: str

    @property
    def number(self) -> int:
        return (DEPTHS if self.what == "Ruby depth" else BOUNCES)[self.size]


def _samples(runs: int, seconds: float) -> list[Row]:
    arms = [
        _Arm(unwinder, what, size)
        for unwinder in UNWINDERS
        for what in ("Ruby depth", "turns between Ruby and C")
        for size in (_SMALL, _LARGE, _DEEP)
        if unwinder == WALKER or size != _DEEP
    ]
    say(f"time of a sample, {len(arms)} stacks and walkers, {runs} runs of {seconds} s each")
    times: dict[_Arm, list[float]] = {arm: [] for arm in arms}
    shapes: dict[_Arm, set[tuple[int, int]]] = {arm: set() for arm in arms}
    with ExitStack() as stack:
        stack.enter_context(run_statistics())
        profilers = {each: stack.enter_context(Profiler(rate=RATE, unwinder=each)) for each in UNWINDERS}
        rubies: dict[tuple[str, str], Ruby] = {}
        for profiler in profilers.values():
            profiler._ticks.close()
        for arm in arms:
            key = (arm.what, arm.size)
            if key not in rubies:
                rubies[key] = stack.enter_context(_target(arm))
                rubies[key].stop()
            profilers[arm.unwinder]._tracker.follow(rubies[key].pid)
        for number in range(runs + 1):
            for arm in arms:
                spent, ran, samples = _one(profilers[arm.unwinder], rubies[arm.what, arm.size], seconds)
                if number:  # in the first, names were looked up and caches filled
                    times[arm].append(spent / ran)
                    shapes[arm] |= {_shape(sample) for sample in samples}
        for ruby in rubies.values():
            ruby.go_on()
    rows = []
    for arm in arms:
        how = f"{runs} runs; {_range({ruby for ruby, _ in shapes[arm]})} Ruby and "
        how += f"{_range({native for _, native in shapes[arm]})} native frames"
        rows.append(Row(f"{arm.unwinder}, {arm.what} {arm.number}", spread(times[arm], 2, 1e-3), "us", how))
    return rows + _slopes(times, shapes) + _shares(times)


def _target(arm: _Arm) -> Ruby:
    if arm.what == "Ruby depth":
        return Ruby.spinning(arm.number)
    ruby = Ruby(_BOUNCES, arm.number)
    ruby.answer()
    return ruby


def _one(profiler: Profiler, ruby: Ruby, seconds: float) -> tuple[int, int, list[Sample]]:
    """Return nanoseconds that the programs ran, how often, and the samples."""
    program = entry_of(profiler.collection)
    ruby.go_on()
    before = program.stats()
    # On this thread only: ticks that find another process at work would lower the mean.
    with perf_event_open(pid=ruby.pid, frequency=RATE) as event:
        event.attach(program)
        samples = _gather(profiler, seconds)
    samples += profiler.poll(0)  # none is left for the next one
    after = program.stats()
    ruby.stop()
    return after.run_time_ns - before.run_time_ns, after.run_count - before.run_count, samples


def _slopes(times: dict[_Arm, list[float]], shapes: dict[_Arm, set[tuple[int, int]]]) -> list[Row]:
    """Return what one more frame costs. A turn between Ruby and C has frames of both."""
    rows = []
    for unwinder in UNWINDERS:
        few, many = (_Arm(unwinder, "Ruby depth", size) for size in (_SMALL, _LARGE))
        ruby = _slope(times[few], times[many], many.number - few.number)
        few, many = (_Arm(unwinder, "turns between Ruby and C", size) for size in (_SMALL, _LARGE))
        frames = [sorted(shapes[arm])[len(shapes[arm]) // 2] for arm in (few, many)]
        more_ruby, more_native = (frames[1][kind] - frames[0][kind] for kind in (0, 1))
        turns = _slope(times[few], times[many], 1)
        native = [(whole - more_ruby * one) / more_native for whole, one in zip(turns, ruby, strict=True)]
        how = f"slope over {few.number} to {many.number} turns: {more_native} frames more, "
        how += f"and {more_ruby} Ruby ones, taken off"
        rows += [
            Row(f"{unwinder}, one more Ruby frame", spread(ruby, 1), "ns", "slope from depth 10 to 100"),
            Row(f"{unwinder}, one more native frame", spread(native, 1), "ns", how),
        ]
    return rows


def _slope(few: list[float], many: list[float], distance: int) -> list[float]:
    return [(deep - flat) / distance for flat, deep in zip(few, many, strict=True)]


def _shares(times: dict[_Arm, list[float]]) -> list[Row]:
    rows = []
    for unwinder in UNWINDERS:
        busy = 100 * RATE * median(times[_Arm(unwinder, "Ruby depth", _LARGE)]) / 1e9
        what = f"{unwinder}, share of a CPU at {RATE} Hz and depth {DEPTHS[_LARGE]}"
        rows.append(Row(what, f"{busy:.2f}", "%", "by the program's own time"))
    return rows


def _gather(profiler: Profiler, seconds: float) -> list[Sample]:
    end = time.monotonic() + seconds
    samples: list[Sample] = []
    while (left := end - time.monotonic()) > 0:
        samples += profiler.poll(left)
    return samples


def _shape(sample: Sample) -> tuple[int, int]:
    kinds = [frame.kind for frame in sample.frames]
    return kinds.count("ruby"), kinds.count("native")


def _range(values: set[int] | list[int]) -> str:
    if not values:
        return "no"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
