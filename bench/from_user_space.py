# SPDX-License-Identifier: Apache-2.0
"""What needs no eBPF: a snapshot of a process, one of a core file, and the sampling backend `user`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from report import Row, say
from stats import spread
from target import Ruby, stay_apart

from rubyunwind.profiler.snapshot import Snapshot, take_snapshot
from rubyunwind.profiler.user_profiler import UserProfiler

__all__ = ["measure"]

THREADS = 20
DEPTH = 50
RATE = 99
_SCRIPT = Path(__file__).parent / "ruby/waiting_threads.rb"


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    stay_apart()
    runs = 10 if quick else 40
    with Ruby(_SCRIPT, THREADS, DEPTH) as ruby:
        ruby.answer()
        rows = [*_snapshots(ruby.pid, runs), *_cores(ruby.pid, runs // 2)]
    for depth in (10, DEPTH):
        with Ruby.spinning(depth) as ruby:
            rows.append(_backend(ruby.pid, depth, 3 if quick else 10))
    return rows


def _checked(taken: Snapshot) -> Snapshot:
    whole = sum(thread.complete for thread in taken.threads)
    frames = min(sum(frame.kind == "ruby" for frame in thread.frames) for thread in taken.threads[:THREADS])
    if whole < THREADS or frames < DEPTH:
        raise RuntimeError(f"{whole} whole threads, {frames} Ruby frames in the shortest: nothing to time")
    return taken


def _snapshots(pid: int, runs: int) -> list[Row]:
    say(f"snapshot of {THREADS} threads, {runs} runs")
    whole, stopped = [], []
    for _ in range(runs + 1):  # the first one fills the cache of unwind rows
        start = time.perf_counter()
        taken = _checked(take_snapshot(pid))
        whole.append(time.perf_counter() - start)
        stopped.append(taken.stopped_ns / 1e9)
    how = f"{THREADS} threads at Ruby depth {DEPTH}; {runs} runs, median (range)"
    return [
        Row("snapshot of a process", spread(whole[1:], scale=1000), "ms", how),
        Row("  of it: the process stands still", spread(stopped[1:], scale=1000), "ms", "the same runs"),
    ]


def _cores(pid: int, runs: int) -> list[Row]:
    gcore = shutil.which("gcore")
    if gcore is None:
        say("no gcore (Debian: gdb): no row for core files")
        return []
    say(f"snapshot of a core file, {runs} runs")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "core")
        subprocess.run([gcore, "-o", os.fspath(path), str(pid)], check=True, capture_output=True, timeout=120)
        path = path.with_name(f"core.{pid}")
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            _checked(take_snapshot(core=path))
            times.append(time.perf_counter() - start)
        size = path.stat().st_size / (1 << 20)
    how = f"the same process by gcore, {size:,.0f} MiB in the page cache; {runs} runs, median (range)"
    return [Row("snapshot of a core file", spread(times, scale=1000), "ms", how)]


def _backend(pid: int, depth: int, seconds: int) -> Row:
    say(f"backend user at {RATE} Hz and depth {depth}, {seconds} s")
    with UserProfiler([pid], rate=RATE) as profiler:
        profiler.poll(1.0)
        start, used = time.perf_counter(), time.process_time()
        count = 0
        while time.perf_counter() - start < seconds:
            count += sum(1 for _ in profiler.poll(0.2))
        share = (time.process_time() - used) / (time.perf_counter() - start)
    return Row(
        f"backend user at Ruby depth {depth}",
        f"{100 * share:.2f}",
        "% of a CPU",
        f"{RATE} Hz for {seconds} s, the sampler's own CPU time; {count} samples",
    )
