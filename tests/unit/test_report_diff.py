# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report --diff`: what has another share of the weight in the second recording."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from page_reader import Page, entries_of
from profile_strategies import profiles
from reports import COMPARE, MAIN, READ, SORT, WORK, Report, sample

from rubyunwind.formats import FORMATS, write
from rubyunwind.formats.difference import Side
from rubyunwind.formats.flamegraph import write_difference as page_difference
from rubyunwind.formats.folded import write_difference as folded_difference
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals
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
    report = Report("--diff", "--native", "all", before, after)
    assert report.status == 0
    assert rows(report) == {
        "<main>": (25.0, 0.0, -25.0, 100.0, 100.0, 0.0),
        "vfs_read": (0.0, 25.0, 25.0, 0.0, 25.0, 25.0),
        "Work#run": (0.0, 0.0, 0.0, 75.0, 100.0, 25.0),
    }
    assert "of 40 samples before and of 800 samples after" in report.out
    short = Report("--diff", "-n", "1", "--native", "all", before, after)
    assert rows(short).keys() == {"vfs_read"}
    assert "... and 2 more methods that changed" in short.out


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


# A method that grew, one that shrank and one that vanished; the second is twice as long.
CHANGED = (
    [sample(0, WORK, MAIN, weight=6), sample(1, READ, MAIN, weight=3), sample(2, SORT, MAIN)],
    [sample(0, WORK, MAIN, weight=6), sample(1, READ, MAIN, weight=14)],
)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "old.rubyunwind", tmp_path / "new.rubyunwind"
    for path, samples in zip(paths, CHANGED, strict=True):
        write(path, "recording", samples, meta=Meta(title=path.stem, duration=10.0, rate=99.0))
    return paths


def test_the_page_has_the_weights_of_both(pair: tuple[Path, Path], tmp_path: Path) -> None:
    report = Report("--diff", *pair, "-o", tmp_path / "diff.html")
    assert report.status == 0
    profile = Page((tmp_path / "diff.html").read_text()).profile
    found = {
        (each.side, *(frame[1] for frame in each.path)): weight
        for each, weight in entries_of(profile).items()
    }
    assert found == {
        (0, "<main>", "Work#run"): 6,
        (0, "<main>", "vfs_read"): 3,
        (0, "<main>", "Array#sort_by"): 1,
        (1, "<main>", "Work#run"): 6,
        (1, "<main>", "vfs_read"): 14,
    }
    assert profile["title"] == "old -> new"
    assert [side["details"] for side in profile["sides"]] == [["99 Hz", "10.0 s"]] * 2


def test_folded_stacks_have_two_weights(pair: tuple[Path, Path]) -> None:
    report = Report("--diff", *pair, "-f", "folded", "-o", "-")
    assert report.out.splitlines() == [
        "<main>;Work#run 6 6",
        "<main>;vfs_read_[k] 3 14",
        "<main>;Array#sort_by 1 0",
    ]
    assert Report("--diff", *reversed(pair), "-f", "folded", "-o", "-").out.splitlines() == [
        "<main>;Work#run 6 6",
        "<main>;vfs_read_[k] 14 3",
        "<main>;Array#sort_by 0 1",
    ]


@pytest.mark.parametrize("format_", [name for name in FORMATS if name not in ("flamegraph", "folded")])
@pytest.mark.parametrize("by_suffix", [True, False])
def test_formats_that_cannot_compare_refuse(
    pair: tuple[Path, Path], tmp_path: Path, format_: str, by_suffix: bool
) -> None:
    out = tmp_path / f"x{FORMATS[format_].suffix}"
    words = ["-o", out] if by_suffix else ["-f", format_]
    report = Report("--diff", *pair, *words)
    assert report.status == 2
    assert (
        "--diff gives a table, a flame graph page (-f flamegraph, -o x.html) or folded stacks" in report.err
    )
    assert f"no {format_}" in report.err
    assert not out.exists()


def test_a_table_goes_into_a_file_of_another_name(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert Report("--diff", *pair, "-o", tmp_path / "x.txt").status == 0
    assert (tmp_path / "x.txt").read_text() == Report("--diff", *pair).out


@given(profiles, profiles)
def test_all_weight_of_both_is_in_the_folded_stacks_and_in_the_page(
    before: list[Sample], after: list[Sample]
) -> None:
    both = [Side(Samples(each), Totals(), Meta()) for each in (before, after)]
    folded, page = BytesIO(), BytesIO()
    folded_difference(folded, *both)
    page_difference(page, *both)
    wholes = [sum(sample.weight for sample in each) for each in (before, after)]
    lines = [line.rsplit(" ", 2) for line in folded.getvalue().decode().splitlines()]
    assert [sum(int(line[side]) for line in lines) for side in (1, 2)] == wholes
    entries = entries_of(Page(page.getvalue().decode()).profile)
    assert [sum(w for each, w in entries.items() if each.side == side) for side in (0, 1)] == wholes
    # What is equal on both sides is one line, and both have it.
    same = BytesIO()
    folded_difference(same, both[0], both[0])
    assert all(
        line.rsplit(" ", 2)[1] == line.rsplit(" ", 2)[2] for line in same.getvalue().decode().splitlines()
    )


def test_the_table_leaves_native_frames_out_unless_they_are_asked_for(pair: tuple[Path, Path]) -> None:
    out = Report("--diff", *pair).out
    assert rows(Report("--diff", *pair)).keys() == {"Work#run", "<main>", "Array#sort_by"}
    assert out.count("--native all shows them") == 1
    assert "vfs_read" in Report("--diff", *pair, "--native", "all").out
