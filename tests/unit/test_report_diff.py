# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report --diff`: what has another share of the weight in the second recording."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from profile_strategies import profiles
from reports import COMPARE, MAIN, READ, SORT, WORK, Report, sample

from rubyunwind.formats import write
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples
from rubyunwind.report.methods import Method, MethodWeights, compare


def rows(report: Report) -> dict[str, tuple[float, ...]]:
    """Self before, after, change; total before, after, change; by method."""
    found = {}
    for line in report.out.splitlines():
        numbers = re.match(
            r"^ *([\d.]+)% +([\d.]+)% +([+-][\d.]+) +([\d.]+)% +([\d.]+)% +([+-][\d.]+)  ", line
        )
        if numbers:
            found[line[numbers.end() :].split()[1]] = tuple(map(float, numbers.groups()))
    return found


def test_shares_are_compared_not_weights(tmp_path: Path) -> None:
    before, after = tmp_path / "a.rubyunwind", tmp_path / "b.jsonl"
    write(before, "recording", [sample(0, COMPARE, SORT, WORK, MAIN, weight=30), sample(1, MAIN, weight=10)])
    write(
        after,
        "jsonl",
        [sample(0, COMPARE, SORT, WORK, MAIN, weight=600), sample(1, READ, WORK, MAIN, weight=200)],
    )
    report = Report("--diff", before, after)
    assert report.status == 0
    assert rows(report) == {
        "<main>": (25.0, 0.0, -25.0, 100.0, 100.0, 0.0),
        "vfs_read": (0.0, 25.0, 25.0, 0.0, 25.0, 25.0),
        "Work#run": (0.0, 0.0, 0.0, 75.0, 100.0, 25.0),
    }
    assert "of 40 samples before and of 800 samples after" in report.out
    assert rows(Report("--diff", "-n", "1", before, after)).keys() == {"vfs_read"}
    assert "... and 2 more methods that changed" in Report("--diff", "-n", "1", before, after).out


def test_equal_recordings_differ_in_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.rubyunwind"
    write(path, "recording", [sample(0, MAIN)])
    assert "nothing has changed its share" in Report("--diff", path, path).out


def test_a_part_of_each_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "a.rubyunwind"
    write(path, "recording", [sample(0, MAIN), sample(1, WORK, MAIN, tid=8)])
    report = Report("--diff", path, path, "--thread", "8")
    assert report.out.count("selected: 1 of 2 samples") == 2
    assert rows(report) == {}


def test_a_recording_without_samples_can_be_compared(tmp_path: Path) -> None:
    empty, path = tmp_path / "a.rubyunwind", tmp_path / "b.rubyunwind"
    write(empty, "recording", [])
    write(path, "recording", [sample(0, MAIN)])
    assert rows(Report("--diff", empty, path)) == {"<main>": (0.0, 100.0, 100.0, 0.0, 100.0, 100.0)}
    assert Report("--diff", empty, empty).status == 0


@pytest.mark.parametrize("count", [1, 3])
def test_two_files_are_compared(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.rubyunwind"
    write(path, "recording", [])
    report = Report("--diff", *[path] * count)
    assert report.status == 2
    assert f"one before and one after; {count} were given" in report.err


@given(profiles, profiles)
def test_changes_of_own_shares_cancel_out(before: list[Sample], after: list[Sample]) -> None:
    both = [MethodWeights.of(Samples(each)) for each in (before, after)]
    if not all(both):
        return
    for part, samples in zip(both, (before, after), strict=True):
        assert sum(each.whole for each in part) == sum(each.weight for each in samples)
        for each in part:
            assert sum(method.self for method in each.methods) == each.whole
            assert all(method.self <= method.total <= each.whole for method in each.methods)
    changes = compare(both[0][0], both[1][0])
    assert abs(sum(change.self_change for change in changes)) < 1e-9


def test_methods_of_one_name_in_two_files_are_two() -> None:
    one, other = Frame("ruby", "call", "call", "/a.rb", 1), Frame("ruby", "call", "call", "/b.rb", 1)
    (weights,) = MethodWeights.of(Samples([sample(0, one), sample(0, other, one), sample(1, other)]))
    assert {each.method: (each.self, each.total) for each in weights.methods} == {
        Method("ruby", "call", "/a.rb"): (1, 2),
        Method("ruby", "call", "/b.rb"): (2, 2),
    }


def test_a_c_function_is_one_whoever_calls_it() -> None:
    calls = [Frame("cfunc", "Array#each", "each", f"/{n}.rb", n) for n in range(3)]
    (weights,) = MethodWeights.of(Samples([sample(0, call) for call in calls]))
    assert [(each.method, each.total) for each in weights.methods] == [
        (Method("cfunc", "Array#each", None), 3)
    ]
