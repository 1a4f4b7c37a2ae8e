# SPDX-License-Identifier: Apache-2.0
"""What a shell can complete the words of our command line with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rubyunwind.cli.text import printable
from rubyunwind.process.identity import running_pids
from rubyunwind.ruby.filenames import is_ruby_name

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

__all__ = ["complete_file", "complete_ruby", "ruby_processes"]

# As much of a command line as stands beside a pid.
_SHOWN = 60
# Servers that write another command line over their own, for those whose mappings we may not read.
_TITLES = ("puma", "sidekiq", "unicorn", "resque", "passenger", "rails")


def ruby_processes() -> dict[int, str]:
    """Return the Rubies that run, by pid, with their command lines.

    Of other users' processes no more is known than their names, and those that look like Ruby are taken.
    """
    return {pid: _command(pid) for pid in sorted(running_pids()) if _is_ruby(pid)}


def complete_ruby(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete a pid: those of Rubies, each with its command line."""
    from click.shell_completion import CompletionItem

    del context, option
    return [
        CompletionItem(str(pid), help=command)
        for pid, command in ruby_processes().items()
        if str(pid).startswith(begun)
    ]


def complete_file(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    from click.shell_completion import CompletionItem

    del context, option
    return [CompletionItem(begun, type="file")]


def _is_ruby(pid: int) -> bool:
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        command = _command(pid)
        return "ruby" in command.split(" ", 1)[0] or _comm(pid) == "ruby" or command.startswith(_TITLES)
    paths = {line.split(None, 5)[5] for line in maps.splitlines() if b"ruby" in line and b"/" in line}
    return any(is_ruby_name(path.decode("utf-8", "surrogateescape")) for path in paths)


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "surrogateescape").strip()
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    text = printable(" ".join(raw.decode("utf-8", "surrogateescape").split("\0")).strip())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
