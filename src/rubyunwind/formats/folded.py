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
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.difference import side_stacks
from rubyunwind.formats.memo import Memo
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
_NUMBER_ENDS = tuple("0123456789.")
_SUFFIXES = {"kernel": "_[k]", "jit": "_[j]"}


def escape_name(name: str) -> str:
    """The name as it stands in a line: no `;`, no control, no lone surrogate. It can be read back."""
    text = printable(name).replace(";", "\\x3b")
    # Most names end in neither, which is cheaper to see than to search for.
    if text.endswith(_NUMBER_ENDS):
        text = _NUMBERED.sub(r"\\x20\1", text)
    return _SUFFIXED.sub(r"_\\x5b\1", text) if text.endswith("]") else text


def _text(frame: Frame | Marker) -> str:
    return escape_name(frame.name) + _SUFFIXES.get(frame.kind, "")


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the stacks in order of first appearance. The weights add up to the samples'.

    Stacks that only differ in what a name does not say (lines, files) become one line.
    """
    weights: dict[str, int] = {}
    texts = Memo(_text).of
    for stack in group(samples):
        line = ";".join(texts((*stack.markers, *stack.frames[::-1])))
        weights[line] = weights.get(line, 0) + stack.weight
    file.writelines(f"{line} {weight}\n".encode() for line, weight in weights.items())


def write_difference(file: BinaryIO, before: Side, after: Side, /) -> None:
    """Write the stacks of both with two weights each, 0 where a side does not have it."""
    weights: dict[str, list[int]] = {}
    texts = Memo(_text).of
    found = list(side_stacks(before, after))
    units = {each.unit: Marker("unit", f"[{each.unit}]") for each in found}
    for side, unit, path, weight in found:
        marked = (units[unit], *path) if len(units) > 1 else path
        weights.setdefault(";".join(texts(marked)), [0, 0])[side] += weight
    for line, (one, other) in weights.items():
        file.write(f"{line} {one} {other}\n".encode())
