# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record`: sample processes, or a command, into a file."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rubyunwind.cli.candidates import complete_file
from rubyunwind.cli.habits import FamiliarCommand, FormatName
from rubyunwind.cli.interrupts import Interrupts, end_command
from rubyunwind.cli.notes import news, say_notes, say_totals
from rubyunwind.cli.options import check_options, how_options, what_options
from rubyunwind.cli.output import Output
from rubyunwind.cli.push import Shipping, push_options
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS
from rubyunwind.profiler.off_cpu import BOTH, MODES, ONLY, OffCPU
from rubyunwind.profiler.recording import Recording

if TYPE_CHECKING:
    from typing import Any

    from rubyunwind.profiler.recording import Profile
    from rubyunwind.profiler.sample import Switches

__all__ = ["command"]

_log = logging.getLogger(__name__)


@click.command("record", cls=FamiliarCommand, short_help="sample processes or a command into a file")
@what_options
@click.option(
    "-a",
    "--all",
    "all_processes",
    is_flag=True,
    help="Record everything that runs on the machine, what is started later, too.",
)
@click.option(
    "-o",
    "--output",
    "--file",
    "output",
    shell_complete=complete_file,
    help="File to write; - is stdout. Default: rubyunwind-WHAT-TIME with the format's suffix.",
)
@click.option(
    "-f",
    "--format",
    "format_",
    type=FormatName(list(FORMATS)),
    help="Default: by the suffix of the output, else flamegraph. "
    + "; ".join(f"{name}: {each.summary}" for name, each in FORMATS.items())
    + ".",
)
@click.option(
    "--off-cpu",
    is_flag=False,
    flag_value=BOTH,
    type=click.Choice(MODES),
    help="Also record where threads wait, and how long, in ns; --off-cpu=only: nothing else. Means --backend "
    "bpf.",
)
@click.option(
    "--off-cpu-probability",
    type=click.FloatRange(0.001, 1),
    help="Record this share of the moments at which threads leave their CPU, weighted back. Default: 1.",
)
@click.option(
    "--off-cpu-shortest",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Count shorter waits only. Default: 0.",
)
@push_options
@click.option(
    "-n",
    "--native/--no-native",
    default=True,
    help="Native frames in stacks of Ruby are left out of the file; they are always sampled. Default: in.",
)
@how_options
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
    force_version: str | None,
    off_cpu: str | None,
    off_cpu_probability: float | None,
    off_cpu_shortest: float | None,
    native: bool,
    verbose: int,
    words: tuple[str, ...],
    **push_options: Any,
) -> None:
    """Record processes (-p PID), all of them (-a) or a COMMAND and write a flame graph or another format, or
    push what is recorded to a receiver (--push).

    The first Ctrl-C ends the recording and writes what was gathered, the second quits. The exit status is
    the command's own.
    """
    check_options("record", pids, words, backend, unwinder, verbose, all_processes=all_processes)
    if all_processes and backend == "user":
        raise click.UsageError("-a needs BPF programs, and --backend user has none")
    if all_processes and subprocesses is False:
        raise click.UsageError("-a records what processes fork as well: leave -S out")
    if off_cpu is None and (off_cpu_probability is not None or off_cpu_shortest is not None):
        raise click.UsageError("--off-cpu-probability and --off-cpu-shortest go with --off-cpu")
    if off_cpu is not None and backend == "user":
        raise click.UsageError("--off-cpu takes BPF programs, and --backend user has none")
    what = Path(words[0]).name if words else "-".join(str(pid) for pid in pids) or "all"
    if all_processes:
        _allow_more_descriptors()
    children = bool(words) if subprocesses is None else subprocesses
    with ExitStack() as stack:
        target = None
        if push_options["push"] is None or output is not None or format_ is not None:
            target = stack.enter_context(Output.choose(output, format_, what))
        shipping = Shipping.choose(**push_options)
        if shipping is not None:
            stack.enter_context(shipping)
        if not native and target is None:
            raise click.UsageError("--no-native is for a file (-o), and none is written here")
        if not native and target is not None and target.format == "recording":
            raise click.UsageError(
                "a recording holds everything; `rubyunwind report --no-native` leaves them out"
            )
        recording = Recording(
            pids=pids,
            command=words or None,
            rate=rate,
            children=children,
            all_processes=all_processes,
            debug_tracer=False,
            backend=backend,
            unwinder=unwinder,
            force_version=force_version,
            off_cpu=off_cpu is not None
            and OffCPU(
                off_cpu == ONLY,
                1.0 if off_cpu_probability is None else off_cpu_probability,
                off_cpu_shortest or 0.0,
            ),
        )
        interrupts = Interrupts(recording, target.discard if target is not None else lambda: None)
        with interrupts, recording:
            _log.info("recording %s at %d Hz; Ctrl-C ends it", recording.profile.command, rate)
            said = recording.profiler.notes if pids else ()
            if recording.fallback:
                said = (recording.fallback, *said)
            say_notes(said)
            stream = target.stream() if target is not None else None
            if shipping is not None:
                shipping.start()
            try:
                profile = recording.run(
                    duration,
                    _progress if sys.stderr.isatty() else None,
                    [sink for sink in (stream, shipping) if sink is not None],
                    keep=target is not None,
                )
            except RubyUnwindError as error:  # the disk is full, say; the command's own work may matter
                click.echo(f"rubyunwind: {error}; the recording ends here", err=True)
                end_command(recording.command, interrupts, wait=True)
                sys.exit(1)
            if stream is not None:
                stream.end()
            elif target is not None:
                target.write(profile if native else _without_native(profile))
            _say_totals(profile, target, shipping)
            say_notes(news(profile, said, among_others=not pids))
            if shipping is not None:
                shipping.end(lambda: interrupts.count)
            status = end_command(recording.command, interrupts, wait=True)
    sys.exit(status)


def _allow_more_descriptors() -> None:
    """Let this process open as many files as it may: each process that is recorded takes some."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _without_native(profile: Profile) -> Profile:
    from rubyunwind.report.selection import Selection

    return replace(profile, samples=Selection(native="none").of(profile.samples))


def _progress(profile: Profile) -> None:
    text = f"{profile.duration:5.1f} s, {profile.totals.read} samples, {profile.totals.lost} lost"
    click.echo(f"\r\033[K{text}", nl=False, err=True)


def _switches_text(switches: Switches) -> str:
    text = f"threads left their CPU {switches.seen} times: {switches.sent} came back and were recorded"
    for count, what in (
        (switches.waiting, "had not come back at the end"),
        (switches.not_chosen, "were not chosen"),
        (switches.short, f"were too short ({switches.short_ns / 1e9:.3f} s together)"),
        (switches.failed, "failed"),
    ):
        if count:
            text += f", {count} {what}"
    return text


def _say_totals(profile: Profile, target: Output | None, shipping: Shipping | None) -> None:
    if sys.stderr.isatty():
        click.echo("\r\033[K", nl=False, err=True)
    say_totals(profile, shipping.incomplete if shipping is not None else profile.samples.incomplete)
    if profile.totals.switches is not None:
        click.echo(f"rubyunwind: {_switches_text(profile.totals.switches)}", err=True)
    if target is not None and target.path is not None:
        click.echo(f"rubyunwind: wrote {target.path} ({target.format})", err=True)
