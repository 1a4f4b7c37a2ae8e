# SPDX-License-Identifier: Apache-2.0
"""A made-up profile of many distinct stacks in the shape of a Rails application's: a long common part of
middleware, then calls that branch. Two frames in three are Ruby's, one is native."""

from __future__ import annotations

import random

from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples

__all__ = ["large_profile"]

DEPTH = 60
# Where calls begin to branch: Redmine's distinct stacks share all but 20 of their frames with the one before.
BRANCHING = 38
METHODS = 4000
DURATION = 600_000_000_000  # ns
THREADS = 6


class _Frames:
    """Methods with their lines, and native functions. Equal frames are one object, as in a recording."""

    def __init__(self, chance: random.Random) -> None:
        self._methods = [
            Frame(
                "ruby" if chance.random() < 0.7 else "cfunc",
                f"Module{number % 97}::Class{number % 331}#method_{number}",
                label=f"method_{number}",
                path=f"/usr/share/gems/gem-{number % 211}-1.{number % 7}.0/lib/class_{number % 331}.rb",
                line=1 + number * 7 % 900,
            )
            for number in range(METHODS)
        ]
        self.native = [
            Frame(
                "native", f"rb_function_{number}", module="/usr/lib/libruby-3.1.so.3.1.2", offset=number * 64
            )
            for number in range(800)
        ]
        self._lines: dict[tuple[int, int], Frame] = {}

    def method(self, number: int, line: int) -> Frame:
        known = self._lines.get((number, line))
        if known is None:
            it = self._methods[number]
            known = Frame(it.kind, it.name, it.label, it.path, (it.line or 0) + line)
            self._lines[number, line] = known
        return known


def _stack(frames: _Frames, chance: random.Random) -> tuple[Frame, ...]:
    found = []
    method = 0
    for depth in range(DEPTH):
        if depth % 3 == 2:
            found.append(frames.native[(method * 7 + depth) % len(frames.native)])
            continue
        # One call is made most often; within the common part another one seldom.
        branch = 0
        if depth >= BRANCHING or (depth >= BRANCHING // 2 and chance.random() > 0.8):
            branch = min(5, int(chance.expovariate(1.0)))
        method = (method * 31 + branch * 17 + depth + 1) % METHODS
        line = chance.randrange(3) if depth > BRANCHING else 0
        found.append(frames.method(method, branch * 3 + line))
    return tuple(reversed(found))


def large_profile(distinct: int, count: int, start: int) -> Samples:
    """Return `count` samples of ten minutes from `start` (unix ns) on; each distinct stack is in them."""
    chance = random.Random(1)
    frames = _Frames(chance)
    stacks: dict[tuple[Frame, ...], None] = {}
    while len(stacks) < distinct:
        stacks[_stack(frames, chance)] = None
    known = list(stacks)
    samples = Samples()
    for number in range(count):
        stack = known[number if number < distinct else int(distinct * chance.random() ** 3)]
        thread = chance.randrange(THREADS)
        time = start + number * DURATION // count
        samples.append(Sample(time, 10, 10 + thread, f"puma {thread}", stack))
    return samples
