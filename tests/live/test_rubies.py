# SPDX-License-Identifier: Apache-2.0
"""Debian's Rubies, each in a root file system of its own, run some programs; `make truth` runs all.

A Ruby that cannot be had is skipped, with the reason; where live tests are required, most have to be there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rubies.cells import cells_of
from rubies.programs import PROGRAMS, Program
from rubies.roots import CannotBeHad, known, root_of, ruby_in
from rubyunwind.profiler.backends import WALKER

from .conftest import REQUIRE_LIVE
from .spinning import Ruby

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


@pytest.fixture(scope="module", params=known())
def ruby(request: pytest.FixtureRequest) -> Iterator[Ruby]:
    try:
        root = root_of(request.param)
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    with ruby_in(root) as inside:
        yield inside


@pytest.mark.one_of_several
@pytest.mark.parametrize("program", HANDFUL, ids=str)
def test_each_sample_is_what_this_ruby_printed(ruby: Ruby, program: Program) -> None:
    (cell,) = cells_of(ruby, program, [WALKER], SAMPLES)
    assert cell.good, f"{cell.exact} of {cell.samples} exact; {cell.difference}"
    assert cell.samples >= SAMPLES
    assert cell.cut == 0


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
