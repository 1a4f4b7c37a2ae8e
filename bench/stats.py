# SPDX-License-Identifier: Apache-2.0
"""Medians and bootstrap intervals: all that numbers of a noisy machine allow."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

__all__ = ["Interval", "bootstrap", "spread", "timed"]

_SEED = 20260101  # the same data give the same interval
_ROUNDS = 2000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the bounds that hold 95 % of the medians of resampled data."""

    median: float
    low: float
    high: float


def bootstrap(values: Sequence[float]) -> Interval:
    """Return the median of `values` with its percentile bootstrap interval."""
    draw = random.Random(_SEED)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_ROUNDS))
    return Interval(median(values), medians[_ROUNDS * 25 // 1000], medians[_ROUNDS * 975 // 1000 - 1])


def spread(values: Sequence[float], digits: int = 1, scale: float = 1.0) -> str:
    """Say median, smallest and largest, such as "3.1 (2.9-4.0)"."""
    low, middle, high = (
        f"{scale * value:,.{digits}f}" for value in (min(values), median(values), max(values))
    )
    return f"{middle} ({low}-{high})"


def timed(
    runs: int, work: Callable[[], T], prepare: Callable[[], object] | None = None
) -> tuple[list[float], T]:
    """Call `work` several times; return the seconds each took and what the last one returned.

    `prepare` is called before each, outside of the time.
    """
    seconds: list[float] = []
    for _ in range(runs):
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return seconds, result
