# SPDX-License-Identifier: Apache-2.0
"""What a user is told of a recording, on stderr or above a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rubyunwind.profiler.process_notes import NO_RUBY
from rubyunwind.profiler.user_profiler import NOT_SAMPLED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rubyunwind.profiler.recording import Profile

__all__ = ["news", "say_notes", "say_totals"]


def news(profile: Profile, said: Sequence[str], *, among_others: bool) -> list[str]:
    """Return the notes that were not said yet; of many processes, such as a command's, most have no Ruby."""
    fresh = [note for note in profile.notes if note not in said]
    if not among_others:
        return fresh
    rest = [note for note in fresh if not note.endswith((NO_RUBY, NOT_SAMPLED))]
    if not profile.runtimes and profile.command == "all processes":
        rest.append("no Ruby has run; native frames only")
    elif not profile.runtimes and len(rest) < len(fresh):
        lack = "native frames only" if profile.backend == "bpf" else "nothing to sample"
        rest.append(f"no Ruby was found in the command; {lack}")
    return rest


def say_notes(notes: Iterable[str]) -> None:
    """Print notes on stderr."""
    for note in notes:
        click.echo(f"rubyunwind: {note}", err=True)


def say_totals(profile: Profile, incomplete: int) -> None:
    """Print on stderr what was read and what was not; `incomplete` of the samples are not whole."""
    totals = profile.totals
    text = (
        f"{totals.read} samples in {profile.duration:.1f} s at {profile.rate} Hz ({profile.backend}): "
        f"{totals.read - incomplete} whole, {totals.truncated} truncated, {totals.lost} lost"
    )
    click.echo(f"rubyunwind: {text}", err=True)
    for count, what in (
        (totals.evicted, "processes left full tables and were registered anew"),
        (totals.no_room, "processes or files had no room in the tables"),
        (totals.given_up, "files could not be read, as their file system did not answer"),
    ):
        if count:
            click.echo(f"rubyunwind: {count} {what}", err=True)
    if totals.failed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in totals.failed)
        click.echo(f"rubyunwind: incomplete or unsent, by reason: {reasons}", err=True)
    if not totals.read:
        click.echo("rubyunwind: no samples: the processes used no CPU time, or ended too soon", err=True)
