# SPDX-License-Identifier: Apache-2.0
"""One cell of the table: a program that spins, sampled in one way and held against Ruby's stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from live.spinning import Location, Ruby, Spinning, difference, gather, locations, spinning
from rubyunwind import Profiler, Sample
from rubyunwind.profiler.reasons import TRUNCATIONS
from rubyunwind.profiler.user_profiler import UserProfiler

from .programs import USER, Program

RATE = 299

Stack = tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """How many samples were exact, how many of those were cut, as they may be, and the first difference."""

    program: str
    way: str
    exact: int
    samples: int
    cut: int = 0
    difference: str = ""

    @property
    def good(self) -> bool:
        return self.exact == self.samples > 0 and not self.difference


def _profiler(way: str, pid: int) -> Profiler | UserProfiler:
    return UserProfiler([pid], rate=RATE) if way == USER else Profiler([pid], rate=RATE, unwinder=way)


def fault(sample: Sample, stack: Stack, *, may_be_cut: bool) -> str:
    """Return what a sample has other than the printed stack; "" if nothing."""
    found = locations(sample)
    if may_be_cut and sample.reason in TRUNCATIONS and found:
        # What there is of it has to be right.
        return difference(found, stack[: len(found)])
    if other := difference(found, stack):
        return f"{other} ({sample.reason or 'complete'})"
    return "" if sample.complete else f"the Ruby frames are right, but it is not complete: {sample.reason}"


def judge(program: Program, way: str, running: Spinning, samples: list[Sample]) -> Cell:
    """Hold samples against what their thread printed, or any thread did where Ruby does not know ids."""
    may_be_cut = way in program.cut_by
    exact = cut = judged = 0
    first = ""
    seen: set[Stack] = set()
    for sample in samples:
        stacks = [stack for tid, stack in running.stacks if tid in (0, sample.tid)]
        faults = {fault(sample, stack, may_be_cut=may_be_cut): stack for stack in stacks}
        judged += bool(stacks)  # other threads have printed nothing
        if "" in faults:
            exact += 1
            cut += not sample.complete
            seen.add(faults[""])
        elif faults:
            first = first or next(iter(faults))
    if not first and len(seen) < len({stack for _, stack in running.stacks}):
        first = "a thread that spins was never sampled"
    return Cell(str(program), way, exact, judged, cut, first)


def cells_of(ruby: Ruby, program: Program, ways: Iterable[str], count: int) -> Iterator[Cell]:
    """Start a program once and sample it in each way."""
    with spinning(program.name, *program.arguments, threads=program.threads, ruby=ruby) as running:
        for way in ways:
            with _profiler(way, running.pid) as profiler:
                samples = gather(profiler, count * program.threads)
            yield judge(program, way, running, samples)
