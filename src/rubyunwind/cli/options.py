# SPDX-License-Identifier: Apache-2.0
"""What every verb that samples is told: which processes, how often and by what."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

from rubyunwind.cli.candidates import complete_file, complete_ruby
from rubyunwind.profiler.backends import BACKENDS, UNWINDERS

__all__ = ["check_options", "how_options", "what_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def what_options(function: _Function) -> _Function:
    """Give a verb -p, -r and -d: `pids`, `rate` and `duration`."""
    for option in (
        click.option(
            "-d",
            "--duration",
            type=click.FloatRange(0, min_open=True),
            help="Seconds; else until Ctrl-C or the end.",
        ),
        click.option(
            "-r", "--rate", type=click.IntRange(1), default=99, show_default=True, help="Samples a second."
        ),
        click.option(
            "-p",
            "--pid",
            "pids",
            type=int,
            multiple=True,
            shell_complete=complete_ruby,
            help="Process to sample; may be repeated.",
        ),
    ):
        function = option(function)
    return function


def how_options(function: _Function) -> _Function:
    """Give a verb -s, --backend, --unwinder, --force-version, -v and a command's `words`."""
    for option in (
        click.argument(
            "words",
            nargs=-1,
            type=click.UNPROCESSED,
            shell_complete=complete_file,
            metavar="[-- COMMAND [ARG...]]",
        ),
        click.option("-v", "--verbose", count=True, help="Say more; twice: debug messages."),
        click.option(
            "--force-version",
            metavar="VERSION",
            help="Read every Ruby as this release (3.4.5), whatever it says of itself; the self-check must "
            "agree.",
        ),
        click.option(
            "--unwinder",
            type=click.Choice(UNWINDERS),
            help="walker: stacks of up to 2600 frames; chain: the frozen ABI's 128. Default: walker where "
            "the kernel takes it. Means --backend bpf.",
        ),
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            default="auto",
            show_default=True,
            help="bpf: in the kernel; user: Ruby frames from user space, without privilege; auto: bpf where "
            "allowed.",
        ),
        click.option(
            "-s/-S",
            "--subprocesses/--no-subprocesses",
            default=None,
            help="Sample what the processes fork, too. Default: for a command yes, for -p no.",
        ),
    ):
        function = option(function)
    return function


def check_options(
    verb: str,
    pids: tuple[int, ...],
    words: tuple[str, ...],
    backend: str,
    unwinder: str | None,
    verbose: int,
    *,
    all_processes: bool | None = None,
) -> None:
    """Raise UsageError for options that exclude each other; set up how much is said.

    `all_processes` is None for a verb that has no -a.
    """
    if bool(pids) + bool(words) + bool(all_processes) != 1:
        every, which = ("", "them") if all_processes is None else (", all of them (-a)", "these")
        raise click.UsageError(
            f"give processes (-p PID){every} or a command (-- COMMAND ...) to {verb}, one of {which}"
        )
    if unwinder is not None and backend == "user":
        raise click.UsageError("--unwinder chooses among BPF programs, and --backend user has none")
    level = (logging.ERROR, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="rubyunwind: %(message)s")
