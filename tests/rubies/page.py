# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/rubies.md: one for each way to sample, its rows are programs, its columns Rubies."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

from live.programs import PROGRAMS
from rubyunwind.profiler.backends import CHAIN, WALKER

from .cells import USER, WAYS, Cell
from .roots import Root

PAGE = Path(__file__).parents[2] / "docs/rubies.md"
# What stands above it in the page is written by hand.
MARK = "<!-- `make truth` writes what follows. -->\n"

_TITLES = {
    WALKER: "BPF, the walker (the default)",
    CHAIN: "BPF, the chain (`--unwinder chain`)",
    USER: "User space (`--backend user`)",
}


def text(cell: Cell | None) -> str:
    """Return what a cell of the table says."""
    if cell is None:
        return "not run"
    counts = f"{cell.exact} of {cell.samples}"
    if not cell.good:
        return f"**{counts}**"
    return f"{counts}, cut" if cell.cut else counts


def tables(found: Mapping[Root, Collection[Cell]]) -> Iterator[str]:
    """Return the lines of the tables, and below them what the first wrong sample of a Ruby and way was."""
    roots = sorted(found, key=lambda root: root.series)
    cells = {(root, cell.way, cell.program): cell for root in roots for cell in found[root]}
    for way in WAYS:
        yield f"## {_TITLES[way]}"
        yield ""
        yield "| program | " + " | ".join(root.series for root in roots) + " |"
        yield "|" + " --- |" * (len(roots) + 1)
        for program in map(str, PROGRAMS):
            yield (
                f"| {program} | " + " | ".join(text(cells.get((root, way, program))) for root in roots) + " |"
            )
        yield ""
    for root, way in product(roots, WAYS):
        wrong = [cell for cell in found[root] if cell.way == way and not cell.good]
        if wrong:
            first = f"the first is {wrong[0].program}: {wrong[0].difference or 'no samples'}"
            yield f"- {root.series}, {way}: {len(wrong)} of {len(PROGRAMS)} programs differ, {first}"


def circumstances(roots: Iterable[Root], skipped: Iterable[str]) -> Iterator[str]:
    """Say on what, of what and when the tables were made."""
    packages = ", ".join(f"ruby{root.series} {root.package}" for root in roots)
    when = datetime.now(timezone.utc).date().isoformat()
    kernel = platform.release().partition("-")[0]
    yield f"`make truth` of {when}: Linux {kernel}, {platform.machine()}, {os.cpu_count()} CPUs."
    yield f"Debian's packages: {packages}."
    yield from (f"Skipped: {reason}" for reason in skipped)
    yield ""


def write(lines: Iterable[str], page: Path = PAGE) -> None:
    """Put lines into the page, in place of those that are there."""
    above, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise ValueError(f"{page} has no line {MARK.strip()!r}, below which the tables go")
    page.write_text(f"{above}{mark}\n" + "\n".join(lines).rstrip() + "\n", encoding="utf-8")
