# SPDX-License-Identifier: Apache-2.0
r"""Folded stacks: `root;...;leaf weight`, one line for each distinct stack.

A line is cut at its last space and its stack at each `;`, so names are escaped as names.py says, and a
semicolon is `\x3b`. So is the space (`\x20`) before a number that a name ends in: flame graph scripts take
two numbers at the end of a line for the weights of a comparison.

Kernel frames end in `_[k]` and JIT-compiled ones in `_[j]`, as flame graph scripts colour them; a name that
ends so by itself has its bracket escaped (`\x5b`), so a suffix never lies. A stack that did not reach its
root starts with `[truncated: reason]` (a limit cut it) or `[incomplete: reason]`; with several processes,
`comm (pid)` stands before that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.names import printable
from rubyunwind.formats.stacks import Marker, group
from rubyunwind.profiler.sample import Frame, Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta

__all__ = ["escape_name", "write"]

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


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the stacks in order of first appearance. The weights add up to the samples'.

    Stacks that only differ in what a name does not say (lines, files) become one line.
    """
    lines: dict[str, int] = {}
    texts: dict[int, str] = {}  # by identity: `stacks` keeps every frame alive
    stacks = group(samples)
    for stack in stacks:
        parts = [_text(marker) for marker in stack.markers]
        for frame in reversed(stack.frames):
            text = texts.get(id(frame))
            if text is None:
                text = texts[id(frame)] = _text(frame)
            parts.append(text)
        line = ";".join(parts)
        lines[line] = lines.get(line, 0) + stack.weight
    for line, weight in lines.items():
        file.write(f"{line} {weight}\n".encode())
