# SPDX-License-Identifier: Apache-2.0
"""Unwind rows out of libruby: the parser in C, all of it, and with the cache; once with pyelftools."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from report import Row, say
from stats import spread, timed
from target import Ruby

from rubyunwind.elf import deltas
from rubyunwind.elf.deltas import StackDeltas, extract_stack_deltas, load_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.process.mappings import read_mappings

__all__ = ["measure"]


class _Stopwatch:
    """The C library with one function timed."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.seconds: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def cfi_extract(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        result = self._lib.cfi_extract(*arguments)
        self.seconds.append(time.perf_counter() - start)
        return result


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    runs = 5 if quick else 30
    path = _libruby()
    say(f"unwind rows of {path.name}, {runs} runs")
    whole, table = timed(runs, lambda: _with(path, extract_stack_deltas))
    module: Any = deltas
    watch = _Stopwatch(module.lib)
    module.lib = watch
    try:
        for _ in range(runs):
            _with(path, extract_stack_deltas)
    finally:
        module.lib = watch._lib
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder, str(number)) for number in range(runs)]
        waiting = iter(caches)
        cold, _ = timed(runs, lambda: _with(path, lambda elf: load_stack_deltas(elf, next(waiting))))
        cached, again = timed(runs, lambda: _with(path, lambda elf: load_stack_deltas(elf, caches[0])))
    assert again.count == table.count
    size = f"{table.count:,} rows, {len(table.infos)} rules, {path.stat().st_size / 1e6:.1f} MB"
    often = f"{runs} runs, median (range)"
    rows = [
        Row(
            "libruby rows, parser in C",
            spread(watch.seconds, 2, 1e3),
            "ms",
            f"cfi_extract alone; {size}; {often}",
        ),
        Row(
            "libruby rows, whole extraction",
            spread(whole, 2, 1e3),
            "ms",
            f"open the file, read it, parse; {often}",
        ),
        Row(
            "libruby rows, cache empty", spread(cold, 2, 1e3), "ms", f"the same, and hash and store; {often}"
        ),
        Row(
            "libruby rows, cached", spread(cached, 2, 1e3), "ms", f"open, hash, read from the cache; {often}"
        ),
    ]
    say("the same with pyelftools, once")
    seconds, (functions, lines) = timed(1, lambda: _pyelftools(path))
    rows.append(
        Row(
            "libruby rows, pyelftools",
            f"{seconds[0]:.1f}",
            "s",
            f"decode all {functions:,} FDEs into {lines:,} lines; 1 run",
        )
    )
    return rows


def _libruby() -> Path:
    """Return the file that a Ruby process has most code of: libruby, or ruby itself if it is static."""
    with Ruby.spinning(10) as ruby:
        mappings = [
            item for item in read_mappings(ruby.pid) if item.executable and "ruby" in Path(item.path).name
        ]
    return Path(max(mappings, key=lambda item: item.end - item.start).path)


def _with(path: Path, work: Any) -> StackDeltas:
    with ElfFile.open(path) as elf:
        result: StackDeltas = work(elf)
        return result


def _pyelftools(path: Path) -> tuple[int, int]:
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as file:
        entries = ELFFile(file).get_dwarf_info().EH_CFI_entries()
        functions = [entry for entry in entries if isinstance(entry, FDE)]
        lines = sum(len(function.get_decoded().table) for function in functions)
        return len(functions), lines
