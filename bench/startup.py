# SPDX-License-Identifier: Apache-2.0
"""Time from `Profiler.__enter__` to the first symbolized sample of a busy Ruby, in fresh processes.

Cold means that our cache of unwind rows is empty, warm that an earlier run has filled it. The files
themselves and Python's bytecode are in the page cache in both cases. Cold and warm runs alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from report import Row, say
from stats import spread
from target import Ruby, stay_apart

__all__ = ["measure"]

DEPTH = 50
RATE = 99
_CHILD = Path(__file__).parent / "first_sample.py"
_Times = dict[str, float]


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    runs = 5 if quick else 15
    say(f"time to the first sample, {runs} times cold and warm")
    stay_apart()
    cold: list[_Times] = []
    warm: list[_Times] = []
    with tempfile.TemporaryDirectory() as folder, Ruby.spinning(DEPTH) as ruby:
        _run(ruby.pid, Path(folder, "warm"))
        for number in range(runs):
            cold.append(_run(ruby.pid, Path(folder, f"cold{number}")))
            warm.append(_run(ruby.pid, Path(folder, "warm")))
        bare, imports = _imports(runs)
    how = f"Ruby depth {DEPTH}, {RATE} Hz, {runs} fresh processes, median (range)"
    return [
        Row(
            "enter to first sample, cold",
            _between(cold, "entering", "sampled"),
            "ms",
            f"no cached rows; {how}",
        ),
        Row("enter to first sample, warm", _between(warm, "entering", "sampled"), "ms", how),
        Row("  of it: load the programs", _between(warm, "entering", "loaded"), "ms", "warm"),
        Row("  of it: register the process, attach", _between(warm, "loaded", "entered"), "ms", "warm"),
        Row(
            "  of it: wait for the first sample, name it", _between(warm, "entered", "sampled"), "ms", "warm"
        ),
        Row(
            "process start to first sample, cold",
            _between(cold, "spawned", "sampled"),
            "ms",
            "with interpreter and imports",
        ),
        Row(
            "process start to first sample, warm",
            _between(warm, "spawned", "sampled"),
            "ms",
            "with interpreter and imports",
        ),
        Row(
            "import the Profiler",
            _between(warm, "ready", "imported"),
            "ms",
            "in those processes: from rubyunwind import Profiler",
        ),
        Row(
            "import rubyunwind",
            spread(imports, scale=1e3),
            "ms",
            f"process that imports and ends, less the median of one that only ends; {runs} runs",
        ),
        Row("bare interpreter", spread(bare, scale=1e3), "ms", f"start and end; {runs} runs"),
    ]


def _run(pid: int, cache: Path) -> _Times:
    cache.mkdir(exist_ok=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    spawned = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(_CHILD), str(pid), str(RATE)],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    times: _Times = json.loads(done.stdout)
    return {"spawned": spawned, **times}


def _imports(runs: int) -> tuple[list[float], list[float]]:
    """Return the seconds that a bare interpreter takes, and what the import adds to its median."""
    bare: list[float] = []
    with_import: list[float] = []
    for _ in range(runs):
        for code, into in (("pass", bare), ("import rubyunwind", with_import)):
            start = time.monotonic()
            subprocess.run([sys.executable, "-c", code], check=True)
            into.append(time.monotonic() - start)
    middle = sorted(bare)[len(bare) // 2]
    return bare, [took - middle for took in with_import]


def _between(runs: Sequence[_Times], start: str, end: str) -> str:
    return spread([times[end] - times[start] for times in runs], 0, 1e3)
