# SPDX-License-Identifier: Apache-2.0
"""Reports as plain text: what was recorded and lost, the hottest methods, what has changed, hot lines."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rubyunwind.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rubyunwind.formats.recorded import Recorded
    from rubyunwind.report.heat import FileHeat
    from rubyunwind.report.methods import Change, Method, MethodWeights
    from rubyunwind.report.sources import Source

__all__ = ["Look", "changes_text", "head_text", "heat_text", "methods_text"]

_BOLD, _RED, _YELLOW, _OFF = "\033[1m", "\033[31m", "\033[33m", "\033[0m"
# Shares from which on a line is marked.
_HOT, _WARM = 0.1, 0.02
# Lines shown around each that has weight.
_AROUND = 2


@dataclass(frozen=True, slots=True)
class Look:
    """How text is laid out: with colour or not, and `width` characters wide (0: as wide as it gets)."""

    colour: bool = False
    width: int = 0

    @classmethod
    def of_stdout(cls) -> Look:
        """Colour and a width for a terminal only, and no colour where NO_COLOR is set."""
        if not sys.stdout.isatty():
            return cls()
        colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")
        return cls(colour, shutil.get_terminal_size().columns)

    def paint(self, text: str, colour: str) -> str:
        """Return the text in a colour, if there is any."""
        return f"{colour}{text}{_OFF}" if self.colour and colour else text

    def line(self, text: str, colour: str = "") -> str:
        """Return one line, cut at the width. `text` has no escape sequences yet."""
        if self.width and len(text) > self.width:
            text = text[: self.width - 1] + "…" if self.width > 1 else text[: self.width]
        return self.paint(text.rstrip(), colour)


def head_text(recorded: Recorded, selected: int, look: Look) -> Iterator[str]:
    """Yield what was recorded, its totals and losses; `selected` samples of it are in the report."""
    meta, totals = recorded.meta, recorded.totals
    about = [meta.command or meta.title, *meta.runtimes, meta.backend]
    if meta.rate:
        about.append(f"{meta.rate:g} Hz")
    if meta.duration:
        about.append(f"{meta.duration:.1f} s")
    if meta.started:
        about.append(f"{datetime.fromtimestamp(meta.started // 10**9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC")
    if any(about):
        yield look.line(", ".join(printable(each) for each in about if each), _BOLD)
    yield look.line(
        f"samples: {totals.read} read, {recorded.samples.incomplete} incomplete, "
        f"{totals.truncated} truncated, {totals.lost} lost",
        _RED if totals.lost else "",
    )
    if totals.failed:
        reasons = ", ".join(f"{printable(reason)} {count}" for reason, count in totals.failed)
        yield look.line(f"incomplete or unsent, by reason: {reasons}")
    if selected != len(recorded.samples):
        yield look.line(f"selected: {selected} of {len(recorded.samples)} samples", _BOLD)


def methods_text(weights: MethodWeights, rows: int, look: Look) -> Iterator[str]:
    """Yield a table of methods, `rows` of them (0: all)."""
    yield ""
    yield look.line(f"{'self':>16} {'total':>16}  {'kind':10} method", _BOLD)
    for each in weights.methods[: rows or None]:
        columns = (_amount(value, weights) for value in (each.self, each.total))
        yield look.line(f"{' '.join(columns)}  {_named(each.method, each.line)}")
    yield from _more(len(weights.methods), rows, "methods")


def changes_text(
    changes: Sequence[Change], before: MethodWeights, after: MethodWeights, rows: int, look: Look
) -> Iterator[str]:
    """Yield a table of changes in percentage points, `rows` of them (0: all)."""
    yield ""
    yield look.line(
        f"shares of all weight: of {_weight(before.whole, before.unit)} before and of "
        f"{_weight(after.whole, after.unit)} after; the changes are percentage points"
    )
    yield look.line(
        f"{'self':>7} {'->':>7} {'change':>7}  {'total':>7} {'->':>7} {'change':>7}  {'kind':10} method",
        _BOLD,
    )
    for each in changes[: rows or None]:
        yield look.line(
            f"{each.self_before:7.1%} {each.self_after:7.1%} {100 * each.self_change:+7.1f}  "
            f"{each.total_before:7.1%} {each.total_after:7.1%} {100 * each.total_change:+7.1f}  "
            f"{_named(each.method, 0)}",
            _RED if each.self_change >= _WARM else "",
        )
    if not changes:
        yield look.line("nothing has changed its share")
    yield from _more(len(changes), rows, "methods that changed")


def heat_text(heat: FileHeat, source: Source, whole: int, unit: str, rows: int, look: Look) -> Iterator[str]:
    """Yield a file's hottest lines (`rows` of them, 0: all) amid those around them, with self and total."""
    yield ""
    shares = f"self {_share(heat.self_weight, whole)}, total {_share(heat.total_weight, whole)}"
    yield look.line(f"{printable(heat.path)}: {shares} of {_weight(whole, unit)}", _BOLD)
    yield look.line(f"  {source.note}")
    ranked = sorted(heat.total, key=lambda line: (-heat.self.get(line, 0), -heat.total[line], line))
    hot = set(ranked[: rows or None])
    lines = source.lines
    shown = set(hot)
    if lines is not None:
        shown |= {at for line in hot if line for at in range(line - _AROUND, line + _AROUND + 1)}
        shown = {line for line in shown if 1 <= line <= len(lines) or line in hot}
    yield look.line(f"{'self':>7} {'total':>7} {'line':>6}")
    last = None
    for line in sorted(shown):
        if last is not None and line != last + 1:
            yield look.line(f"{'':22}  ...")
        last = line
        own, total = heat.self.get(line, 0) / whole, heat.total.get(line, 0) / whole
        colour = _RED if own >= _HOT else _YELLOW if own >= _WARM else ""
        numbers = f"{own:7.1%} {total:7.1%}" if total else " " * 15
        if not own and total:
            numbers = f"{'':7} {total:7.1%}"
        yield look.line(f"{numbers} {line if line else '?':>6}  {_source_line(lines, line)}", colour)
    if lines is not None and any(line > len(lines) for line in hot):
        yield look.line(f"  lines beyond the {len(lines)} of this file: it is not the one that ran", _RED)
    yield from _more(len(heat.total), rows, "lines")


def _source_line(lines: tuple[str, ...] | None, line: int) -> str:
    if lines is None or not 1 <= line <= len(lines):
        return ""
    return printable(lines[line - 1].expandtabs(8))


def _named(method: Method, line: int) -> str:
    where = f"  {printable(method.file)}" if method.file else ""
    if where and line:
        where += f":{line}"
    return f"{printable(method.kind):10} {printable(method.name)}{where}"


def _weight(weight: int, unit: str) -> str:
    if unit == "ns":
        return f"{weight / 1e9:.3f} s"
    return f"{weight} {printable(unit)}"


def _share(weight: int, whole: int) -> str:
    return f"{weight / whole:.1%}" if whole else "none"


def _amount(weight: int, weights: MethodWeights) -> str:
    number = f"{weight / 1e9:.3f}s" if weights.unit == "ns" else str(weight)
    return f"{number:>9} {_share(weight, weights.whole):>6}"


def _more(count: int, rows: int, what: str) -> Iterator[str]:
    if rows and count > rows:
        yield f"... and {count - rows} more {what}; -n 0 shows all"
