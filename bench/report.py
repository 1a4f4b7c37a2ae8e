# SPDX-License-Identifier: Apache-2.0
"""The table of results: one row a number, with what was measured and how often."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Row", "say", "table"]

_HEAD = ("what", "value", "unit", "how")


@dataclass(frozen=True, slots=True)
class Row:
    """One result. `value` is text, with its interval or range; `how` says what was measured, how often."""

    what: str
    value: str
    unit: str
    how: str


def table(rows: Iterable[Row]) -> str:
    """Return the rows as an aligned Markdown table."""
    cells = [_HEAD, *((row.what, row.value, row.unit, row.how) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def say(text: str) -> None:
    """Tell on stderr what is being done."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
