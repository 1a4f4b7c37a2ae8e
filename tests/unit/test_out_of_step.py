# SPDX-License-Identifier: Apache-2.0
"""Periods of our own that meet ticks by chance only."""

from __future__ import annotations

import pytest

from rubyunwind.profiler.ticks import out_of_step


@pytest.mark.parametrize("rate", [1, 10, 20, 25, 40, 49, 50, 99, 100, 200, 499, 500, 999, 1000, 4000])
@pytest.mark.parametrize("period", [0.002, 0.025, 0.25])
def test_it_meets_ticks_at_all_phases_and_is_about_as_long(rate: int, period: float) -> None:
    found = out_of_step(period, rate)
    assert found == pytest.approx(period, rel=0.65, abs=0.65 / rate if period * rate >= 0.5 else 0)
    phases = [0] * 10
    for number in range(1000):
        phases[int(number * found * rate % 1 * 10)] += 1
    assert max(phases) - min(phases) <= 60  # a hundred each; in step there are some of a thousand and none
