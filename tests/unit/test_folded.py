# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import re

from format_readers import unescape
from hypothesis import given
from profile_strategies import HOSTILE_NAMES, names, profiles

from rubyunwind.formats import write
from rubyunwind.formats.folded import escape_name
from rubyunwind.profiler.sample import Frame, Sample


def folded(*samples: Sample) -> list[str]:
    file = io.BytesIO()
    write(file, "folded", samples)
    text = file.getvalue().decode("utf-8")
    assert text.endswith("\n") or not text
    return text.splitlines()


def stack(*root_first: str, pid: int = 1, comm: str = "ruby", **fields: object) -> Sample:
    frames = tuple(Frame("ruby", name) for name in reversed(root_first))
    return Sample(1, pid, pid, comm, frames, **fields)  # type: ignore[arg-type]


def test_equal_stacks_become_one_line_root_first() -> None:
    assert folded(stack("main", "a"), stack("main", "b"), stack("main", "a", weight=4)) == [
        "main;a 5",
        "main;b 1",
    ]


def test_stacks_that_differ_only_in_lines_become_one_line() -> None:
    first, second = (
        Sample(1, 1, 1, "ruby", (Frame("ruby", "a", path="/a.rb", line=line),)) for line in (1, 2)
    )
    assert folded(first, second) == ["a 2"]


@given(profiles)
def test_weights_are_preserved_and_every_line_is_a_stack_and_a_number(profile: list[Sample]) -> None:
    lines = folded(*profile)
    weights = [int(line.rpartition(" ")[2]) for line in lines]
    assert sum(weights) == sum(sample.weight for sample in profile)
    stacks = [line.rpartition(" ")[0] for line in lines]
    assert len(set(stacks)) == len(stacks)


@given(profiles)
def test_a_line_has_a_part_for_every_frame(profile: list[Sample]) -> None:
    for sample in profile:
        [line] = folded(sample)
        parts = line.rpartition(" ")[0].split(";")
        if not sample.complete or not sample.frames:
            assert parts.pop(0).startswith("[")
        shown = [re.sub(r"_\[[kj]\]$", "", part) for part in reversed(parts)]
        assert [unescape(part) for part in shown] == [frame.name for frame in sample.frames]


@given(names)
def test_an_escaped_name_can_be_read_back(name: str) -> None:
    escaped = escape_name(name)
    assert ";" not in escaped
    assert escaped.splitlines() in ([], [escaped])
    assert escaped.encode("utf-8").decode("utf-8") == escaped
    assert unescape(escaped) == name


def test_hostile_names_each_stay_on_one_line() -> None:
    lines = folded(*(stack("main", name) for name in HOSTILE_NAMES))
    assert len(lines) == len(HOSTILE_NAMES)


def test_kernel_and_jit_frames_are_marked_and_no_name_can_claim_the_mark() -> None:
    frames = (Frame("kernel", "do_idle"), Frame("jit", "Foo#hot"), Frame("ruby", "do_idle_[k]"))
    assert folded(Sample(1, 1, 1, "ruby", frames)) == [r"do_idle_\x5bk];Foo#hot_[j];do_idle_[k] 1"]


def test_a_number_at_the_end_of_a_name_is_no_second_weight() -> None:
    assert folded(stack("worker 12"), stack("1.5 s"), stack("take 1.5")) == [
        r"worker\x2012 1",
        "1.5 s 1",
        r"take\x201.5 1",
    ]


def test_an_incomplete_stack_says_so_at_its_root() -> None:
    assert folded(
        stack("a", complete=False, reason="limit"),
        stack("a", complete=False, reason="tail calls"),
        stack("a", complete=False, reason="no unwind row"),
        stack("a", complete=False),
        stack("a"),
    ) == [
        "[truncated: limit];a 1",
        "[truncated: tail calls];a 1",
        "[incomplete: no unwind row];a 1",
        "[incomplete: unknown reason];a 1",
        "a 1",
    ]


def test_a_sample_without_frames_keeps_its_weight() -> None:
    assert folded(stack(weight=3), stack(complete=False, reason="unmapped pc")) == [
        "[no frames] 3",
        "[incomplete: unmapped pc] 1",
    ]


def test_processes_are_named_only_when_there_are_several() -> None:
    assert folded(stack("a", pid=7)) == ["a 1"]
    assert folded(stack("a", pid=7), stack("a", pid=8, comm="puma; x", complete=False, reason="limit")) == [
        "ruby (7);a 1",
        r"puma\x3b x (8);[truncated: limit];a 1",
    ]


def test_a_process_is_named_by_its_main_thread() -> None:
    frames = (Frame("ruby", "a"),)
    worker, main = Sample(1, 7, 9, "worker 1", frames), Sample(1, 7, 7, "puma", frames)
    assert folded(worker, main, worker, stack("a", pid=8)) == ["puma (7);a 3", "ruby (8);a 1"]


def test_times_and_counts_are_not_added_up() -> None:
    assert folded(stack("a"), stack("a", unit="ns", weight=500)) == ["[samples];a 1", "[ns];a 500"]
