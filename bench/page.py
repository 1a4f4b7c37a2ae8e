# SPDX-License-Identifier: Apache-2.0
"""The flame graph page of many distinct stacks: its size, and how long a browser takes to draw it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from report import Row, say
from stats import spread
from target import ROOT

from rubyunwind.formats import Meta, write
from rubyunwind.profiler.sample import Totals

sys.path.append(str(ROOT / "tests/page"))
from browser import Browser, find_chromium
from large_profile import DURATION, large_profile

__all__ = ["measure"]

_START = 1_700_000_000_000_000_000
_SAMPLES = 120_000  # ten minutes of two CPUs at 99 Hz


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    rows = []
    for distinct in (20_000, 50_000):
        say(f"a page of {distinct} distinct stacks")
        samples = large_profile(distinct, _SAMPLES, _START)
        meta = Meta("large", "", _START, DURATION / 1e9, 99)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.html"
            began = time.process_time()
            write(path, "flamegraph", samples, Totals(_SAMPLES), meta)
            took = time.process_time() - began
            how = f"{distinct:,} distinct stacks of 60 frames, {_SAMPLES:,} samples of ten minutes"
            what = f"page of {distinct:,} stacks"
            rows.append(Row(what, f"{path.stat().st_size / 1e6:.2f}", "MB", how))
            rows.append(Row(f"{what}, writing", f"{took:.2f}", "s", "CPU time, 1 run"))
            rows += _drawn(path, what, 3 if quick else 9)
    return rows


def _drawn(path: Path, what: str, runs: int) -> list[Row]:
    program = find_chromium()
    if program is None:
        say("no Chromium: what a browser takes is not measured")
        return []
    with tempfile.TemporaryDirectory() as folder, Browser(program, Path(folder)) as browser:
        times = []
        for _ in range(runs):
            browser.open(path.as_uri())
            times.append(float(browser.evaluate("document.documentElement.dataset.ready")))
    how = f"from the start of loading to the graph on the screen, headless Chromium, {runs} runs"
    return [Row(f"{what}, first picture", spread(times, 0), "ms", how)]
