# SPDX-License-Identifier: Apache-2.0
"""Two profiles in one tree: for each stack what it weighs in the first and in the second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.formats.stacks import Marker, incompleteness, process_names

if TYPE_CHECKING:
    from rubyunwind.formats.recorded import Recorded
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Frame, Totals
    from rubyunwind.profiler.samples import Samples

__all__ = ["Side", "SideStack", "side_stacks"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two profiles: the samples of it that are compared, and what is said of all of it."""

    samples: Samples
    totals: Totals
    meta: Meta

    @classmethod
    def of(cls, recorded: Recorded) -> Side:
        """Return all of a recording."""
        return cls(recorded.samples, recorded.totals, recorded.meta)


class SideStack(NamedTuple):
    """What a stack weighs on a side (0: before, 1: after). `path` is root first and begins with markers."""

    side: int
    unit: str
    path: tuple[Frame | Marker, ...]
    weight: int


def side_stacks(before: Side, after: Side) -> Iterator[SideStack]:
    """Yield the stacks of both; equal ones of a side may come several times.

    Process ids differ from run to run and are no part of a path. Where a side has processes of several names,
    its name is at the root of each stack.
    """
    comms = [process_names(side.samples.threads) for side in (before, after)]
    named = any(len(set(each.values())) > 1 for each in comms)
    for number, side in enumerate((before, after)):
        samples = side.samples
        threads, stacks = samples.threads, samples.stacks
        sums: dict[tuple[int, str], int] = {}
        for _, indices, thread_indices, _, weights in samples.columns():
            for index, thread, weight in zip(indices, thread_indices, weights, strict=True):
                key = index, comms[number][threads[thread].pid] if named else ""
                sums[key] = sums.get(key, 0) + weight
        for (index, comm), weight in sums.items():
            frames, complete, reason, *_ = stacks[index]
            markers = [Marker("process", comm)] if named else []
            marker = incompleteness(complete, reason, frames)
            if marker is not None:
                markers.append(marker)
            yield SideStack(number, stacks[index].unit, tuple(chain(markers, reversed(frames))), weight)
