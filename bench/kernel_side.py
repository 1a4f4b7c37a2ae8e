# SPDX-License-Identifier: Apache-2.0
"""What the kernel side costs: loading the programs, and nanoseconds a sample by depth of the stack.

The kernel's run-time statistics time a program from its entry to its end; what it tail-calls runs inside of
that and has no count of its own, so the time of `native_tracer_entry` is that of the whole chain.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from report import Row, say
from stats import spread, timed
from target import Ruby, stay_apart

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.refusals import check
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.profiler.profiler import _FEW, Profiler
from rubyunwind.profiler.sample import Sample

__all__ = ["measure"]

DEPTHS = (10, 50, 100)
RATE = 999
_BPF_STATS_RUN_TIME = 0  # include/uapi/linux/bpf.h: enum bpf_stats_type


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
    return [*_load(3 if quick else 10), *_samples(3 if quick else 9, 0.4)]


def _load(runs: int) -> list[Row]:
    say(f"loading the programs, {runs} times")
    parsing, spec = timed(runs, load_collection_spec)
    seconds: list[float] = []
    without: list[float] = []
    for _ in range(runs):
        for skipped, into in ((frozenset[str](), seconds), (frozenset(spec.programs), without)):
            start = time.perf_counter()
            collection = Collection(
                spec, max_entries=_FEW, without_maps=frozenset(), without_programs=skipped
            )
            into.append(time.perf_counter() - start)
            if not skipped:
                stats = {name: program.stats() for name, program in collection.programs.items()}
            collection.close()
    verified = {name: found.verified_instructions for name, found in stats.items()}
    listed = ", ".join(f"{name} {count:,}" for name, count in verified.items())
    return [
        Row(
            "parse the object",
            spread(parsing, scale=1e3),
            "ms",
            f"no kernel involved; {runs} runs, median (range)",
        ),
        Row(
            "load maps and programs",
            spread(seconds, scale=1e3),
            "ms",
            f"open, create, verify, fill progs; {runs} runs",
        ),
        Row(
            "load maps alone",
            spread(without, scale=1e3),
            "ms",
            f"the same object without its programs; {runs} runs",
        ),
        Row("verified instructions", f"{sum(verified.values()):,}", "", listed),
    ]


def _samples(runs: int, seconds: float) -> list[Row]:
    say(f"time of a sample at Ruby depth {', '.join(map(str, DEPTHS))}, {runs} runs of {seconds} s each")
    times: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    shapes: dict[int, set[tuple[int, int]]] = {depth: set() for depth in DEPTHS}
    counts: dict[int, int] = dict.fromkeys(DEPTHS, 0)
    with ExitStack() as stack:
        stack.enter_context(run_statistics())
        profiler = stack.enter_context(Profiler(rate=RATE))
        profiler._ticks.close()
        program = profiler._collection.programs["native_tracer_entry"]
        rubies = {depth: stack.enter_context(Ruby.spinning(depth)) for depth in DEPTHS}
        for ruby in rubies.values():
            profiler._tracker.follow(ruby.pid)
            ruby.stop()
        for number in range(runs + 1):
            for depth, ruby in rubies.items():
                ruby.go_on()
                before = program.stats()
                # On this thread only: ticks that find another process at work would lower the mean.
                with perf_event_open(pid=ruby.pid, frequency=RATE) as event:
                    event.attach(program)
                    samples = _gather(profiler, seconds)
                samples += profiler.poll(0)  # none is left for the next one
                after = program.stats()
                ruby.stop()
                if not number:
                    continue  # names were looked up and caches filled
                ran = after.run_count - before.run_count
                times[depth].append((after.run_time_ns - before.run_time_ns) / ran)
                counts[depth] += ran
                shapes[depth] |= {_shape(sample) for sample in samples}
        for ruby in rubies.values():
            ruby.go_on()
    rows = []
    for depth in DEPTHS:
        ruby_frames = {shape[0] for shape in shapes[depth]}
        native = sorted(shape[1] for shape in shapes[depth])
        how = f"{runs} runs, {counts[depth]:,} samples; "
        how += f"{_range(ruby_frames)} Ruby and {_range(native)} native frames"
        rows.append(Row(f"kernel side at Ruby depth {depth}", spread(times[depth], 2, 1e-3), "us", how))
    slopes = [
        (deep - flat) / (DEPTHS[-1] - DEPTHS[0])
        for flat, deep in zip(times[DEPTHS[0]], times[DEPTHS[-1]], strict=True)
    ]
    rows.append(
        Row(
            "kernel side, one more Ruby frame",
            spread(slopes, 0),
            "ns",
            f"slope from depth {DEPTHS[0]} to {DEPTHS[-1]}",
        )
    )
    busy = 100 * RATE * median(times[50]) / 1e9
    rows.append(
        Row(f"share of a CPU at {RATE} Hz and depth 50", f"{busy:.2f}", "%", "by the program's own time")
    )
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
