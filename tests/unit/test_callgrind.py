# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from format_readers import read_callgrind, written
from profile_strategies import HOSTILE_NAMES

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

A, B = Frame("ruby", "a", path="/a.rb", line=1), Frame("ruby", "b", path="/b.rb", line=2)


def test_costs_are_by_line_with_the_calls_made_there() -> None:
    some = [Sample(1, 1, 1, "ruby", (B, A), weight=3), Sample(2, 1, 1, "ruby", (A,))]
    text = written("callgrind", some).decode()
    body = text[text.index("summary") :]
    assert body == (
        "summary: 4\n"
        "\nob=(1) [ruby]\nfl=(2) /a.rb\nfn=(3) a\n1 1\n"
        "cob=(1)\ncfi=(4) /b.rb\ncfn=(5) b\ncalls=1 0\n1 3\n"
        "\nob=(1)\nfl=(4)\nfn=(5)\n2 3\n"
        "\ntotals: 4\n"
    )


def test_a_call_in_a_recursion_counts_once_for_each_stack() -> None:
    read = read_callgrind(written("callgrind", [Sample(1, 1, 1, "ruby", (B, A, B, A, B, A), weight=5)]))
    a, b = ("[ruby]", "/a.rb", "a"), ("[ruby]", "/b.rb", "b")
    assert read.calls == {("samples", a, 1, b): 5, ("samples", b, 2, a): 5}
    assert read.own == {("samples", b, 2): 5}


def test_frames_that_are_written_alike_are_one_function() -> None:
    one, other = Frame("ruby", "b"), Frame("ruby", "b", path="")
    stacks = [Sample(1, 1, 1, "ruby", (one, A, other, A)), Sample(1, 1, 1, "ruby", (other, A, one, A))]
    read = read_callgrind(written("callgrind", stacks))
    a, b = ("[ruby]", "/a.rb", "a"), ("[ruby]", "???", "b")
    assert read.calls == {("samples", a, 1, b): 2, ("samples", b, 0, a): 2}
    assert read.own == {("samples", b, 0): 2}


def test_each_unit_is_an_event() -> None:
    some = [Sample(1, 1, 1, "ruby", (A,), weight=2), Sample(1, 1, 1, "ruby", (A,), unit="ns", weight=500)]
    read = read_callgrind(written("callgrind", some))
    assert read.totals == {"samples": 2, "ns": 500}


def test_several_processes_are_functions_at_the_root() -> None:
    one, two = Sample(1, 7, 7, "puma", (A,)), Sample(1, 8, 8, "ruby", (A,), weight=2)
    read = read_callgrind(written("callgrind", [one, two]))
    a = ("[ruby]", "/a.rb", "a")
    assert read.calls == {
        ("samples", ("[process]", "???", "puma (7)"), 0, a): 1,
        ("samples", ("[process]", "???", "ruby (8)"), 0, a): 2,
    }
    assert "pid" not in read.header
    assert read_callgrind(written("callgrind", [one])).header["pid"] == ["7"]


def test_an_empty_profile_is_a_header_that_says_so() -> None:
    read = read_callgrind(written("callgrind", [], Totals(lost=3), Meta(command="ruby a.rb")))
    assert read.header["desc"] == ["ruby a.rb", "no samples", "samples: 0 read, 0 truncated, 3 lost"]
    assert read.header["cmd"] == ["ruby a.rb"]
    assert read.totals == {"samples": 0}
    assert not read.own


@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "(7)", "(7) x", "fn=(1)", "calls=1 0", "3 4"])
def test_any_name_can_be_read_back(name: str) -> None:
    frames = (Frame("ruby", name, path=name, line=1), A)
    read = read_callgrind(written("callgrind", [Sample(1, 1, 1, name, frames)], meta=Meta(name, name)))
    assert read.own == {("samples", ("[ruby]", name or "???", name or "???"), 1): 1}
