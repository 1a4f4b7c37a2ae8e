# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind top`: the hottest methods of processes, or of a command, while they run."""

from __future__ import annotations

import math
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rubyunwind.cli.habits import FamiliarCommand
from rubyunwind.cli.interrupts import Interrupts, end_command
from rubyunwind.cli.live.command_output import CommandOutput
from rubyunwind.cli.live.plain import plain_table, print_tables
from rubyunwind.cli.live.session import Session
from rubyunwind.cli.live.state import SORTS, VIEWS, State
from rubyunwind.cli.live.terminal import Terminal
from rubyunwind.cli.live.watch import Watch
from rubyunwind.cli.notes import news, say_notes, say_totals
from rubyunwind.cli.options import check_options, how_options, what_options
from rubyunwind.errors import RubyUnwindError
from rubyunwind.profiler.recording import Recording

if TYPE_CHECKING:
    from rubyunwind.cli.live.state import Sort, View

__all__ = ["command"]

# On the screen "now" is the last seconds: of one second, at 99 Hz, a third of the order would be chance.
_NOW = 5.0
# Rows that are left on the terminal when the processes have ended.
_LAST_ROWS = 10
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@click.command("top", cls=FamiliarCommand, short_help="the hottest methods, live")
@what_options
@click.option(
    "--interval",
    "--delay",
    "interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two tables.",
)
@click.option("-n", "--tables", type=click.IntRange(1), help="Print so many plain tables, then end.")
@click.option("--once", is_flag=True, help="Print one plain table, then end: -n 1.")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Rows of a plain table.",
)
@click.option("--sort", type=click.Choice(SORTS), default="self", show_default=True, help="Order of methods.")
@click.option("--view", type=click.Choice(VIEWS), default="methods", show_default=True, help="What rows are.")
@click.option("--native/--no-native", default=False, help="Show native, kernel and JIT frames. Default: no.")
@how_options
def command(
    pids: tuple[int, ...],
    rate: int,
    duration: float | None,
    interval: float,
    tables: int | None,
    once: bool,
    rows: int,
    sort: Sort,
    view: View,
    native: bool,
    subprocesses: bool | None,
    backend: str,
    unwinder: str | None,
    force_version: str | None,
    verbose: int,
    words: tuple[str, ...],
) -> None:
    """Show the hottest methods of processes (-p PID) or a COMMAND while they run.

    On a terminal the table is live: ? lists the keys, q leaves. In a pipe, with TERM=dumb, and with -n or
    --once, plain tables are printed, one each interval. What a COMMAND writes to the terminal is shown when
    the table is left; then the command is ended, as by Ctrl-C. The exit status is the command's own.
    """
    check_options("look at", pids, words, backend, unwinder, verbose)
    count = 1 if once else tables
    state = State(view=view, sort=sort, native=native)
    live = count is None and _live_is_possible()
    window = max(1, math.ceil(_NOW / interval)) if live else 1
    with ExitStack() as stack:
        output = stack.enter_context(CommandOutput()) if live and words else None
        recording = Recording(
            pids=pids,
            command=words or None,
            rate=rate,
            children=bool(words) if subprocesses is None else subprocesses,
            backend=backend,
            unwinder=unwinder,
            force_version=force_version,
            command_output=output.fd if output is not None else None,
        )
        terminal = Terminal(
            0, 1, colours=not os.environ.get("NO_COLOR"), encoding=sys.stdout.encoding or "utf-8"
        )
        interrupts = stack.enter_context(Interrupts(recording, terminal.give_back, _SIGNALS))
        stack.enter_context(recording)
        watch = Watch(recording, window=window, is_command=bool(words))
        if live:
            with terminal:
                session = Session(watch, terminal, 0, state, interval=interval)
                left = session.run(duration, between=output.trim if output is not None else None)
            status = _end(recording, interrupts)
            if terminal.lost:  # what follows would fail there, or wait for ever
                sys.exit(status or 128 + signal.SIGHUP)
            if output is not None:
                _show(output)
            if not left:  # nobody has had the time to read it
                last = replace(session.state, since_start=True, paused=False, filter="")
                width = terminal.size.columns
                _write("\n".join(plain_table(watch, last, _LAST_ROWS, width)) + "\n")
            say_totals(recording.profile, watch.incomplete)
        else:
            said = _notes_at_start(recording)
            print_tables(
                watch,
                state,
                interval=interval,
                count=count,
                duration=duration,
                rows=rows,
                width=terminal.size.columns if sys.stdout.isatty() else None,
                write=_write,
            )
            recording.update()
            say_notes(news(recording.profile, said, among_others=bool(words)))
            status = _end(recording, interrupts)
    sys.exit(status)


def _live_is_possible() -> bool:
    """Whether keys can be read and a screen be drawn; if only one of them, say why there are plain tables."""
    if not sys.stdout.isatty():
        return False
    lacks = ""
    if not sys.stdin.isatty():
        lacks = "stdin is no terminal, so no keys can be read"
    elif os.environ.get("TERM", "") in ("", "dumb"):
        lacks = "the terminal cannot move its cursor (TERM is dumb or not set)"
    if lacks:
        click.echo(f"rubyunwind: {lacks}; plain tables follow, Ctrl-C ends them", err=True)
    return not lacks


def _notes_at_start(recording: Recording) -> tuple[str, ...]:
    said = recording.profiler.notes if recording.command is None else ()
    if recording.fallback:
        said = (recording.fallback, *said)
    say_notes(said)
    return said


def _end(recording: Recording, interrupts: Interrupts) -> int:
    """End the command, if there is one, and return the exit status."""
    child = recording.command
    if child is None:
        return 128 + interrupts.first if interrupts.first not in (0, signal.SIGINT) else 0
    if child.poll() is None and interrupts.first != signal.SIGINT:
        os.kill(child.pid, signal.SIGINT)  # as Ctrl-C would
    return end_command(child, interrupts, wait=False)


def _show(output: CommandOutput) -> None:
    """Print what the command has written meanwhile: as it is, since that is what it would have done."""
    text, left = output.end
    if left:
        click.echo(f"rubyunwind: {left} bytes that the command wrote before are left out", err=True)
    _write_bytes(text)


def _write(text: str) -> bool:
    return _write_bytes(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))


def _write_bytes(data: bytes) -> bool:
    """Write to stdout; False if nobody reads it any more."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader has seen enough; nothing more may be written there, when it is closed neither.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    except OSError as error:
        raise RubyUnwindError(f"cannot write to stdout: {error.strerror}") from error
    return True
