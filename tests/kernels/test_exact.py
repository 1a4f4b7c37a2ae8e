# SPDX-License-Identifier: Apache-2.0
"""Ruby's own backtrace, printed by a program that then spins, is what is sampled of it on this kernel."""

from __future__ import annotations

import pytest
from facts import note
from flavours import EXPECTED

from live.spinning import gather, locations, spinning
from rubyunwind import Profiler, Sample, features
from rubyunwind.bpf.features import CO_RE, LONG_PROGRAMS, NO

# Emulated guests are slow, not wrong: a low rate, and the share that the project promises.
RATE = 49
SAMPLES = 50
SHARE = 0.99

# Ruby and C take turns nine times in it, or 13 times.
FEW_TURNS, MANY_TURNS = "names_with_odd_characters.rb", "blocks_and_bmethods.rb"

Locations = tuple[tuple[str, int, str], ...]


def sampled(program: str, flavour: str) -> tuple[list[Sample], Locations]:
    """Return samples of a program that spins, and what it printed."""
    with spinning(program) as running, Profiler([running.pid], rate=RATE, flavour=flavour) as profiler:
        return gather(profiler, SAMPLES), running.stack


def has_room_for_many_turns(flavour: str) -> bool:
    """Whether a program of this flavour walks so many native frames that few tail calls are needed."""
    answers = {feature.name: feature.answer for feature in features()}
    return flavour == CO_RE or answers[LONG_PROGRAMS] != NO


@pytest.mark.parametrize("program", [FEW_TURNS, MANY_TURNS])
@pytest.mark.parametrize("flavour", EXPECTED)
def test_sampled_stacks_equal_what_the_program_printed(flavour: str, program: str) -> None:
    samples, printed = sampled(program, flavour)
    if program == MANY_TURNS and not has_room_for_many_turns(flavour):
        # The innermost part is exact, and the sample says that the rest is missing, and why.
        exact = sum(
            0 < len(locations(sample)) < len(printed)
            and locations(sample) == printed[: len(locations(sample))]
            and not sample.complete
            and sample.reason == "tail calls"
            for sample in samples
        )
        note(flavour, innermost=[exact, len(samples)])
    else:
        exact = sum(locations(sample) == printed for sample in samples)
        note(flavour, **{f"exact {program}": [exact, len(samples)]})
    assert exact >= SHARE * len(samples), [locations(sample) for sample in samples][:3]
    assert {frame.kind for sample in samples for frame in sample.frames} >= {"native", "ruby", "cfunc"}
