# SPDX-License-Identifier: Apache-2.0
"""Ruby's own backtrace, printed by a program that then spins, is what is sampled of it on this kernel."""

from __future__ import annotations

from facts import note

from live.spinning import gather, locations, spinning
from rubyunwind import Profiler

# Emulated guests are slow, not wrong: a low rate, and the share that the project promises.
RATE = 49
SAMPLES = 100
SHARE = 0.99


def test_sampled_stacks_equal_what_the_program_printed() -> None:
    with spinning("blocks_and_bmethods.rb") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    exact = sum(locations(sample) == program.stack for sample in samples)
    note(exact=f"{exact} of {len(samples)}")
    assert exact >= SHARE * len(samples), [locations(sample) for sample in samples][:3]
    assert {frame.kind for sample in samples for frame in sample.frames} >= {"native", "ruby", "cfunc"}
