# SPDX-License-Identifier: Apache-2.0
"""Runs the whole table, prints each cell as it comes and ends with status 1 if one is not exact.

python -m rubies.run [--refresh] [--write] [SERIES...]
"""

from __future__ import annotations

import argparse
import sys
from itertools import chain

import pytest

from live.programs import Program, runnable
from live.spinning import Ruby

from .cells import USER, WAYS, Cell, cells_of
from .page import PAGE, circumstances, tables, write
from .roots import CannotBeHad, Root, built, known, root_of, ruby_in

SAMPLES = 200
# musl says of the main thread's stack what of it is mapped at the start, and Ruby believes that: there this
# one is too deep.
TOO_DEEP_FOR_MUSL = {"bounces 200"}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rubies.run", description=__doc__)
    everything = [*known(), *built()]
    parser.add_argument("series", nargs="*", help=f"the Rubies to run, of {', '.join(everything)}")
    parser.add_argument("--refresh", action="store_true", help="look for newer packages")
    parser.add_argument("--write", action="store_true", help=f"write the tables into docs/{PAGE.name}")
    arguments = parser.parse_args()
    if arguments.series and arguments.write:
        parser.error("--write writes the whole tables: name no Ruby with it")
    if unknown := set(arguments.series) - set(everything):
        parser.error(f"no such Ruby: {', '.join(sorted(unknown))}; known: {', '.join(everything)}")
    return arguments


def _cells(ruby: Ruby, program: Program) -> list[Cell]:
    """Return a program's cells; if it cannot be run, or gives no samples, they say why."""
    cells: list[Cell] = []
    ways = [way for way in WAYS if program.main_ractor or way != USER]
    try:
        cells += cells_of(ruby, program, ways, SAMPLES)
    except pytest.skip.Exception as reason:  # this Ruby has not what the program is about
        print(f"{program}: {reason}", flush=True)
    except (AssertionError, RuntimeError) as error:
        missing = ways[len(cells) :]
        cells += [Cell(str(program), way, 0, 0, 0, str(error).splitlines()[0]) for way in missing]
    return cells


def main() -> int:
    """Return 0 if each sample of each cell was exact."""
    arguments = _arguments()
    found: dict[Root, list[Cell]] = {}
    skipped: list[str] = []
    for series in arguments.series or known():
        try:
            root = root_of(series, refresh=arguments.refresh)
        except CannotBeHad as reason:
            print(f"skipped: {reason}", flush=True)
            skipped.append(str(reason))
            continue
        found[root] = []
        with ruby_in(root) as ruby:
            programs = runnable(ruby.start)
            if ruby.reason is not None:
                programs = [program for program in programs if str(program) not in TOO_DEEP_FOR_MUSL]
            for cell in chain.from_iterable(_cells(ruby, program) for program in programs):
                found[root].append(cell)
                said = f"{cell.exact} of {cell.samples}" + (" (cut)" if cell.cut else "")
                said += f" ({cell.rootless} end in the C library)" if cell.rootless else ""
                print(f"{series:4} {cell.way:7} {cell.program:34} {said:16} {cell.difference}", flush=True)
    lines = [*circumstances(found, skipped), *tables(found)]
    if arguments.write:
        write(lines)
    wrong = [cell for cells in found.values() for cell in cells if not cell.good]
    total = sum(map(len, found.values()))
    for root, cells in found.items():
        exact, samples = (sum(getattr(cell, name) for cell in cells) for name in ("exact", "samples"))
        rootless = sum(cell.rootless for cell in cells)
        tail = f", {rootless} of them end in the C library" if rootless else ""
        print(f"{root.series}: {exact} of {samples} samples are exact{tail}")
    print(f"{total - len(wrong)} of {total} cells are exact")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
