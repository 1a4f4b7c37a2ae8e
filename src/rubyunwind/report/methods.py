# SPDX-License-Identifier: Apache-2.0
"""Methods and their weights, self and total, and how these differ between two recordings."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.profiler.reasons import TRUNCATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.samples import SampledStack, Samples

__all__ = ["Change", "Method", "MethodWeight", "MethodWeights", "compare", "stack_weights"]


class Method(NamedTuple):
    """What makes two frames one method: kind, name, and the file, of the source or the native module."""

    kind: str
    name: str
    file: str | None

    @classmethod
    def of(cls, frame: Frame) -> Method:
        """Return the method of a frame. The path of a C function is its caller's and tells nothing apart."""
        file = frame.module if frame.path is None or frame.kind == "cfunc" else frame.path
        return cls(frame.kind, frame.name, file)


@dataclass(frozen=True, slots=True)
class MethodWeight:
    """A method's weights: of stacks with it at the leaf, and with it anywhere. `line` is its heaviest."""

    method: Method
    self: int
    total: int
    line: int


@dataclass(frozen=True, slots=True)
class MethodWeights:
    """All methods of one unit, those with the most weight of their own first. `whole` is all weight."""

    unit: str
    whole: int
    methods: tuple[MethodWeight, ...]

    @classmethod
    def of(cls, samples: Samples) -> list[MethodWeights]:
        """Return the methods for each unit the samples have, the first one to appear first."""
        units: dict[str, _Sums] = {}
        methods: dict[int, tuple[Frame, Method]] = {}  # by identity: the stacks share frames and keep them
        for stack, weight in stack_weights(samples):
            sums = units.setdefault(stack.unit, _Sums())
            sums.add(stack, weight, methods)
        return [sums.finish(unit) for unit, sums in units.items()]


def stack_weights(samples: Samples) -> Iterable[tuple[SampledStack, int]]:
    """Return each distinct stack with the sum of the weights of its samples."""
    sums: Counter[int] = Counter()
    for columns in samples.columns():
        for stack, weight in zip(columns[1], columns[4], strict=True):
            sums[stack] += weight
    stacks = samples.stacks
    return ((stacks[index], weight) for index, weight in sums.items())


class _Sums:
    def __init__(self) -> None:
        self._whole = 0
        self._self: Counter[Method] = Counter()
        self._total: Counter[Method] = Counter()
        self._lines: dict[Method, Counter[int]] = {}

    def add(self, stack: SampledStack, weight: int, methods: dict[int, tuple[Frame, Method]]) -> None:
        self._whole += weight
        if not stack.complete or not stack.frames:
            marker = _incomplete(stack)
            self._total[marker] += weight
            self._self[marker] += 0 if stack.frames else weight
        met = set()
        for at, frame in enumerate(stack.frames):
            known = methods.get(id(frame))
            if known is None:
                known = methods[id(frame)] = (frame, Method.of(frame))
            method = known[1]
            if at == 0:
                self._self[method] += weight
            if method not in met:  # a method that calls itself is on the stack once
                met.add(method)
                self._total[method] += weight
                if frame.line and frame.kind != "cfunc":
                    self._lines.setdefault(method, Counter())[frame.line] += weight

    def finish(self, unit: str) -> MethodWeights:
        found = [
            MethodWeight(method, self._self[method], total, _heaviest(self._lines.get(method)))
            for method, total in self._total.items()
        ]
        found.sort(key=lambda each: (-each.self, -each.total, each.method.name, each.method.file or ""))
        return MethodWeights(unit, self._whole, tuple(found))


def _incomplete(stack: SampledStack) -> Method:
    """What is not on a stack is in the table, too: as the frame that other formats put at its root."""
    if stack.complete:
        return Method("incomplete", "[no frames]", None)
    word = "truncated" if stack.reason in TRUNCATIONS else "incomplete"
    return Method("incomplete", f"[{word}: {stack.reason or 'unknown reason'}]", None)


def _heaviest(lines: Counter[int] | None) -> int:
    return min(lines, key=lambda line: (-lines[line], line)) if lines else 0


@dataclass(frozen=True, slots=True)
class Change:
    """A method's shares in two recordings, each of the whole weight there: from 0 to 1."""

    method: Method
    self_before: float
    self_after: float
    total_before: float
    total_after: float

    @property
    def self_change(self) -> float:
        """By how much the share of its own has grown."""
        return self.self_after - self.self_before

    @property
    def total_change(self) -> float:
        """By how much the share with what it calls has grown."""
        return self.total_after - self.total_before


def compare(before: MethodWeights, after: MethodWeights) -> list[Change]:
    """Return all methods of both whose shares differ, those whose own share differs the most first."""
    shares: dict[Method, list[float]] = {}
    for at, weights in enumerate((before, after)):
        for each in weights.methods:
            share = shares.setdefault(each.method, [0.0, 0.0, 0.0, 0.0])
            share[at] = each.self / weights.whole if weights.whole else 0.0
            share[2 + at] = each.total / weights.whole if weights.whole else 0.0
    changes = [Change(method, *share) for method, share in shares.items()]
    changes = [each for each in changes if each.self_change or each.total_change]
    changes.sort(
        key=lambda each: (
            -abs(each.self_change),
            -abs(each.total_change),
            each.method.name,
            each.method.file or "",
        )
    )
    return changes
