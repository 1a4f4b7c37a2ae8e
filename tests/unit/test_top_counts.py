# SPDX-License-Identifier: Apache-2.0
"""What the live table counts: against a count by hand, over any samples and intervals."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_strategies import profiles

from rubyunwind.cli.live import counts as counts_module
from rubyunwind.cli.live.counts import EARLIER, HIDDEN_KINDS, Counts, Method, Thread
from rubyunwind.cli.live.state import State
from rubyunwind.cli.live.table import Table, make_table
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples

MAIN = Frame("ruby", "<main>", "<main>", "/app.rb", 9)
WORK = Frame("ruby", "Work#run", "run", "/app.rb", 3)
EACH = Frame("cfunc", "Array#each", "each", "/app.rb", 9)
NATIVE = Frame("native", "rb_ary_each", module="/usr/lib/libruby.so", offset=16)

intervals = st.lists(st.tuples(profiles, st.floats(0.01, 10)), min_size=1, max_size=5)


def sample(*frames: Frame, tid: int = 1, pid: int = 1, weight: int = 1, complete: bool = True) -> Sample:
    return Sample(
        1, pid, tid, f"comm{tid}", frames, complete, None if complete else "unmapped pc", weight=weight
    )


def counted(*samples: Sample, window: int = 1) -> Counts:
    counts = Counts(window)
    counts.add(samples)
    counts.close(1.0)
    return counts


def method_of(frame: Frame) -> Method:
    place = frame.module if frame.path is None else None if frame.kind == "cfunc" else frame.path
    return Method(frame.kind, frame.name, place)


def by_hand(samples: list[Sample], native: bool) -> tuple[Counter[Method], Counter[Method]]:
    own: Counter[Method] = Counter()
    total: Counter[Method] = Counter()
    for one in samples:
        shown = [method_of(f) for f in one.frames if native or f.kind not in HIDDEN_KINDS]
        if not shown:
            shown = [Method("none", "[native code only]" if one.frames else "[no frames]")]
        own[shown[0]] += one.weight
        for method in set(shown):
            total[method] += one.weight
    return own, total


def numbers(table: Table, which: str) -> tuple[Counter[object], Counter[object]]:
    own, total = Counter[object](), Counter[object]()
    for row in table.rows:
        weights = getattr(row, which)
        own[row.key] += weights.own
        total[row.key] += weights.total
    return +own, +total


@given(intervals, st.integers(1, 3), st.booleans())
def test_rows_are_what_is_counted_by_hand(
    parts: list[tuple[list[Sample], float]], window: int, native: bool
) -> None:
    counts = Counts(window)
    for samples, seconds in parts:
        counts.add(Samples(samples))
        counts.close(seconds)
    table = make_table(counts, State(native=native))
    everything = [one for samples, _ in parts for one in samples]
    lately = [one for samples, _ in parts[-window:] for one in samples]
    for which, samples, weight in (
        ("start", everything, table.weight_start),
        ("now", lately, table.weight_now),
    ):
        assert numbers(table, which) == by_hand(samples, native)
        # Every sample is in one row: self is the whole, to the last one.
        assert sum(getattr(row, which).own for row in table.rows) == weight == sum(s.weight for s in samples)
    assert table.seconds_start == pytest.approx(sum(seconds for _, seconds in parts))
    assert table.seconds_now == pytest.approx(sum(seconds for _, seconds in parts[-window:]))
    assert counts.incomplete == sum(one.weight for one in everything if not one.complete)


@given(profiles, st.booleans())
def test_scopes_divide_the_whole(samples: list[Sample], native: bool) -> None:
    counts = counted(*samples)
    whole = make_table(counts, State(native=native))
    for view in ("threads", "processes"):
        state = State(view=view, native=native)  # type: ignore[arg-type]
        table = make_table(counts, state)
        assert sum(row.now.total for row in table.rows) == table.weight_now == whole.weight_now
        parts = [
            make_table(counts, State(scope=row.key, native=native))  # type: ignore[arg-type]
            for row in table.rows
        ]
        assert [part.weight_now for part in parts] == [row.now.total for row in table.rows]
        summed: Counter[object] = Counter()
        for part in parts:
            summed += numbers(part, "now")[0]
        assert summed == numbers(whole, "now")[0]


@given(profiles, st.sampled_from(["self", "total"]), st.booleans(), st.text(max_size=3))
def test_order_and_filter(samples: list[Sample], sort: str, since_start: bool, wanted: str) -> None:
    counts = counted(*samples)
    state = State(sort=sort, since_start=since_start, filter=wanted)  # type: ignore[arg-type]
    table = make_table(counts, state)
    which = [row.start if since_start else row.now for row in table.rows]
    order = [weights.total if sort == "total" else weights.own for weights in which]
    assert order == sorted(order, reverse=True)
    everything = make_table(counts, State(sort=sort, since_start=since_start)).rows  # type: ignore[arg-type]
    folded = wanted.casefold()
    assert list(table.rows) == [r for r in everything if folded in f"{r.name} {r.place}".casefold()]
    assert table.hidden == len(everything) - len(table.rows)


def test_recursion_counts_once_and_the_line_is_the_hottest() -> None:
    other = Frame("ruby", "Work#run", "run", "/app.rb", 4)
    counts = counted(sample(WORK, other, WORK, MAIN, weight=2), sample(other, MAIN, weight=5))
    run, main = make_table(counts, State()).rows
    assert (run.name, run.now, run.place) == ("Work#run", (7, 7), "/app.rb:4")
    assert (main.name, main.now, main.place) == ("<main>", (0, 7), "/app.rb:9")


def test_native_frames_off_give_their_time_to_who_called_them() -> None:
    counts = counted(sample(NATIVE, EACH, NATIVE, MAIN), sample(NATIVE))
    rows = {row.name: row.now for row in make_table(counts, State(native=True)).rows}
    assert rows == {"rb_ary_each": (2, 2), "Array#each": (0, 1), "<main>": (0, 1)}
    rows = {row.name: row.now for row in make_table(counts, State(native=False)).rows}
    assert rows == {"Array#each": (1, 1), "<main>": (0, 1), "[native code only]": (1, 1)}


def test_a_c_function_is_one_row_wherever_it_is_called() -> None:
    elsewhere = Frame("cfunc", "Array#each", "each", "/b.rb", 1)
    each, _ = make_table(counted(sample(EACH, MAIN), sample(elsewhere, MAIN, weight=2)), State()).rows
    assert (each.name, each.now, each.place) == ("Array#each", (3, 3), "/b.rb:1")


def test_reset_forgets_everything_and_a_new_window_only_what_is_now() -> None:
    counts = counted(sample(WORK))
    counts.forget_window()
    table = make_table(counts, State())
    assert (table.weight_now, table.weight_start) == (0, 1)
    counts.add([sample(WORK)])
    counts.reset()
    counts.close(1.0)
    table = make_table(counts, State())
    assert (table.rows, table.weight_start, counts.incomplete) == ((), 0, 0)


def test_many_threads_are_put_together_and_none_of_their_weight_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts_module, "_MOST_THREADS", 8)
    monkeypatch.setattr(counts_module, "_MOST_STACKS", 3)
    counts = Counts(2)
    for number in range(100):
        name = Frame("ruby", f"m{number % 10}", path="/a.rb", line=number)
        counts.add([sample(name, tid=1), sample(name, tid=1000 + number)])
        counts.close(1.0)
    threads = make_table(counts, State(view="threads"))
    assert threads.weight_start == sum(row.start.total for row in threads.rows) == 200
    assert len(threads.rows) <= 9
    assert threads.rows[0].key == Thread(1, 1)  # what is seen again and again stays
    assert {row.key for row in threads.rows} >= {EARLIER, Thread(1, 1), Thread(1, 1099)}
    assert len(counts.comms) <= 12
    methods = make_table(counts, State())
    assert {row.name: row.start.own for row in methods.rows} == {f"m{n}": 20 for n in range(10)}


def test_threads_have_names_and_the_pid_where_several_processes_are() -> None:
    counts = counted(sample(WORK, tid=1), sample(EACH, tid=2, weight=3))
    assert [(row.name, row.place) for row in make_table(counts, State(view="threads")).rows] == [
        ("2 comm2", "Array#each"),
        ("1 comm1", "Work#run"),
    ]
    counts.add([sample(WORK, pid=5, tid=7)])
    counts.close(1.0)
    assert {row.name for row in make_table(counts, State(view="threads")).rows} == {
        "1/1 comm1",
        "1/2 comm2",
        "5/7 comm7",
    }
    assert {row.name for row in make_table(counts, State(view="processes")).rows} == {"1 comm1", "5 comm7"}
