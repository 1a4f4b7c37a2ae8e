# SPDX-License-Identifier: Apache-2.0
"""Equal stacks counted together, with the frames at the root that say what a stack alone cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.profiler.sample import Frame, Sample
    from rubyunwind.profiler.samples import SampledStack, SampledThread

__all__ = ["Marker", "MarkerKind", "Stack", "group", "incompleteness", "process_names"]

MarkerKind = Literal["root", "unit", "process", "incomplete"]

# What DESIGN calls truncated: cut by a limit of ours. Any other reason leaves a stack incomplete.
_LIMITS = frozenset({"limit", "tail calls"})


@dataclass(frozen=True, slots=True)
class Marker:
    """A frame that no program has: it stands at the root and groups what is above it."""

    kind: MarkerKind
    name: str


class Stack(NamedTuple):
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


def process_names(threads: Iterable[SampledThread]) -> dict[int, str]:
    """The name of each process: that of its main thread if that was sampled, since threads have their own."""
    found: dict[int, str] = {}
    for thread in threads:
        if thread.pid not in found or thread.tid == thread.pid:
            found[thread.pid] = thread.comm
    return found


class _Markers:
    """The markers of stacks: equal ones are one object."""

    def __init__(self, units: set[str], names: dict[int, str]) -> None:
        self._several_units = len(units) > 1
        self._processes = {pid: Marker("process", f"{name} ({pid})") for pid, name in names.items()}
        self._known: dict[tuple[object, ...], tuple[Marker, ...]] = {}

    def of(self, stack: SampledStack, pid: int) -> tuple[Marker, ...]:
        key = (pid, stack.unit, stack.complete, stack.reason, not stack.frames)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = tuple(self._made(stack, pid))
        return known

    def _made(self, stack: SampledStack, pid: int) -> Iterator[Marker]:
        if self._several_units:
            yield Marker("unit", f"[{stack.unit}]")
        if len(self._processes) > 1:
            yield self._processes[pid]
        marker = incompleteness(stack.complete, stack.reason, stack.frames)
        if marker is not None:
            yield marker


def group(samples: Iterable[Sample]) -> Iterator[Stack]:
    """Count equal stacks, in the order of their first appearance. The sum of weights is the samples'.

    Those whose frames are equal but not the same objects may come several times. Markers, from the root: the
    unit when the profile has several; `comm (pid)` when it has several processes (see `process_names`);
    `[truncated: reason]` or `[incomplete: reason]` when the stack did not reach its root; `[no frames]` when
    a complete stack is empty.
    """
    if not isinstance(samples, Samples):
        samples = Samples(samples)
    stacks = samples.stacks
    pids = [thread.pid for thread in samples.threads]
    sums: dict[tuple[int, int], int] = {}
    for _, indices, threads, _, weights in samples.columns():
        for index, thread, weight in zip(indices, threads, weights, strict=True):
            key = (index, pids[thread])
            sums[key] = sums.get(key, 0) + weight
    markers = _Markers({stacks[index].unit for index, _ in sums}, process_names(samples.threads))
    for (index, pid), weight in sums.items():
        stack = stacks[index]
        yield Stack(markers.of(stack, pid), stack.frames, weight, stack.unit)
