# SPDX-License-Identifier: Apache-2.0
"""The table of docs/soak.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from .findings import Finding, Observed

__all__ = ["PAGE", "lines", "write"]

PAGE = Path(__file__).parents[2] / "docs/soak.md"
# What stands above it in the page is written by hand.
MARK = "<!-- `make soak` writes what follows. -->\n"


def lines(seen: Observed, found: Iterable[Finding], load: Mapping[str, str]) -> Iterator[str]:
    """Return the lines of the page: on what and when, the table, and what was counted beside it."""
    when = datetime.now(timezone.utc).date().isoformat()
    kernel = platform.release().partition("-")[0]
    cpus = os.cpu_count()
    python = platform.python_version()
    yield f"`make soak` of {when}: Linux {kernel}, {platform.machine()}, {cpus} CPUs, Python {python}."
    yield ""
    yield "| load | |"
    yield "| --- | --- |"
    yield from (f"| {what} | {value} |" for what, value in load.items())
    yield ""
    yield "| number | value | rule | met |"
    yield "| --- | --- | --- | --- |"
    yield from (
        f"| {one.what} | {one.value} | {one.rule} | {'yes' if one.met else '**no**'} |" for one in found
    )
    yield ""
    yield "| incomplete or not sent, by reason | samples |"
    yield "| --- | --- |"
    yield from (f"| {reason} | {count} |" for reason, count in seen.end["failed"].items())


def write(text: Iterable[str], page: Path = PAGE) -> None:
    """Put lines into the page, in place of those that are there."""
    above, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{page} has no line {MARK.strip()!r}, below which the table goes")
    page.write_text(f"{above}{mark}\n" + "\n".join(text).rstrip() + "\n", encoding="utf-8")
