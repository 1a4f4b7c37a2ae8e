# SPDX-License-Identifier: Apache-2.0
"""One cell of the table: a program that spins, sampled in one way and held against Ruby's stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from live.programs import Program
from live.spinning import Location, Ruby, Spinning, difference, gather, locations, started
from rubyunwind import Profiler, Sample
from rubyunwind.abi import MAX_NON_ERROR_FRAME_UNWINDS
from rubyunwind.profiler.backends import CHAIN, WALKER
from rubyunwind.profiler.reasons import LIMIT, NO_CONTEXT, TAIL_CALLS
from rubyunwind.profiler.user_profiler import UserProfiler

# What samples: the two unwinders of the kernel side, and the reader from user space.
USER = "user"
WAYS = (WALKER, CHAIN, USER)
RATE = 299
# Turns between Ruby and C that fit the chain's tail calls.
_TURNS = 13

Stack = tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """How many samples were exact, how many of those were cut, as they may be, and the first difference.

    `rootless` are the exact ones whose native frames end in a C library without unwind rows.
    """

    program: str
    way: str
    exact: int
    samples: int
    cut: int = 0
    difference: str = ""
    rootless: int = 0

    @property
    def good(self) -> bool:
        return self.exact == self.samples > 0 and not self.difference


def _profiler(way: str, pid: int) -> Profiler | UserProfiler:
    return UserProfiler([pid], rate=RATE) if way == USER else Profiler([pid], rate=RATE, unwinder=way)


def _had_no_room(sample: Sample, way: str) -> bool:
    """Whether a stack was cut by a limit of the chain, or of the record from user space, and reaches it."""
    kinds = [frame.kind for frame in sample.frames if frame.kind != "kernel"]
    if way == WALKER or not locations(sample):
        return False
    if sample.reason == TAIL_CALLS:
        return (
            way == CHAIN and sum(ours for ours, _ in groupby(kinds, {"ruby", "cfunc"}.__contains__)) >= _TURNS
        )
    return sample.reason == LIMIT and len(kinds) >= MAX_NON_ERROR_FRAME_UNWINDS


def _without_callers(found: Stack, stack: Stack) -> Stack:
    """Return as much of the printed stack; C functions at the cut have no place, as their caller is gone."""
    expected = list(stack[: len(found)])
    for index in reversed(range(len(expected))):
        path, line, _ = found[index]
        if path or line:
            break
        expected[index] = ("", 0, expected[index][2])
    return tuple(expected)


def fault(sample: Sample, stack: Stack, way: str, reason: str | None) -> str:
    """Return what a sample has other than the printed stack; "" if nothing."""
    found = locations(sample)
    if _had_no_room(sample, way):
        # What there is of it has to be right.
        return difference(found, _without_callers(found, stack))
    if other := difference(found, stack):
        return f"{other} ({sample.reason or 'complete'})"
    if sample.reason in (None, reason):
        return ""
    return f"the Ruby frames are right, but it is not complete: {sample.reason}"


def judge(
    program: Program,
    way: str,
    running: Spinning,
    samples: list[Sample],
    *,
    one_context: bool = False,
    libc_reason: str | None = None,
) -> Cell:
    """Hold samples against what their thread printed, or any thread did where Ruby does not know ids.

    `libc_reason` is why native frames may end in the C library. Where threads have `one_context` between
    them, one that waits for the lock has no Ruby frames and says so.
    """
    exact = cut = judged = rootless = 0
    reason = program.reason or libc_reason
    first = ""
    seen: set[Stack] = set()
    for sample in samples:
        if one_context and sample.reason == NO_CONTEXT and not locations(sample):
            continue
        # From user space whose context it is cannot be told there: the tid is that of the busiest thread.
        any_thread = one_context and way == USER
        stacks = [stack for tid, stack in running.stacks if any_thread or tid in (0, sample.tid)]
        faults = {fault(sample, stack, way, reason): stack for stack in stacks}
        ends = sample.reason in (None, libc_reason)
        if stacks and ends and not locations(sample) and not any(tid for tid, _ in running.stacks):
            continue  # of a native thread that runs no Ruby code, such as the timer's
        judged += bool(stacks)  # other threads have printed nothing
        if "" in faults:
            exact += 1
            cut += _had_no_room(sample, way)
            rootless += libc_reason is not None and sample.reason == libc_reason
            seen.add(faults[""])
        elif faults:
            first = first or next(iter(faults))
    spinning = {stack for tid, stack in running.stacks if tid not in running.waiting}
    if not first and not spinning <= seen:
        first = "a thread that spins was never sampled"
    return Cell(str(program), way, exact, judged, cut, first, rootless)


def cells_of(ruby: Ruby, program: Program, ways: Iterable[str], count: int) -> Iterator[Cell]:
    """Start a program once and sample it in each way."""
    with started(program, ruby) as running:
        for way in ways:
            with _profiler(way, running.pid) as profiler:
                samples = gather(profiler, count * (len(running.stacks) - len(running.waiting)))
            one_context = ruby.has_one_context and len(running.stacks) > 1
            yield judge(program, way, running, samples, one_context=one_context, libc_reason=ruby.reason)
