# SPDX-License-Identifier: Apache-2.0
"""On a CPU, preempted, woken or asleep: told by what the kernel counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rubyunwind.process.activity import ActivityWatch


class Thread:
    """A thread's files in a folder that stands for /proc."""

    def __init__(self, root: Path, tid: int = 7, *, counts: bool = True) -> None:
        self.folder = root / "5" / "task" / str(tid)
        self.folder.mkdir(parents=True)
        self.counts = counts

    def is_now(self, state: str, arrivals: int = 0, voluntary: int = 0, forced: int = 0) -> None:
        (self.folder / "status").write_text(
            f"Name:\truby\nUmask:\t0022\nState:\t{state} (so)\nTgid:\t5\n"
            f"voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t{forced}\n"
        )
        if self.counts:
            (self.folder / "schedstat").write_text(f"123456 789 {arrivals}\n")


def states(watch: ActivityWatch, thread: Thread, *moments: tuple[str, int, int, int]) -> list[str]:
    found = []
    for state, arrivals, voluntary, forced in moments:
        thread.is_now(state, arrivals, voluntary, forced)
        seen = watch.look(7)
        assert seen is not None
        found.append(seen.state)
    return found


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([("R", 4, 2, 1)], ["running"]),
        ([("S", 3, 2, 1)], ["asleep"]),
        ([("D", 3, 2, 1)], ["asleep"]),
        ([("R", 3, 2, 1)], ["woken"]),  # nothing is known of before
        ([("R", 4, 2, 1), ("R", 4, 2, 2)], ["running", "preempted"]),
        ([("R", 4, 2, 1), ("R", 4, 3, 1)], ["running", "woken"]),
        ([("R", 4, 2, 1), ("R", 5, 3, 2)], ["running", "woken"]),  # which was last cannot be told
        ([("S", 3, 2, 1), ("R", 3, 2, 1)], ["asleep", "woken"]),
        ([("R", 4, 2, 1), ("R", 4, 2, 2), ("R", 4, 2, 2)], ["running", "preempted", "preempted"]),
        ([("S", 3, 2, 1), ("R", 3, 2, 1), ("R", 4, 2, 2)], ["asleep", "woken", "preempted"]),
    ],
)
def test_a_thread_is_told_by_its_counts(
    tmp_path: Path, moments: list[tuple[str, int, int, int]], expected: list[str]
) -> None:
    watch = ActivityWatch(5, str(tmp_path))
    assert states(watch, Thread(tmp_path), *moments) == expected
    watch.close()


def test_without_counts_a_thread_that_is_ready_runs(tmp_path: Path) -> None:
    watch = ActivityWatch(5, str(tmp_path))
    thread = Thread(tmp_path, counts=False)
    assert states(watch, thread, ("R", 0, 2, 1), ("S", 0, 2, 1), ("R", 0, 2, 1)) == [
        "running",
        "asleep",
        "running",
    ]
    watch.close()


def test_a_thread_that_is_gone_is_none_and_another_one_starts_anew(tmp_path: Path) -> None:
    watch = ActivityWatch(5, str(tmp_path))
    assert watch.look(7) is None
    first, second = Thread(tmp_path, 7), Thread(tmp_path, 8)
    second.is_now("R", 1, 0, 1)
    assert states(watch, first, ("R", 2, 1, 0), ("R", 2, 1, 1)) == ["running", "preempted"]
    seen = watch.look(8)
    assert seen is not None
    assert (seen.tid, seen.name, seen.state) == (8, "ruby", "woken")
    watch.close()
    watch.close()


def test_this_thread_runs() -> None:
    watch = ActivityWatch(os.getpid())
    seen = watch.look(os.getpid())
    assert seen is not None
    assert seen.state == "running"
    watch.close()
