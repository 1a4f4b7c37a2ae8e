# SPDX-License-Identifier: Apache-2.0
"""Tables as plain text, one after the other: for pipes, logs and terminals that cannot move the cursor."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rubyunwind.cli.live.cells import fit
from rubyunwind.cli.live.screen import head_lines, table_lines
from rubyunwind.cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rubyunwind.cli.live.state import State
    from rubyunwind.cli.live.watch import Watch

__all__ = ["plain_table", "print_tables"]


def plain_table(watch: Watch, state: State, rows: int, width: int | None) -> Iterator[str]:
    """Yield the lines of a table of `rows` rows at most; with a `width`, in cells, they are cut to it."""
    table, status = watch.table(state), watch.status()
    lines = [*head_lines(table, state, status), *table_lines(table, state, status, width, 0, rows)]
    for line in lines:
        text = printable(line.text)
        yield text if width is None else fit(text, width)
    left = len(table.rows) - rows
    if left > 0:
        yield f"  ... and {left} more rows"


def print_tables(
    watch: Watch,
    state: State,
    *,
    interval: float,
    count: int | None,
    duration: float | None,
    rows: int,
    width: int | None,
    write: Callable[[str], bool],
) -> None:
    """Write a table each `interval` seconds until there were `count`, the time is up, or nothing is left.

    `write` returns False when nobody reads any more, which ends it, too. A shorter interval at the
    end has its table: no sample is in none.
    """
    begin = time.monotonic()
    end = None if duration is None else begin + duration
    due, written = begin + interval, 0

    def one() -> bool:
        nonlocal written
        watch.close_interval()
        separator = "\n" if written else ""
        written += 1
        return write(separator + "\n".join(plain_table(watch, state, rows, width)) + "\n")

    while count is None or written < count:
        now = time.monotonic()
        if watch.ended or (end is not None and now >= end):
            watch.take(watch.recording.profiler.stop())
            one()
            return
        if now >= due:
            if not one():
                return
            due = max(due + interval, now)
            continue
        until = due if end is None else min(due, end)
        watch.take(watch.recording.profiler.poll(max(0.0, min(0.1, until - now))))
