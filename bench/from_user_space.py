# SPDX-License-Identifier: Apache-2.0
"""What needs no eBPF: a snapshot of a process, and one of a core file."""

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

__all__ = ["measure"]

THREADS = 20
DEPTH = 50
_SCRIPT = Path(__file__).parent / "ruby/waiting_threads.rb"


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    stay_apart()
    runs = 10 if quick else 40
    with Ruby(_SCRIPT, THREADS, DEPTH) as ruby:
        ruby.answer()
        return [*_snapshots(ruby.pid, runs), *_cores(ruby.pid, runs // 2)]


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
