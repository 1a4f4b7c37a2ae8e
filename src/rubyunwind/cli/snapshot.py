# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind snapshot`: what every thread of a process, or of a core file, is doing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from rubyunwind.cli.candidates import complete_file, complete_ruby
from rubyunwind.cli.snapshot_text import shown_frames, snapshot_text
from rubyunwind.profiler.occupation import occupation_of
from rubyunwind.profiler.snapshot import take_snapshot

if TYPE_CHECKING:
    from rubyunwind.profiler.snapshot import Snapshot

__all__ = ["command"]

_NOTES = 3  # sentences on what is missing that are shown unasked


@click.command("snapshot", short_help="the stacks of all threads, now or in a core file")
@click.option(
    "-p",
    "--pid",
    type=int,
    shell_complete=complete_ruby,
    help="Process to look at; it is stopped for some milliseconds.",
)
@click.option(
    "-c",
    "--core",
    shell_complete=complete_file,
    help="Core file to look at, plain or compressed (gzip, zstd).",
)
@click.option(
    "--sysroot",
    shell_complete=complete_file,
    help="Where the files are that the core's process had mapped. Default: /",
)
@click.option("--ec", help="Address of the execution context (hexadecimal), for a Ruby that hides it.")
@click.option(
    "--force-version",
    metavar="VERSION",
    help="Read every Ruby as this release (3.4.5), whatever it says of itself; the self-check must agree.",
)
@click.option(
    "-n",
    "--native/--no-native",
    default=None,
    help="Show native frames of threads that run Ruby code. Default: no, with --json yes.",
)
@click.option("--nonblocking", is_flag=True, help="Do not stop the process: Ruby frames only.")
@click.option("-j", "--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="Say all that is missing, and name all threads.")
def command(
    pid: int | None,
    core: str | None,
    sysroot: str | None,
    ec: str | None,
    force_version: str | None,
    native: bool | None,
    nonblocking: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the stack of every thread of a process (-p PID) or of a core file (--core FILE), leaf first.

    Threads that wait for a lock or are at work come first; those with equal stacks are shown as one.
    The process goes on as it was, also if this command is killed.
    """
    if (pid is None) == (core is None):
        raise click.UsageError("name a process (-p PID) or a core file (--core FILE), one of them")
    if nonblocking and core is not None:
        raise click.UsageError("--nonblocking is for a process that runs, a core file stands still")
    logging.basicConfig(level=logging.WARNING if verbose else logging.ERROR, format="rubyunwind: %(message)s")
    try:
        context = int(ec, 16) if ec is not None else 0
    except ValueError:
        raise click.UsageError(f"--ec {ec!r} is no hexadecimal address such as 0x7f12a4005010") from None
    taken = take_snapshot(
        pid,
        core=core,
        sysroot=sysroot,
        context=context,
        nonblocking=nonblocking,
        force_version=force_version,
    )
    if as_json:
        import json

        click.echo(json.dumps(_document(taken, native=native is not False)))
        return
    shown = taken.notes if verbose else taken.notes[:_NOTES]
    for note in shown:
        click.echo(f"rubyunwind: {note}", err=True)
    if len(taken.notes) > len(shown):
        click.echo(f"rubyunwind: and {len(taken.notes) - len(shown)} more like that; -v shows all", err=True)
    for line in snapshot_text(taken, native=bool(native), every_name=verbose):
        click.echo(line)


def _document(taken: Snapshot, *, native: bool) -> dict[str, Any]:
    from rubyunwind.formats.jsonl import frame_fields

    return {
        "pid": taken.pid,
        "comm": taken.comm,
        "runtimes": list(taken.runtimes),
        "notes": list(taken.notes),
        "stopped_ns": taken.stopped_ns,
        "threads": [
            {
                "tid": thread.tid,
                "name": thread.name,
                "state": thread.state,
                "wait_channel": thread.wait_channel,
                "complete": thread.complete,
                "reason": thread.reason,
                "doing": occupation_of(thread).text or None,
                "holds": list(occupation_of(thread).holds),
                "frames": [frame_fields(frame) for frame in shown_frames(thread, native=native)],
            }
            for thread in taken.threads
        ],
    }
