# SPDX-License-Identifier: Apache-2.0
"""Rubies beside the guest's own, such as those that hide their symbols, are sampled exactly there, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from facts import note
from flavours import RUBIES

from live.programs import PROGRAMS, Program
from rubies.cells import USER, cells_of
from rubies.roots import Root, ruby_in
from rubyunwind.profiler.backends import CHAIN, WALKER

SAMPLES = 100
# Turns between Ruby and C, names, fibers, clauses, threads, ractors, collections.
NAMES = {
    "blocks_and_bmethods",
    "names_with_odd_characters",
    "fiber_in_enumerator",
    "rescue_and_ensure",
    "two_spinning_threads",
    "two_ractors",
    "allocating_in_one_line",
    "bounces 11",
}


@pytest.mark.parametrize("program", [one for one in PROGRAMS if str(one) in NAMES], ids=str)
@pytest.mark.parametrize("path", RUBIES, ids=lambda path: path.name)
def test_each_sample_is_what_this_ruby_printed(path: Path, program: Program) -> None:
    series, _, package = path.name.partition("-")
    ways = [WALKER, CHAIN, *([USER] if program.main_ractor else [])]
    with ruby_in(Root(series, package, path)) as ruby:
        cells = list(cells_of(ruby, program, ways, SAMPLES))
    for cell in cells:
        note(f"ruby {series}", **{f"exact {program} {cell.way}": [cell.exact, cell.samples]})
    assert [cell for cell in cells if not cell.good] == []
