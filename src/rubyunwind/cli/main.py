# SPDX-License-Identifier: Apache-2.0
"""The `rubyunwind` command: one verb a module, each imported when it is called."""

from __future__ import annotations

import importlib
import os
import re
import sys

import click

from rubyunwind.errors import BpfError, RubyUnwindError

__all__ = ["main"]

_VERBS = {
    "record": "rubyunwind.cli.record",
    "top": "rubyunwind.cli.top",
    "report": "rubyunwind.cli.report",
    "snapshot": "rubyunwind.cli.snapshot",
    "lines": "rubyunwind.cli.lines",
    "doctor": "rubyunwind.cli.doctor",
    "completion": "rubyunwind.cli.completion",
}

# Names that other profilers have for verbs of ours; the help does not list them.
_ALIASES = {"dump": "snapshot"}


class Verbs(click.Group):
    """Finds a verb's command as `command` in its module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        module = _VERBS.get(_ALIASES.get(cmd_name, cmd_name))
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command


def _version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        import rubyunwind  # whose version takes 60 ms to find

        click.echo(f"rubyunwind, version {rubyunwind.__version__}")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print it."
)
def cli() -> None:
    """See what Ruby processes do: kernel, native, C-function and Ruby frames in one stack."""


def _is_verbose(words: list[str]) -> bool:
    """Whether -v was given to us, not to a command that is recorded."""
    ours = words[: words.index("--")] if "--" in words else words
    return any(word == "--verbose" or re.fullmatch("-v+", word) for word in ours)


def main() -> None:
    """Run the command line; errors of ours are one message on stderr and exit status 1."""
    if "_RUBYUNWIND_COMPLETE" in os.environ:
        importlib.import_module(_VERBS["completion"])  # which knows how bash wants it
    try:
        cli(prog_name="rubyunwind")
    except RubyUnwindError as error:
        status = int(getattr(error, "exit_status", 1))
        click.echo(f"rubyunwind: {error}", err=True)
        if isinstance(error, BpfError) and error.log:
            if _is_verbose(sys.argv[1:]):
                click.echo(error.log, err=True)
            else:
                click.echo("rubyunwind: -v shows the whole log of the verifier", err=True)
        sys.exit(status)


if __name__ == "__main__":
    main()
