# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report`: what is in recordings, as a table, as lines of source, or in another format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, get_args

import click

from rubyunwind.cli.candidates import complete_file
from rubyunwind.cli.habits import FormatName
from rubyunwind.cli.heat_text import heat_text
from rubyunwind.cli.output import Output
from rubyunwind.cli.report_text import Look, changes_text, head_text, methods_text
from rubyunwind.cli.text import printable
from rubyunwind.formats.difference import Side
from rubyunwind.formats.registry import DIFFERENCES, FORMATS, format_of, write, write_difference
from rubyunwind.profiler.sample import FrameKind
from rubyunwind.report.heat import heat_of
from rubyunwind.report.inputs import join, load
from rubyunwind.report.methods import MethodWeights, compare
from rubyunwind.report.moments import moment
from rubyunwind.report.selection import NATIVE, Selection, leaves_out, name_matcher, path_matcher
from rubyunwind.report.sources import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rubyunwind.formats.recorded import Recorded
    from rubyunwind.profiler.samples import Samples

__all__ = ["command"]

_TABLE = "table"
_FILES = 5  # with hot lines, that are shown
_EVERYTHING = ""  # what --lines has when no method is named


@dataclass(frozen=True, slots=True)
class _Part:
    """A recording, and the samples of it that are wanted."""

    recorded: Recorded
    samples: Samples


@click.command("report", short_help="look into recordings, convert and compare them")
@click.option("-o", "--output", shell_complete=complete_file, help="File to write; - is stdout.")
@click.option(
    "-f",
    "--format",
    "format_",
    type=FormatName([_TABLE, *FORMATS]),
    help="Default: by the suffix of the output; without -o a table of the hottest methods.",
)
@click.option("--from", "since", metavar="TIME", help="Seconds since the start, or a time: 12.5, 14:03:05.")
@click.option("--to", "until", metavar="TIME", help="Up to then; as --from.")
@click.option("-p", "--pid", "pids", type=int, multiple=True, help="Of this process; may be repeated.")
@click.option("--thread", "threads", multiple=True, help="Of this thread: a tid, or a glob of its name.")
@click.option(
    "--method", "methods", multiple=True, help="With this method on the stack: a glob, or /an expression/."
)
@click.option(
    "--kind", "kinds", type=click.Choice(get_args(FrameKind)), multiple=True, help="With such a frame on top."
)
@click.option(
    "--native",
    type=click.Choice(NATIVE),
    help="Native frames to keep: all, all but those inside C functions, or none (nor of kernel and JIT) in "
    "stacks of Ruby. Default: none in a table, all in files.",
)
@click.option("--no-native", is_flag=True, help="The same as --native none.")
@click.option(
    "--diff",
    is_flag=True,
    help="Compare two files: what has another share in the second; with -o x.html as a flame graph.",
)
@click.option(
    "--lines",
    "lines",
    is_flag=False,
    flag_value=_EVERYTHING,
    metavar="[METHOD]",
    help="Show the source with the weight of each line, of all methods or of one (glob or /expression/).",
)
@click.option(
    "--file",
    "paths",
    multiple=True,
    metavar="PATH",
    help="With --lines: of this file (its path, the end of that, a glob, /an expression/); may be repeated.",
)
@click.option(
    "-n", "--rows", type=click.IntRange(0), default=30, show_default=True, help="Rows of a table; 0: all."
)
@click.argument("files", nargs=-1, shell_complete=complete_file, metavar="FILE...")
def command(
    output: str | None,
    format_: str | None,
    since: str | None,
    until: str | None,
    pids: tuple[int, ...],
    threads: tuple[str, ...],
    methods: tuple[str, ...],
    kinds: tuple[str, ...],
    native: str | None,
    no_native: bool,
    diff: bool,
    lines: str | None,
    paths: tuple[str, ...],
    rows: int,
    files: tuple[str, ...],
) -> None:
    """Show what is in FILE: a recording (`record -f recording`) or jsonl, plain or gzip'd; - is stdin.

    Several files are taken as one. Prints the hottest methods, or writes another format (-f, -o).
    """
    if lines and (not files or _is_recording(lines)):
        # `--lines FILE`: the word after it is taken for a method.
        lines, files = _EVERYTHING, (lines, *files)
    if paths and lines is None:
        raise click.UsageError("--file says of which files --lines is: add --lines, or leave it out")
    format_ = _format(files, diff=diff, lines=lines, format_=format_, output=output)
    # Few look for the interpreter's own functions first, and they would fill the table.
    unasked = native is None and not no_native and format_ == _TABLE and lines is None and not kinds
    native = "none" if no_native or unasked else native or "all"
    selection = Selection(pids=pids, threads=threads, methods=methods, kinds=kinds, native=native)
    recordings = [load(path) for path in files]
    if not diff:
        recordings = [join(recordings)]
    parts = [_select(each, selection, since, until) for each in recordings]
    for note in dict.fromkeys(note for part in parts for note in part.recorded.notes):
        _say(note)
    if not any(part.samples for part in parts):
        empty = not any(part.recorded.samples for part in parts)
        _say(
            "no samples: there are none in the file"
            if empty
            else "no samples: none are as they were asked for"
        )
    what = "report" if files == ("-",) else Path(files[0]).name.split(".")[0] or "report"
    # A table goes to stdout, as a page goes to a file.
    target = "-" if output is None and format_ == _TABLE else output
    with Output.choose(target, format_, what, "written") as out:
        if out.format == _TABLE:
            look = Look.of_stdout() if out.path is None else Look()
            text = "".join(f"{line}\n" for line in _text(parts, lines, paths, rows, look, unasked=unasked))
            out.fill(lambda file: _write_text(file, text))
        elif diff:
            sides = [Side(part.samples, part.recorded.totals, part.recorded.meta) for part in parts]
            out.fill(lambda file: write_difference(file, out.format, *sides))
        else:
            part = parts[0]
            out.fill(
                lambda file: write(file, out.format, part.samples, part.recorded.totals, part.recorded.meta)
            )
        if out.path is not None:
            _say(f"wrote {out.path} ({out.format}), {sum(len(part.samples) for part in parts)} samples")


def _format(
    files: Sequence[str], *, diff: bool, lines: str | None, format_: str | None, output: str | None
) -> str | None:
    """Check what was asked for, and return the format; None: by the output's suffix, or a flame graph."""
    if not files:
        raise click.UsageError("name a file to report on; - is stdin")
    if list(files).count("-") > 1:
        raise click.UsageError("stdin (-) can be read once only")
    if diff and len(files) != 2:
        raise click.UsageError(
            f"--diff compares two files, one before and one after; {len(files)} were given"
        )
    if diff and lines is not None:
        raise click.UsageError("--diff and --lines are reports of their own: ask for one of them")
    if lines is not None and format_ not in (None, _TABLE):
        raise click.UsageError(f"--lines gives a table only, no {format_}: leave -f out")
    if lines is not None or (format_ is None and output is None):
        return _TABLE
    if diff:
        format_ = format_ or format_of(output or "") or _TABLE
        if format_ not in (_TABLE, *DIFFERENCES):
            raise click.UsageError(
                "--diff gives a table, a flame graph page (-f flamegraph, -o x.html) or folded stacks with "
                f"two weights (-f folded), no {format_}: choose one of these, or convert each file by itself"
            )
    return format_


def _select(recorded: Recorded, selection: Selection, since: str | None, until: str | None) -> _Part:
    started = recorded.meta.started
    try:
        selection = replace(
            selection,
            since=None if since is None else moment(since, started),
            until=None if until is None else moment(until, started),
        )
        return _Part(recorded, selection.of(recorded.samples))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _text(
    parts: Sequence[_Part],
    lines: str | None,
    paths: Sequence[str],
    rows: int,
    look: Look,
    *,
    unasked: bool,
) -> Iterator[str]:
    for part in parts:
        yield from head_text(part.recorded, len(part.samples), look)
    if unasked and any(leaves_out(part.recorded.samples) for part in parts):
        yield look.line(
            "native, kernel and JIT frames count for the Ruby code above them; --native all shows them"
        )
    weights = [MethodWeights.of(part.samples) for part in parts]
    if len(parts) == 2:
        yield from _changes(weights, rows, look)
    elif lines is not None:
        yield from _heat(parts[0], weights[0], lines, paths, rows, look)
    else:
        for each in weights[0]:
            yield from methods_text(each, rows, look)


def _changes(weights: Sequence[Sequence[MethodWeights]], rows: int, look: Look) -> Iterator[str]:
    """Units are compared with the same ones only."""
    units = dict.fromkeys(each.unit for part in weights for each in part)
    for unit in units:
        before, after = (
            next((each for each in part if each.unit == unit), MethodWeights(unit, 0, ())) for part in weights
        )
        yield from changes_text(compare(before, after), before, after, rows, look)


def _heat(
    part: _Part, weights: Iterable[MethodWeights], method: str, paths: Sequence[str], rows: int, look: Look
) -> Iterator[str]:
    try:
        wanted = name_matcher(method) if method else None
        matchers = [path_matcher(path) for path in paths]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    in_file = (lambda path: any(matches(path) for matches in matchers)) if matchers else None
    most = None if wanted or in_file else _FILES
    found = False
    for each in weights:
        files = heat_of(part.samples, each.unit, wanted, in_file)
        for heat in files[:most]:
            found = True
            source = source_of(heat.path, part.recorded.meta.started)
            yield from heat_text(heat, source, each.whole, each.unit, rows, look)
        if most is not None and len(files) > most:
            yield ""
            yield look.line(f"... and {len(files) - most} more files; --lines METHOD or --file shows others")
    if found or not part.samples:
        return
    yield ""
    where = " or ".join(repr(printable(path)) for path in paths)
    if method:
        hint = "" if "*" in method else f": a name is matched as a whole, '*{printable(method)}*' by a part"
        yield f"no Ruby method matches {printable(method)!r}" + (f" in {where}" if where else "") + hint
    elif where:
        yield f"no Ruby code is of a file that matches {where}"
    else:
        yield "no sample has a line of Ruby"


def _is_recording(word: str) -> bool:
    """Whether it is a file of ours, rather than the name of a method."""
    return word.removesuffix(".gz").endswith((".rubyunwind", ".jsonl")) and Path(word).is_file()


def _write_text(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8", "backslashreplace"))


def _say(text: str) -> None:
    click.echo(f"rubyunwind: {printable(text)}", err=True)
