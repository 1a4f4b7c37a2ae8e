# SPDX-License-Identifier: Apache-2.0
"""Code that is loaded, removed, collected and moved all the time never gives a frame of another generation.

The kernel side remembers where instruction sequences have their bodies; the memory of both is used again. For
RUBYUNWIND_SOAK seconds (`make soak`: ten minutes), by default for a few.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample

from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")

PROGRAM = Path(__file__).parents[1] / "ruby/reloading.rb"
LIFE = (
    "0.1"  # seconds that code lives; the names of what lives some milliseconds may be those of its successor
)
NOTICED = 500_000_000  # ns until a profiler has noticed that the code changes, and looks at it more often
SECONDS = float(os.environ.get("RUBYUNWIND_SOAK", "4"))
NUMBER = re.compile(r"(leaf|middle|root)_(\d+)$")


def generations(sample: Sample) -> set[int]:
    """Numbers in the labels of a sample's Ruby frames, and in their paths."""
    found = set()
    for frame in sample.frames:
        if frame.kind == "ruby" and (match := NUMBER.search(frame.label or "")):
            found.add(int(match[2]))
            assert frame.path == f"generation_{match[2]}.rb", frame
    return found


def names(sample: Sample) -> list[str]:
    """Kinds of the methods of a generation, leaf first."""
    labels = [frame.label or "" for frame in sample.frames if frame.kind == "ruby"]
    return [match[1] for label in labels if (match := NUMBER.search(label)) and not label.startswith("block")]


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_no_sample_mixes_generations_of_code(unwinder: str) -> None:
    with subprocess.Popen([RUBY, "--disable-gems", str(PROGRAM), LIFE], stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            seen: set[int] = set()
            mixed: list[set[int]] = []
            orders: Counter[tuple[str, ...]] = Counter()
            count, began = 0, 0
            with Profiler([program.pid], rate=499, unwinder=unwinder) as profiler:
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    for sample in profiler.poll(0.1):
                        count += 1
                        began = began or sample.timestamp
                        if sample.timestamp < began + NOTICED:
                            continue
                        numbers = generations(sample)
                        seen |= numbers
                        orders[tuple(names(sample))] += 1
                        if len(numbers) > 1:
                            mixed.append(numbers)
        finally:
            program.kill()
    assert mixed == []
    assert len(seen) > 2 * SECONDS
    assert count > 100 * SECONDS
    # Whole, or without frames whose code was gone; never in another order.
    whole = ("leaf", "middle", "root")
    for order in orders:
        assert order == tuple(name for name in whole if name in order), orders
    assert orders[whole] > 10
