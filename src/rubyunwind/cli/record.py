# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record`: sample processes, or a command, into a file."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rubyunwind.cli.output import Output
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS
from rubyunwind.profiler.backends import BACKENDS, UNWINDERS
from rubyunwind.profiler.recording import Recording
from rubyunwind.profiler.tracker import NO_RUBY
from rubyunwind.profiler.user_profiler import NOT_SAMPLED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.profiler.command import Command
    from rubyunwind.profiler.recording import Profile

__all__ = ["Interrupted", "command"]

_log = logging.getLogger(__name__)

# Seconds a command has to end by itself after Ctrl-C, before it gets the signal again, then SIGTERM.
_GRACE = (1.0, 2.0)


@click.command("record", short_help="sample processes or a command into a file")
@click.option("-p", "--pid", "pids", type=int, multiple=True, help="Process to record; may be repeated.")
@click.option(
    "-a",
    "--all",
    "all_processes",
    is_flag=True,
    help="Record everything that runs on the machine, what is started later, too.",
)
@click.option("-r", "--rate", type=click.IntRange(1), default=99, show_default=True, help="Samples a second.")
@click.option(
    "-d", "--duration", type=click.FloatRange(0, min_open=True), help="Seconds; else until Ctrl-C or the end."
)
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
    help="Default: by the suffix of the output.",
)
@click.option(
    "-s/-S",
    "--subprocesses/--no-subprocesses",
    default=None,
    help="Record what the processes fork, too. Default: for a command yes, for -p no.",
)
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="auto",
    show_default=True,
    help="bpf: in the kernel; user: Ruby frames from user space, without privilege; auto: bpf where allowed.",
)
@click.option(
    "--unwinder",
    type=click.Choice(UNWINDERS),
    help="walker: stacks of up to 2600 frames; chain: the frozen ABI's 128. Default: walker where the kernel "
    "takes it. Means --backend bpf.",
)
@click.option("-v", "--verbose", count=True, help="Say more; twice: debug messages.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG...]]")
def command(
    pids: tuple[int, ...],
    all_processes: bool,
    rate: int,
    duration: float | None,
    output: str | None,
    format_: str | None,
    subprocesses: bool | None,
    backend: str,
    unwinder: str | None,
    verbose: int,
    words: tuple[str, ...],
) -> None:
    """Record processes (-p PID), all of them (-a) or a COMMAND and write a flame graph or another format.

    The first Ctrl-C ends the recording and writes what was gathered, the second quits. The exit status is
    the command's own.
    """
    if bool(pids) + bool(words) + all_processes != 1:
        raise click.UsageError(
            "give processes (-p PID), all of them (-a) or a command (-- COMMAND ...) to record, one of these"
        )
    if all_processes and backend == "user":
        raise click.UsageError("-a needs BPF programs, and --backend user has none")
    if all_processes and subprocesses is False:
        raise click.UsageError("-a records what processes fork as well: leave -S out")
    if unwinder is not None and backend == "user":
        raise click.UsageError("--unwinder chooses among BPF programs, and --backend user has none")
    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="rubyunwind: %(message)s")
    what = Path(words[0]).name if words else "-".join(str(pid) for pid in pids) or "all"
    if all_processes:
        _allow_more_descriptors()
    children = bool(words) if subprocesses is None else subprocesses
    with Output.choose(output, format_, what) as target:
        recording = Recording(
            pids=pids,
            command=words or None,
            rate=rate,
            children=children,
            all_processes=all_processes,
            debug_tracer=False,
            backend=backend,
            unwinder=unwinder,
        )
        interrupts = _Interrupts(recording, target)
        with interrupts, recording:
            _log.info("recording %s at %d Hz; Ctrl-C ends it", recording.profile.command, rate)
            said = recording.profiler.notes if pids else ()
            if recording.fallback:
                said = (recording.fallback, *said)
            _say_notes(said)
            profile = recording.run(duration, _progress if sys.stderr.isatty() else None)
            target.write(profile)
            _say_totals(profile, target)
            _say_notes(_news(profile, said, among_others=not pids))
            status = _finish(recording.command, interrupts)
    sys.exit(status)


class Interrupted(RubyUnwindError):
    """Ctrl-C came before the recording had begun."""

    exit_status = 128 + signal.SIGINT


class _Interrupts:
    """What Ctrl-C and SIGTERM do once it is entered: the first ends the recording, the second quits."""

    def __init__(self, recording: Recording, target: Output) -> None:
        self.count = 0
        self._recording = recording
        self._target = target

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # Also for what came of it: the command that waits, say, has got the signal, too, and has ended.
        if kind is not None and self.count and not self._recording.began:
            raise Interrupted("interrupted before the recording began; nothing was recorded") from None

    def _handle(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count == 1:
            self._recording.stop()
            if not self._recording.began:
                raise KeyboardInterrupt
            return
        # The terminal's Ctrl-C has reached the command by itself, but another sender's has not.
        child = self._recording.command
        if child is not None and child.exit_status is None:
            os.kill(child.pid, signal.SIGTERM)
        self._target.discard()
        os._exit(128 + number)


def _finish(child: Command | None, interrupts: _Interrupts) -> int:
    """Wait for the command and return its exit status; after Ctrl-C see to it that it ends."""
    if child is None:
        return 0
    if child.poll() is None and not interrupts.count:
        click.echo("rubyunwind: the command still runs; waiting for it (Ctrl-C ends it)", err=True)
        while child.poll() is None and not interrupts.count:
            time.sleep(0.05)
    for grace, number in zip(_GRACE, (signal.SIGINT, signal.SIGTERM), strict=True):
        end = time.monotonic() + grace
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if child.poll() is None:
            os.kill(child.pid, number)
    return child.wait()


def _allow_more_descriptors() -> None:
    """Let this process open as many files as it may: each process that is recorded takes some."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _news(profile: Profile, said: tuple[str, ...], *, among_others: bool) -> list[str]:
    """Return the notes that were not said yet; of many processes, such as a command's, most have no Ruby."""
    news = [note for note in profile.notes if note not in said]
    if not among_others:
        return news
    rest = [note for note in news if not note.endswith((NO_RUBY, NOT_SAMPLED))]
    if not profile.runtimes and profile.command == "all processes":
        rest.append("no Ruby has run; native frames only")
    elif not profile.runtimes and len(rest) < len(news):
        lack = "native frames only" if profile.backend == "bpf" else "nothing to sample"
        rest.append(f"no Ruby was found in the command; {lack}")
    return rest


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"rubyunwind: {note}", err=True)


def _progress(profile: Profile) -> None:
    text = f"{profile.duration:5.1f} s, {profile.totals.read} samples, {profile.totals.lost} lost"
    click.echo(f"\r\033[K{text}", nl=False, err=True)


def _say_totals(profile: Profile, target: Output) -> None:
    totals = profile.totals
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    whole = totals.read - profile.samples.incomplete
    text = (
        f"{totals.read} samples in {profile.duration:.1f} s at {profile.rate} Hz ({profile.backend}): "
        f"{whole} whole, {totals.truncated} truncated, {totals.lost} lost"
    )
    click.echo(f"rubyunwind: {text}", err=True)
    for count, what in (
        (totals.evicted, "processes left full tables and were registered anew"),
        (totals.no_room, "processes or files had no room in the tables"),
    ):
        if count:
            click.echo(f"rubyunwind: {count} {what}", err=True)
    if totals.failed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in totals.failed)
        click.echo(f"rubyunwind: incomplete or unsent, by reason: {reasons}", err=True)
    if not totals.read:
        click.echo("rubyunwind: no samples: the processes used no CPU time, or ended too soon", err=True)
    if target.path is not None:
        click.echo(f"rubyunwind: wrote {target.path} ({target.format})", err=True)
