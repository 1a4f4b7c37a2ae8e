# SPDX-License-Identifier: Apache-2.0
"""Hot lines of source as text: each with its share, amid those around it, below the method that it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.cli.live.cells import fit
from rubyunwind.cli.report_text import BOLD, DIM, RED, YELLOW, more, share, weight
from rubyunwind.cli.text import printable
from rubyunwind.report.heat import Heat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rubyunwind.cli.report_text import Look
    from rubyunwind.report.heat import FileHeat
    from rubyunwind.report.sources import Source

__all__ = ["heat_text"]

# Shares from which on a line is marked.
_HOT, _WARM = 0.1, 0.02
# Lines shown around each that has weight.
_AROUND = 2
# Cells of the bar that shows a line's own weight, and the share that fills it. Then eighths of a cell.
_BAR, _FULL = 4, 0.2
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NONE = Heat(0, 0)


def heat_text(heat: FileHeat, source: Source, whole: int, unit: str, rows: int, look: Look) -> Iterator[str]:
    """Yield a file's hottest lines (`rows` of them, 0: all) amid those around them, with self and total.

    `whole` is all weight of the profile, of which shares are.
    """
    yield ""
    yield look.tail(printable(heat.path), BOLD)
    yield look.line(
        f"self {share(heat.heat.self, whole)}, total {share(heat.heat.total, whole)} of {weight(whole, unit)}"
    )
    yield look.line(f"source: {source.note}", RED if source.doubtful else "")
    yield look.line(f"{'self':>6} {'total':>6} {'heat':{_BAR}} {'line':>6}", DIM)
    # What a line used itself counts twice, so that of two with equal totals it comes before one that calls.
    ranked = sorted(heat.lines, key=lambda line: (-sum(heat.lines[line]), line))
    hot = ranked[: rows or None]
    lines = source.lines
    shown, heads = _layout(heat, sorted(hot), len(lines) if lines is not None else None)
    last = None
    for line in shown:
        if line in heads:
            name = heads[line]
            of_method = f"{_numbers(heat.methods[name], whole)}        {printable(name)}"
            yield look.line(of_method, BOLD)
        elif last is not None and line != last + 1 and lines is not None:
            yield look.line(f"{'':{_BAR + 22}}  ...", DIM)
        last = line
        yield _line(heat.lines.get(line, _NONE), whole, line, _text(lines, line), look)
    if lines is not None and any(line > len(lines) for line in hot):
        yield look.line(f"lines beyond the {len(lines)} of this file: it is not the one that ran", RED)
    left = sum(heat.lines[line].self for line in ranked[len(hot) :])
    yield from more(len(heat.lines), rows, f"lines, self {share(left, whole)}")


def _layout(heat: FileHeat, hot: Iterable[int], end: int | None) -> tuple[list[int], dict[int, str]]:
    """Return the lines to show, of a file of `end` lines (None: there is no source), and where the name of a
    method stands before one."""
    shown: set[int] = set()
    heads: dict[int, str] = {}
    before, end_before, method = None, 0, None
    for line in hot:
        around = _AROUND if line and end is not None and line <= end else 0
        # What is between two methods is the second one's.
        first = max(line - around, 1 if before is None else before + 1) if line else 0
        if heat.method_of[line] != method:
            method = heads[first] = heat.method_of[line]
        elif line - around == end_before + 2:
            first -= 1  # to say that one line is left out would take one, too
        end_before = line + around
        shown.update(range(first, end_before + 1))
        before = line
    taken = set(hot)
    return sorted(line for line in shown if end is None or line <= end or line in taken), heads


def _line(heat: Heat, whole: int, line: int, text: str, look: Look) -> str:
    own = heat.self / whole if whole else 0.0
    numbers = f"{_numbers(heat, whole, bar=True)} {line or '?':>6}  "
    if look.width:
        numbers, text = fit(numbers, look.width), fit(text, max(look.width - len(numbers), 0))
    if not heat.total:
        return look.paint(f"{numbers}{text}".rstrip(), DIM)
    colour = RED if own >= _HOT else YELLOW if own >= _WARM else ""
    return look.paint(numbers, colour) + text if text else look.paint(numbers.rstrip(), colour)


def _numbers(heat: Heat, whole: int, *, bar: bool = False) -> str:
    """Self, total, and a bar for the first of them, or the room for one."""
    own, total = (f"{share(each, whole):>6}" if each else " " * 6 for each in heat)
    eighths = 0
    if bar and heat.self and whole:
        eighths = min(max(1, round(8 * _BAR * heat.self / whole / _FULL)), 8 * _BAR)
    cells = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return f"{own} {total} {cells:{_BAR}}"


def _text(lines: tuple[str, ...] | None, line: int) -> str:
    if lines is None or not 1 <= line <= len(lines):
        return ""
    return printable(lines[line - 1].expandtabs(8)).rstrip()
