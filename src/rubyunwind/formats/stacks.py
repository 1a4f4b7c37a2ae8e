# SPDX-License-Identifier: Apache-2.0
"""Equal stacks counted together, with the frames at the root that say what a stack alone cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples

__all__ = ["Marker", "MarkerKind", "Stack", "group", "incompleteness"]

MarkerKind = Literal["root", "unit", "process", "incomplete"]

# What DESIGN calls truncated: cut by a limit of ours. Any other reason leaves a stack incomplete.
_LIMITS = frozenset({"limit", "tail calls"})

_Where = tuple[int, str, bool, "str | None"]  # pid, unit, complete, reason


@dataclass(frozen=True, slots=True)
class Marker:
    """A frame that no program has: it stands at the root and groups what is above it."""

    kind: MarkerKind
    name: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Equal stacks of one process. `markers` are root first, `frames` leaf first; `weight` is their sum."""

    markers: tuple[Marker, ...]
    frames: tuple[Frame, ...]
    weight: int
    unit: str


def incompleteness(complete: bool, reason: str | None, frames: tuple[Frame, ...]) -> Marker | None:
    """The marker at the root of a stack that did not reach it, or of one without frames; else None."""
    if complete:
        return None if frames else Marker("incomplete", "[no frames]")
    word = "truncated" if reason in _LIMITS else "incomplete"
    return Marker("incomplete", f"[{word}: {reason or 'unknown reason'}]")


class _Counts:
    """Weights by place and stack. Profilers share one tuple among equal stacks, so identity is tried first.

    Hashing a stack costs a hash of each frame; identity costs nothing. Each tuple seen is kept in `_seen`,
    so that its id is not given to another.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, _Where], tuple[tuple[Frame, ...], list[int]]] = {}

    def add(self, sample: Sample) -> None:
        key = (id(sample.frames), (sample.pid, sample.unit, sample.complete, sample.reason))
        known = self._seen.get(key)
        if known is None:
            known = self._seen[key] = (sample.frames, [0])
        known[1][0] += sample.weight

    def weights(self) -> dict[tuple[tuple[Frame, ...], _Where], int]:
        """Add up what differs in identity only."""
        total: dict[tuple[tuple[Frame, ...], _Where], int] = {}
        for (_, where), (frames, (weight,)) in self._seen.items():
            total[frames, where] = total.get((frames, where), 0) + weight
        return total


def group(samples: Iterable[Sample]) -> list[Stack]:
    """Count equal stacks, in the order of their first appearance. The sum of weights is the samples'.

    Markers, from the root: the unit when the profile has several; `comm (pid)` when it has several
    processes (the comm of the main thread if that was sampled, since threads have their own);
    `[truncated: reason]` or `[incomplete: reason]` when the stack did not reach its root; `[no frames]`
    when a complete stack is empty.
    """
    counts = _Counts()
    comms: dict[int, str] = {}
    for sample in samples.merged() if isinstance(samples, Samples) else samples:
        counts.add(sample)
        if sample.pid not in comms or sample.tid == sample.pid:
            comms[sample.pid] = sample.comm
    weights = counts.weights()
    several_units = len({where[1] for _, where in weights}) > 1
    several_processes = len(comms) > 1
    stacks = []
    for (frames, (pid, unit, complete, reason)), weight in weights.items():
        markers = []
        if several_units:
            markers.append(Marker("unit", f"[{unit}]"))
        if several_processes:
            markers.append(Marker("process", f"{comms[pid]} ({pid})"))
        marker = incompleteness(complete, reason, frames)
        if marker is not None:
            markers.append(marker)
        stacks.append(Stack(tuple(markers), frames, weight, unit))
    return stacks
