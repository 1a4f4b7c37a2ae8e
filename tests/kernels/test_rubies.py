# SPDX-License-Identifier: Apache-2.0
"""Rubies beside the guest's own, such as those that hide their symbols, are sampled exactly there, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from facts import note
from flavours import RUBIES

from live.programs import PROGRAMS, Program
from rubies.cells import USER, cells_of
from rubies.roots import Root, ruby_in
from rubyunwind.profiler.backends import CHAIN, WALKER
from rubyunwind.profiler.reasons import NO_ROW

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


# aarch64's vDSO, which tells a collector the time, has functions without unwind rows.
VDSO = NO_ROW if os.uname().machine == "aarch64" else None
VDSO_SHARE = 0.1


def _runnable() -> Iterator[tuple[Root, Program]]:
    for path in RUBIES:
        series, _, package = path.name.partition("-")
        version = tuple(map(int, series.split(".")))
        for program in PROGRAMS:
            if str(program) in NAMES and program.needs <= version:
                yield Root(series, package, path), program


@pytest.mark.parametrize(("root", "program"), _runnable(), ids=str)
def test_each_sample_is_what_this_ruby_printed(root: Root, program: Program) -> None:
    ways = [WALKER, CHAIN, *([USER] if program.main_ractor else [])]
    with ruby_in(root) as ruby:
        cells = list(cells_of(replace(ruby, reason=VDSO), program, ways, SAMPLES))
    for cell in cells:
        note(f"ruby {root.series}", **{f"exact {program} {cell.way}": [cell.exact, cell.samples]})
    assert [cell for cell in cells if not cell.good or cell.rootless > VDSO_SHARE * cell.samples] == []
