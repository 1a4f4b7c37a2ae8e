# SPDX-License-Identifier: Apache-2.0
"""The heat of source lines: how much weight each line has, itself and with all that it calls."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.report.methods import stack_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.profiler.samples import Samples

__all__ = ["FileHeat", "Heat", "heat_of", "method_around"]

# What Ruby puts before the name of a method for code inside it that has frames of its own.
_INSIDE = re.compile(r"(?:(?:block(?: \(\d+ levels\))?|rescue|ensure) in )+")


def method_around(name: str) -> str:
    """Return the name of the method that a frame's code is in: blocks and clauses are lines of that."""
    return _INSIDE.sub("", name, count=1) if _INSIDE.match(name) else name


class Heat(NamedTuple):
    """Weights: of stacks that have it as their innermost Ruby code, and of those that have it anywhere."""

    self: int
    total: int


@dataclass(frozen=True, slots=True)
class FileHeat:
    """The heat of one file, of its lines, and of its methods with the blocks in them.

    `method_of` has for each line the method that most of its weight is of.
    """

    path: str
    heat: Heat
    lines: dict[int, Heat]
    methods: dict[str, Heat]
    method_of: dict[int, str]


@dataclass(slots=True)
class _Growing:
    self: Counter[object] = field(default_factory=Counter)
    total: Counter[object] = field(default_factory=Counter)
    by_method: dict[int, Counter[str]] = field(default_factory=dict)

    def heat(self, of: object) -> Heat:
        return Heat(self.self[of], self.total[of])


# What stands for the file itself among its lines, which are numbers, and its methods, which are names.
_FILE = None


def heat_of(
    samples: Samples,
    unit: str,
    method: Callable[[str], bool] | None = None,
    path: Callable[[str], bool] | None = None,
) -> list[FileHeat]:
    """Return the heat of files, those with the most weight of their own first; samples of `unit` only.

    With `method` only of frames that it takes, by their name or that of the method around them; with `path`
    only of the files that it takes. A C function has its caller's line and adds nothing to that; time in
    native code is its innermost Ruby line's own.
    """
    files: dict[str, _Growing] = {}
    wanted: dict[tuple[str, str], bool] = {}
    for stack, weight in stack_weights(samples):
        if stack.unit != unit:
            continue
        met: set[tuple[str, object]] = set()
        innermost = True
        for frame in stack.frames:
            if frame.kind != "ruby" or frame.path is None:
                continue
            is_leaf, innermost = innermost, False
            around = method_around(frame.name)
            known = wanted.get((frame.name, frame.path))
            if known is None:
                known = (method is None or method(frame.name) or method(around)) and (
                    path is None or path(frame.path)
                )
                wanted[frame.name, frame.path] = known
            if not known:
                continue
            growing = files.get(frame.path)
            if growing is None:
                growing = files[frame.path] = _Growing()
            line = frame.line or 0
            for each in (line, around, _FILE):
                if is_leaf:
                    growing.self[each] += weight
                if (frame.path, each) not in met:  # what calls itself is on the stack once
                    met.add((frame.path, each))
                    growing.total[each] += weight
            growing.by_method.setdefault(line, Counter())[around] += weight
    found = [_finished(path, growing) for path, growing in files.items()]
    return sorted(found, key=lambda each: (-each.heat.self, -each.heat.total, each.path))


def _finished(path: str, growing: _Growing) -> FileHeat:
    return FileHeat(
        path,
        growing.heat(_FILE),
        {line: growing.heat(line) for line in growing.by_method},
        {name: growing.heat(name) for name in growing.total if isinstance(name, str)},
        {
            line: min(names, key=lambda name: (-names[name], name))
            for line, names in growing.by_method.items()
        },
    )
