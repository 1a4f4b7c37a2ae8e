# SPDX-License-Identifier: Apache-2.0
"""Debian's Rubies, each in a root file system of its own, run some programs; `make truth` runs all.

A Ruby that cannot be had is skipped, with the reason; where live tests are required, most have to be there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest

from rubies.cells import RATE, cells_of
from rubies.roots import CannotBeHad, known, root_of, ruby_in
from rubyunwind import Profiler
from rubyunwind.profiler.backends import WALKER
from rubyunwind.ruby.vm_info import GC_PHASES

from .conftest import REQUIRE_LIVE
from .programs import PROGRAMS, Program
from .spinning import Ruby, gather, spinning

pytestmark = pytest.mark.usefixtures("bpf")

SAMPLES = 100
FEWEST = 3
# A stack of each kind: C functions that call back, names, fibers, clauses, threads, and many frames.
HANDFUL = [
    program
    for program in PROGRAMS
    if str(program)
    in {
        "blocks_and_bmethods",
        "names_with_odd_characters",
        "fiber_in_enumerator",
        "rescue_and_ensure",
        "two_spinning_threads",
        "bounces 200",
    }
]


@pytest.mark.one_of_several
@pytest.mark.parametrize("program", HANDFUL, ids=str)
def test_each_sample_is_what_this_ruby_printed(ruby: Ruby, program: Program) -> None:
    (cell,) = cells_of(ruby, program, [WALKER], SAMPLES)
    assert cell.good, f"{cell.exact} of {cell.samples} exact; {cell.difference}"
    assert cell.samples >= SAMPLES
    assert cell.cut == 0


@pytest.mark.one_of_several
@pytest.mark.parametrize("program", ["blocks_and_bmethods.rb", "names_with_odd_characters.rb"])
def test_each_group_of_ruby_frames_is_in_a_loop_of_its_own(ruby: Ruby, program: str) -> None:
    """The loop has no name from 3.3 on: it is the function that follows each group, and is nowhere else."""
    with spinning(program, ruby=ruby) as running, Profiler([running.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    for sample in samples:
        frames = [frame for frame in sample.frames if frame.kind != "kernel"]
        is_ruby = [frame.kind in ("ruby", "cfunc") for frame in frames]
        ends = [i for i, (this, after) in enumerate(pairwise(is_ruby), 1) if this and not after]
        loops = [frames[i].name for i in ends]
        assert len(loops) > 3
        assert len(set(loops)) == 1, loops
        assert [frame.name for frame in frames].count(loops[0]) == len(loops)


def names_by_line(frames: Iterable[tuple[int, str]]) -> dict[tuple[int, str], set[str]]:
    """Return names by line and their last part, which is the label that older Rubies print."""
    found: dict[tuple[int, str], set[str]] = {}
    for line, name in frames:
        words, dot, label = name.rpartition("#" if "#" in name else ".")
        block = re.match(r"block (\(\d+ levels\) )?in ", words) if dot else None
        plain = (block[0] if block else "") + label if dot else name
        found.setdefault((line, plain), set()).add(name)
    return found


@pytest.mark.one_of_several
@pytest.mark.parametrize("name", ["blocks_and_bmethods.rb", "callables.rb", "define_method_forms.rb"])
def test_names_are_qualified_as_the_newest_ruby_prints_them(ruby: Ruby, name: str) -> None:
    try:
        newest = root_of(known()[-1])
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    with ruby_in(newest) as other, spinning(name, ruby=other) as running:
        printed = names_by_line((line, label) for _, line, label in running.stack)
    with spinning(name, ruby=ruby) as running, Profiler([running.pid], rate=RATE) as profiler:
        (sample, *_) = gather(profiler, 10)
    ours = [(frame.line or 0, frame.name) for frame in sample.frames if frame.kind in ("ruby", "cfunc")]
    both = {key: names for key, names in names_by_line(ours).items() if key in printed}
    assert sum(any("#" in name for name in names) for names in both.values()) > 5
    assert both == {key: printed[key] for key in both}


@pytest.mark.one_of_several
@pytest.mark.parametrize(("method", "phase"), [("start", "marking"), ("compact", "compacting")])
def test_a_garbage_collection_is_a_frame_with_its_phase(ruby: Ruby, method: str, phase: str) -> None:
    with (
        spinning("collecting.rb", method, ruby=ruby) as running,
        Profiler([running.pid], rate=RATE) as profiler,
    ):
        samples = gather(profiler, SAMPLES)
    phases = Counter(frame.label for sample in samples for frame in sample.frames if frame.kind == "gc")
    assert phases[phase] > 0.5 * len(samples)
    assert set(phases) <= set(GC_PHASES)


def test_most_of_the_rubies_are_there() -> None:
    reasons = []
    for series in known():
        try:
            root_of(series)
        except CannotBeHad as reason:
            reasons.append(str(reason))
    if len(known()) - len(reasons) >= FEWEST:
        return
    if REQUIRE_LIVE:
        pytest.fail(f"fewer than {FEWEST} Rubies to test: {'; '.join(reasons)}")
    pytest.skip("; ".join(reasons))
