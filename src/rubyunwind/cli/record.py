# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record`: sample processes, or a command, into a file."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rubyunwind.cli.interrupts import Interrupts, end_command
from rubyunwind.cli.notes import news, say_notes, say_totals
from rubyunwind.cli.options import check_options, how_options, what_options
from rubyunwind.cli.output import Output
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS
from rubyunwind.profiler.recording import Recording

if TYPE_CHECKING:
    from rubyunwind.profiler.recording import Profile

__all__ = ["command"]

_log = logging.getLogger(__name__)


@click.command("record", short_help="sample processes or a command into a file")
@what_options
@click.option(
    "-o",
    "--output",
    help="File to write; - is stdout. Default: rubyunwind-WHAT-TIME with the format's suffix.",
)
@click.option(
    "-f",
    "--format",
    "format_",
    type=click.Choice(list(FORMATS)),
    help="Default: by the suffix of the output, else flamegraph. "
    + "; ".join(f"{name}: {each.summary}" for name, each in FORMATS.items())
    + ".",
)
@how_options
def command(
    pids: tuple[int, ...],
    rate: int,
    duration: float | None,
    output: str | None,
    format_: str | None,
    subprocesses: bool | None,
    backend: str,
    unwinder: str | None,
    force_version: str | None,
    verbose: int,
    words: tuple[str, ...],
) -> None:
    """Record processes (-p PID) or a COMMAND and write a flame graph or another format.

    The first Ctrl-C ends the recording and writes what was gathered, the second quits. The exit status is
    the command's own.
    """
    check_options("record", pids, words, backend, unwinder, verbose)
    what = Path(words[0]).name if words else "-".join(str(pid) for pid in pids)
    children = bool(words) if subprocesses is None else subprocesses
    with Output.choose(output, format_, what) as target:
        recording = Recording(
            pids=pids,
            command=words or None,
            rate=rate,
            children=children,
            debug_tracer=False,
            backend=backend,
            unwinder=unwinder,
            force_version=force_version,
        )
        interrupts = Interrupts(recording, target.discard)
        with interrupts, recording:
            _log.info("recording %s at %d Hz; Ctrl-C ends it", recording.profile.command, rate)
            said = recording.profiler.notes if pids else ()
            if recording.fallback:
                said = (recording.fallback, *said)
            say_notes(said)
            stream = target.stream()
            try:
                profile = recording.run(duration, _progress if sys.stderr.isatty() else None, stream)
            except RubyUnwindError as error:  # the disk is full, say; the command's own work may matter
                click.echo(f"rubyunwind: {error}; the recording ends here", err=True)
                end_command(recording.command, interrupts, wait=True)
                sys.exit(1)
            if stream is None:
                target.write(profile)
            else:
                stream.end()
            _say_totals(profile, target)
            say_notes(news(profile, said, is_command=bool(words)))
            status = end_command(recording.command, interrupts, wait=True)
    sys.exit(status)


def _progress(profile: Profile) -> None:
    text = f"{profile.duration:5.1f} s, {profile.totals.read} samples, {profile.totals.lost} lost"
    click.echo(f"\r\033[K{text}", nl=False, err=True)


def _say_totals(profile: Profile, target: Output) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    say_totals(profile, profile.samples.incomplete)
    if target.path is not None:
        click.echo(f"rubyunwind: wrote {target.path} ({target.format})", err=True)
