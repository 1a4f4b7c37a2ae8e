# SPDX-License-Identifier: Apache-2.0
"""What a recorder itself takes of a CPU while it samples one busy process, with eBPF and without."""

from __future__ import annotations

import time

from report import Row, say
from target import Ruby, stay_apart

from rubyunwind.profiler.profiler import Profiler
from rubyunwind.profiler.user_profiler import UserProfiler

__all__ = ["measure"]

RATE = 99
DEPTHS = (10, 50)


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    stay_apart()
    rows = []
    for backend in (Profiler, UserProfiler):
        for depth in DEPTHS:
            with Ruby.spinning(depth) as ruby:
                rows.append(_share(backend, ruby.pid, depth, 3 if quick else 20))
    return rows


def _share(backend: type[Profiler] | type[UserProfiler], pid: int, depth: int, seconds: int) -> Row:
    name = "bpf" if backend is Profiler else "user"
    say(f"backend {name} at {RATE} Hz and depth {depth}, {seconds} s")
    with backend([pid], rate=RATE) as profiler:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 1:  # the first names are dearer
            profiler.poll(0.2)
        start, used = time.perf_counter(), time.process_time()
        count = 0
        while time.perf_counter() - start < seconds:
            count += len(profiler.poll(0.2))
        share = (time.process_time() - used) / (time.perf_counter() - start)
    return Row(
        f"backend {name} at Ruby depth {depth}",
        f"{100 * share:.2f}",
        "% of a CPU",
        f"{RATE} Hz for {seconds} s, the sampler's own CPU time; {count} samples",
    )
