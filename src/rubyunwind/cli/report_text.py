# SPDX-License-Identifier: Apache-2.0
"""Reports as plain text: what was recorded and lost, the hottest methods, what has changed."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rubyunwind.cli.live.cells import fit, fit_end
from rubyunwind.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rubyunwind.formats.recorded import Recorded
    from rubyunwind.report.methods import Change, Method, MethodWeights

__all__ = [
    "BOLD",
    "DIM",
    "RED",
    "YELLOW",
    "Look",
    "changes_text",
    "head_text",
    "methods_text",
    "more",
    "share",
    "weight",
]

BOLD, DIM, RED, YELLOW, _OFF = "\033[1m", "\033[2m", "\033[31m", "\033[33m", "\033[0m"
# A growth of the share from which on a method is marked.
_MARKED = 0.02


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
        return self.paint((fit(text, self.width) if self.width else text).rstrip(), colour)

    def tail(self, text: str, colour: str = "") -> str:
        """Return one line, cut at its beginning: the end of a path says more."""
        return self.paint(fit_end(text, self.width) if self.width else text, colour)


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
        yield look.line(", ".join(printable(each) for each in about if each), BOLD)
    yield look.line(
        f"samples: {totals.read} read, {recorded.samples.incomplete} incomplete, "
        f"{totals.truncated} truncated, {totals.lost} lost",
        RED if totals.lost else "",
    )
    if totals.failed:
        reasons = ", ".join(f"{printable(reason)} {count}" for reason, count in totals.failed)
        yield look.line(f"incomplete or unsent, by reason: {reasons}")
    if selected != len(recorded.samples):
        yield look.line(f"selected: {selected} of {len(recorded.samples)} samples", BOLD)


def methods_text(weights: MethodWeights, rows: int, look: Look) -> Iterator[str]:
    """Yield a table of methods, `rows` of them (0: all)."""
    yield ""
    yield look.line(f"{'self':>16} {'total':>16}  {'kind':10} method", BOLD)
    for each in weights.methods[: rows or None]:
        columns = (_amount(value, weights) for value in (each.self, each.total))
        yield look.line(f"{' '.join(columns)}  {_named(each.method, each.line)}")
    yield from more(len(weights.methods), rows, "methods")


def changes_text(
    changes: Sequence[Change], before: MethodWeights, after: MethodWeights, rows: int, look: Look
) -> Iterator[str]:
    """Yield a table of changes in percentage points, `rows` of them (0: all)."""
    yield ""
    yield look.line(
        f"shares of all weight: of {weight(before.whole, before.unit)} before and of "
        f"{weight(after.whole, after.unit)} after; the changes are percentage points"
    )
    yield look.line(
        f"{'self':>7} {'->':>7} {'change':>7}  {'total':>7} {'->':>7} {'change':>7}  {'kind':10} method",
        BOLD,
    )
    for each in changes[: rows or None]:
        yield look.line(
            f"{each.self_before:7.1%} {each.self_after:7.1%} {100 * each.self_change:+7.1f}  "
            f"{each.total_before:7.1%} {each.total_after:7.1%} {100 * each.total_change:+7.1f}  "
            f"{_named(each.method, 0)}",
            RED if each.self_change >= _MARKED else "",
        )
    if not changes:
        yield look.line("nothing has changed its share")
    yield from more(len(changes), rows, "methods that changed")


def _named(method: Method, line: int) -> str:
    where = f"  {printable(method.file)}" if method.file else ""
    if where and line:
        where += f":{line}"
    return f"{printable(method.kind):10} {printable(method.name)}{where}"


def weight(amount: int, unit: str) -> str:
    """Return an amount with its unit."""
    if unit == "ns":
        return f"{amount / 1e9:.3f} s"
    return f"{amount} {printable(unit)}"


def share(part: int, whole: int) -> str:
    """Return how much of the whole a part is, in per cent."""
    return f"{part / whole:.1%}" if whole else "none"


def _amount(part: int, weights: MethodWeights) -> str:
    number = f"{part / 1e9:.3f}s" if weights.unit == "ns" else str(part)
    return f"{number:>9} {share(part, weights.whole):>6}"


def more(count: int, rows: int, what: str) -> Iterator[str]:
    """Yield a line that says how many there are beyond the rows, if there are."""
    if rows and count > rows:
        yield f"... and {count - rows} more {what}; -n 0 shows all"
