# SPDX-License-Identifier: Apache-2.0
"""The heat of source lines: how much weight each line has, itself and with all that it calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.report.methods import stack_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.profiler.samples import Samples

__all__ = ["FileHeat", "heat_of"]


@dataclass(frozen=True, slots=True)
class FileHeat:
    """Weights of one file's lines.

    `self` has the weight of stacks in which the line is the innermost one of Ruby source, `total` of those
    that have it anywhere. `self_weight` and `total_weight` are the file's. `names` are the methods met.
    """

    path: str
    self: dict[int, int]
    total: dict[int, int]
    self_weight: int
    total_weight: int
    names: tuple[str, ...]


@dataclass(slots=True)
class _Growing:
    self: Counter[int]
    total: Counter[int]
    names: dict[str, None]
    self_weight: int = 0
    total_weight: int = 0


def heat_of(samples: Samples, unit: str, wanted: Callable[[str], bool] | None = None) -> list[FileHeat]:
    """Return the heat of files, those with the most weight of their own first; samples of `unit` only.

    With `wanted` only of frames whose method's name it takes. A C function has its caller's line and adds
    nothing to that; time in native code is its innermost Ruby line's own.
    """
    files: dict[str, _Growing] = {}
    for stack, weight in stack_weights(samples):
        if stack.unit != unit:
            continue
        met_lines: set[tuple[str, int]] = set()
        met_files: set[str] = set()
        innermost = True
        for frame in stack.frames:
            if frame.kind != "ruby" or frame.path is None:
                continue
            is_leaf, innermost = innermost, False
            if wanted is not None and not wanted(frame.name):
                continue
            growing = files.get(frame.path)
            if growing is None:
                growing = files[frame.path] = _Growing(Counter(), Counter(), {})
            growing.names[frame.name] = None
            line = frame.line or 0
            if is_leaf:
                growing.self[line] += weight
                growing.self_weight += weight
            if (frame.path, line) not in met_lines:
                met_lines.add((frame.path, line))
                growing.total[line] += weight
            if frame.path not in met_files:
                met_files.add(frame.path)
                growing.total_weight += weight
    found = [
        FileHeat(path, dict(f.self), dict(f.total), f.self_weight, f.total_weight, tuple(f.names))
        for path, f in files.items()
    ]
    return sorted(found, key=lambda each: (-each.self_weight, -each.total_weight, each.path))
