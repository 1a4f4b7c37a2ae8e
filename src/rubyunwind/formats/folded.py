# SPDX-License-Identifier: Apache-2.0
r"""Folded stacks: `root;...;leaf weight`, one line for each distinct stack.

A line is cut at its last space and its stack at each `;`, so names are escaped as names.py says, and a
semicolon is `\x3b`. So is the space (`\x20`) before a number that a name ends in: flame graph scripts take
two numbers at the end of a line for the weights of a comparison.

Kernel frames end in `_[k]` and JIT-compiled ones in `_[j]`, as flame graph scripts colour them; a name that
ends so by itself has its bracket escaped (`\x5b`), so a suffix never lies. A stack that did not reach its
root starts with `[truncated: reason]` (a limit cut it) or `[incomplete: reason]`; with several processes,
`comm (pid)` stands before that.

A comparison has two weights in a line, those of the first profile and of the second: they are what was
counted, whatever the totals of the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.difference import side_stacks
from rubyunwind.formats.names import printable
from rubyunwind.formats.stacks import Marker, group
from rubyunwind.profiler.sample import Frame, Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.difference import Side
    from rubyunwind.formats.registry import Meta

__all__ = ["escape_name", "write", "write_difference"]

_SUFFIXED = re.compile(r"_\[([kj]\])\Z")
# Two numbers at the end of a line are the two weights of a comparison.
_NUMBERED = re.compile(r" ([0-9]+\.?[0-9]*)\Z")
_SUFFIXES = {"kernel": "_[k]", "jit": "_[j]"}


def escape_name(name: str) -> str:
    """The name as it stands in a line: no `;`, no control, no lone surrogate. It can be read back."""
    text = _NUMBERED.sub(r"\\x20\1", printable(name).replace(";", "\\x3b"))
    return _SUFFIXED.sub(r"_\\x5b\1", text)


def _text(frame: Frame | Marker) -> str:
    return escape_name(frame.name) + _SUFFIXES.get(frame.kind, "")


class _Lines:
    """Stacks as text, each frame of them made once."""

    def __init__(self) -> None:
        # By identity, which costs no hash of seven fields; what was seen is kept, and with it its id.
        self._texts: dict[int, tuple[Frame | Marker, str]] = {}

    def line(self, path: Iterable[Frame | Marker]) -> str:
        """A path, root first, as it stands in a line before the weight."""
        return ";".join(map(self._text, path))

    def _text(self, frame: Frame | Marker) -> str:
        known = self._texts.get(id(frame))
        if known is None:
            known = self._texts[id(frame)] = frame, _text(frame)
        return known[1]


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the stacks in order of first appearance. The weights add up to the samples'.

    Stacks that only differ in what a name does not say (lines, files) become one line.
    """
    weights: dict[str, int] = {}
    lines = _Lines()
    for stack in group(samples):
        line = lines.line(chain(stack.markers, reversed(stack.frames)))
        weights[line] = weights.get(line, 0) + stack.weight
    for line, weight in weights.items():
        file.write(f"{line} {weight}\n".encode())


def write_difference(file: BinaryIO, before: Side, after: Side, /) -> None:
    """Write the stacks of both with two weights each, 0 where a side does not have it."""
    weights: dict[str, list[int]] = {}
    lines = _Lines()
    found = list(side_stacks(before, after))
    several = len({each.unit for each in found}) > 1
    for side, unit, path, weight in found:
        marked = (Marker("unit", f"[{unit}]"), *path) if several else path
        weights.setdefault(lines.line(marked), [0, 0])[side] += weight
    for line, (one, other) in weights.items():
        file.write(f"{line} {one} {other}\n".encode())
