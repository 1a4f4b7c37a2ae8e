# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from format_readers import read_speedscope, unescape, written
from profile_strategies import HOSTILE_NAMES

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

A, B = Frame("ruby", "a", path="/a.rb", line=1), Frame("ruby", "b", path="/a.rb", line=2)


def test_each_thread_is_a_profile_in_the_order_of_time() -> None:
    some = [
        Sample(3, 7, 7, "puma", (A,)),
        Sample(1, 7, 7, "puma", (A,)),
        Sample(2, 7, 7, "puma", (B, A), weight=4),
        Sample(4, 7, 7, "puma", (A,), weight=2),
        Sample(4, 7, 8, "worker", (B,)),
        Sample(5, 9, 9, "ruby", (B,)),
    ]
    _, file = read_speedscope(written("speedscope", some))
    assert [profile["name"] for profile in file["profiles"]] == [
        "puma (7)",
        "puma (7), worker (8)",
        "ruby (9)",
    ]
    first = file["profiles"][0]
    assert first["samples"] == [[0], [0, 1], [0]]
    assert first["weights"] == [1, 4, 3]  # equal stacks in a row are one


def test_counts_and_times_are_profiles_of_their_own() -> None:
    some = [Sample(1, 7, 7, "puma", (A,)), Sample(1, 7, 7, "puma", (A,), unit="ns", weight=500)]
    _, file = read_speedscope(written("speedscope", some))
    assert [(profile["name"], profile["unit"], profile["weights"]) for profile in file["profiles"]] == [
        ("puma (7)", "none", [1]),
        ("puma (7), ns", "nanoseconds", [500]),
    ]


def test_frames_have_path_and_line_or_module_or_kind() -> None:
    frames = (Frame("kernel", "vfs_read"), Frame("native", "read", module="/libc.so", offset=1), A)
    _, file = read_speedscope(written("speedscope", [Sample(1, 1, 1, "ruby", frames)]))
    assert file["shared"]["frames"] == [
        {"name": "a", "file": "/a.rb", "line": 1},
        {"name": "read", "file": "/libc.so"},
        {"name": "vfs_read", "file": "[kernel]"},
    ]


def test_an_empty_profile_has_one_profile_that_says_so() -> None:
    _, file = read_speedscope(written("speedscope", [], Totals(lost=3), Meta(command="ruby a.rb")))
    assert [(profile["name"], profile["samples"]) for profile in file["profiles"]] == [("no samples", [])]
    assert file["name"] == "ruby a.rb; no samples; samples: 0 read, 0 truncated, 3 lost"


def test_a_thread_of_more_samples_than_are_written_at_once_is_whole() -> None:
    some = [Sample(number, 1, 1, "ruby", (A,) if number % 2 else (B,)) for number in range(10_000)]
    _, file = read_speedscope(written("speedscope", some))
    assert file["profiles"][0]["samples"] == [[0], [1]] * 5000


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_can_be_read_back(name: str) -> None:
    frames = (Frame("ruby", name, path=name, line=1),)
    data = written("speedscope", [Sample(1, 1, 1, name, frames)], meta=Meta(name, name))
    _, file = read_speedscope(data)
    assert unescape(file["shared"]["frames"][0]["name"]) == name
    assert unescape(file["profiles"][0]["name"]) == f"{name} (1)"
