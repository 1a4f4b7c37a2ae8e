# SPDX-License-Identifier: Apache-2.0
"""What somebody types who knows py-spy or rbspy: names that we take, and what we say to those we do not."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["ADVICE", "FORMAT_NAMES", "FamiliarCommand", "FormatName"]

FORMAT_NAMES = {"raw": "folded", "collapsed": "folded"}
"""Names that py-spy and rbspy have for formats of ours."""

_ON_CPU = (
    "What is sampled runs on a CPU, and runs Ruby code only while it holds the lock; --off-cpu adds "
    "where threads wait."
)
_NEVER_STOPS = "record never stops the process."
_IN_THE_PAGE = (
    "It is chosen in the flame graph page, without recording again; `report` has --lines and --thread."
)
_COMPACT = "-o FILE.rubyunwind records everything into a small file, which `report` reads."

ADVICE = {
    "--gil": _ON_CPU,
    "-g": _ON_CPU,
    "--on-cpu": _ON_CPU,
    "-c": _ON_CPU,
    "--idle": "Where threads wait, and for how long, is in with --off-cpu.",
    "-i": "Where threads wait, and for how long, is in with --off-cpu.",
    "--function": _IN_THE_PAGE,
    "-F": _IN_THE_PAGE,
    "--nolineno": _IN_THE_PAGE,
    "--threads": _IN_THE_PAGE,
    "-t": _IN_THE_PAGE,
    "--nonblocking": _NEVER_STOPS,
    "--full-filenames": "Paths are always whole.",
    "--raw-file": _COMPACT,
    "--silent": "Nothing but the totals is printed where stderr is no terminal: 2>/dev/null leaves them out.",
    "--flame-min-width": "The page shows narrow frames when their caller is zoomed.",
    "--no-drop-root": "Under sudo the command runs as who called sudo; as root itself it runs as root.",
}
"""What we say for an option of theirs that `record` or `top` does not have."""


class FamiliarCommand(click.Command):
    """A command that answers options of py-spy and rbspy with what to do here, and leaves options that stand
    behind the first word of a program to that program, as they do."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; UsageError with advice for an option that the others have."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = ADVICE.get(error.option_name)
            if advice is None:
                raise
            raise click.UsageError(f"{error.message} {advice}", ctx) from None


class FormatName(click.Choice[str]):
    """The name of a format; also one that py-spy or rbspy has for it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return our name of the format."""
        return super().convert(FORMAT_NAMES.get(value, value), param, ctx)
