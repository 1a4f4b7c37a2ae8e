# SPDX-License-Identifier: Apache-2.0
"""Ruby's own backtrace, printed by a program that then spins, is what is sampled of it on this kernel."""

from __future__ import annotations

import pytest
from facts import note
from flavours import EXPECTED

from live.spinning import gather, locations, spinning
from rubyunwind import Profiler, Sample, features
from rubyunwind.bpf.features import CO_RE, LEGACY, LONG_PROGRAMS, NO

# Emulated guests are slow, not wrong: a low rate, and the share that the project promises.
RATE = 99
SAMPLES = 100
SHARE = 0.99

# Ruby and C take turns nine times in it, or 13 times, or 60 times.
FEW_TURNS, MANY_TURNS, DEEP = "names_with_odd_characters.rb", "blocks_and_bmethods.rb", "bounces.rb"
WALKER, CHAIN = "walker", "chain"
# What walks each flavour's stacks, and how the table calls it.
WALKS = [(CO_RE, WALKER), (CO_RE, CHAIN), (LEGACY, CHAIN)]

Locations = tuple[tuple[str, int, str], ...]


def sampled(program: str, flavour: str, unwinder: str) -> tuple[list[Sample], Locations]:
    """Return samples of a program that spins, and what it printed."""
    arguments = ("60",) if program == DEEP else ()
    with (
        spinning(program, *arguments) as running,
        Profiler([running.pid], rate=RATE, flavour=flavour, unwinder=unwinder) as profiler,
    ):
        return gather(profiler, SAMPLES), running.stack


def has_room(program: str, flavour: str, unwinder: str) -> bool:
    """Whether the whole stack fits: the chain has 128 frames, and tail calls for some turns."""
    answers = {feature.name: feature.answer for feature in features()}
    if unwinder == WALKER or program == FEW_TURNS:
        return True
    return program == MANY_TURNS and (flavour == CO_RE or answers[LONG_PROGRAMS] != NO)


@pytest.mark.parametrize("program", [FEW_TURNS, MANY_TURNS, DEEP])
@pytest.mark.parametrize(("flavour", "unwinder"), [walk for walk in WALKS if walk[0] in EXPECTED])
def test_sampled_stacks_equal_what_the_program_printed(flavour: str, unwinder: str, program: str) -> None:
    samples, printed = sampled(program, flavour, unwinder)
    if not has_room(program, flavour, unwinder):
        # The innermost part is exact, and the sample says that the rest is missing, and why.
        exact = sum(
            0 < len(locations(sample)) < len(printed)
            and locations(sample) == printed[: len(locations(sample))]
            and not sample.complete
            and sample.reason in {"tail calls", "limit"}
            for sample in samples
        )
        note(f"{flavour} {unwinder}", innermost=[exact, len(samples)])
    else:
        exact = sum(locations(sample) == printed for sample in samples)
        note(f"{flavour} {unwinder}", **{f"exact {program}": [exact, len(samples)]})
    assert exact >= SHARE * len(samples), [locations(sample) for sample in samples][:3]
    assert {frame.kind for sample in samples for frame in sample.frames} >= {"native", "ruby", "cfunc"}
