# SPDX-License-Identifier: Apache-2.0
"""Somebody who knows py-spy or rbspy finds the same options, or is told what to do here."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rubyunwind.cli.habits import ADVICE, FORMAT_NAMES
from rubyunwind.cli.main import Verbs, cli
from rubyunwind.formats.registry import FORMATS

PAGE = Path(__file__).parents[2] / "docs/record.md"


def verb(name: str) -> click.Command:
    found = Verbs().get_command(click.Context(cli), name)
    assert found is not None, name
    return found


def options(name: str) -> set[str]:
    return {each for option in verb(name).params for each in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("record", "-p --pid -r --rate -d --duration -o --output -f --format -s --subprocesses -n --native"),
        ("record", "--file --force-version"),
        ("top", "-p --pid -r --rate -s --subprocesses --delay --native"),
        ("dump", "-p --pid -c --core -j --json -n --native --nonblocking"),
        ("snapshot", "-p --pid --nonblocking --force-version"),
        ("report", "-o --output -f --format"),
    ],
)
def test_the_same_options_are_there(name: str, theirs: str) -> None:
    assert set(theirs.split()) <= options(name)


def test_dump_is_snapshot_and_is_not_listed() -> None:
    assert verb("dump") is verb("snapshot")
    assert "dump" not in Verbs().list_commands(click.Context(cli))


@pytest.mark.parametrize("name", ["record", "top"])
@pytest.mark.parametrize("option", sorted(ADVICE))
def test_an_option_that_only_they_have_is_answered(name: str, option: str) -> None:
    assert option not in options(name)
    done = CliRunner().invoke(cli, [name, option, "-p", "1"])
    assert done.exit_code == 2
    assert " ".join(ADVICE[option].split()) in " ".join(done.output.split())


def test_an_option_that_nobody_has_is_just_refused() -> None:
    done = CliRunner().invoke(cli, ["record", "--durration", "1", "-p", "1"])
    assert done.exit_code == 2
    assert "--duration" in done.output


def test_their_names_of_formats_are_ours() -> None:
    for theirs, ours in FORMAT_NAMES.items():
        assert theirs not in FORMATS
        assert ours in FORMATS
        format_ = next(each for each in verb("record").params if each.name == "format_")
        assert format_.type.convert(theirs, format_, None) == ours


def test_what_stands_behind_a_program_is_the_programs() -> None:
    context = verb("record").make_context("record", ["-r", "50", "ruby", "-r", "json", "-d", "x.rb"])
    assert context.params["rate"] == 50
    assert context.params["words"] == ("ruby", "-r", "json", "-d", "x.rb")
    context = verb("record").make_context("record", ["-r", "50", "--", "ruby", "-v"])
    assert context.params["words"] == ("ruby", "-v")


def test_every_option_of_ours_that_the_page_names_exists() -> None:
    if not PAGE.exists():
        pytest.skip(f"no source tree here: {PAGE} does not exist")
    table = PAGE.read_text().partition("## If you know py-spy or rbspy")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 15
    ours = set().union(*(options(name) for name in ("record", "top", "snapshot", "report")))
    named = {word for row in rows for word in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row[3], re.IGNORECASE)}
    assert named
    assert named <= ours
