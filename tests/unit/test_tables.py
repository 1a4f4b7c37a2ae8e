# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from profile_strategies import mixed_profiles

from rubyunwind.formats.registry import Meta
from rubyunwind.formats.tables import origin_of, period_of, start_of, tables_of
from rubyunwind.formats.tree import Place
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples

A, B = Frame("ruby", "a", path="/a.rb", line=1), Frame("ruby", "b", path="/a.rb", line=9)


def at(time: int, *frames: Frame, tid: int = 1, **fields: object) -> Sample:
    return Sample(time, 1, tid, "ruby", frames, **fields)  # type: ignore[arg-type]


@given(mixed_profiles)
def test_every_reference_leads_somewhere_and_nothing_is_there_twice(profile: list[Sample]) -> None:
    tables = tables_of(profile)
    for column in (tables.functions, tables.locations, tables.stacks):
        assert len(set(column)) == len(column)
    assert {location.function for location in tables.locations} == set(range(len(tables.functions)))
    assert {at for stack in tables.stacks for at in stack} == set(range(len(tables.locations)))
    assert {at for thread in tables.threads for at in thread.stacks} == set(range(len(tables.stacks)))
    assert all(tables.stacks)


@given(mixed_profiles)
def test_sums_and_runs_keep_the_weight(profile: list[Sample]) -> None:
    for thread in tables_of(profile).threads:
        assert sum(thread.sums().values()) == sum(thread.weights)
        assert sum(weight for _, weight in thread.runs()) == sum(thread.weights)
        stacks = [stack for stack, _ in thread.runs()]
        assert all(before != after for before, after in pairwise(stacks))


@given(mixed_profiles)
def test_columns_and_lists_give_the_same_tables(profile: list[Sample]) -> None:
    assert tables_of(Samples(profile)) == tables_of(iter(profile))


def test_samples_of_a_thread_are_put_in_the_order_of_their_times() -> None:
    [thread] = tables_of([at(30, A), at(10, B), at(20, A, B), at(10, A)]).threads
    assert list(thread.times) == [10, 10, 20, 30]
    assert list(thread.stacks) == [1, 0, 2, 0]


def test_a_function_has_a_location_for_each_line() -> None:
    other = Frame("ruby", "a", path="/a.rb", line=2)
    tables = tables_of([at(1, A), at(2, other), at(3, A)])
    assert tables.functions == (Place("ruby", "a", "/a.rb"),)
    assert [location.line for location in tables.locations] == [1, 2]


def test_threads_have_the_name_they_had_last_and_the_main_threads_for_the_process() -> None:
    some = [
        Sample(1, 7, 9, "ruby", (A,)),
        Sample(2, 7, 7, "puma", (A,)),
        Sample(3, 7, 9, "worker 1", (A,)),
    ]
    assert [(thread.name, thread.process) for thread in tables_of(some).threads] == [
        ("worker 1", "puma"),
        ("puma", "puma"),
    ]


def test_counts_and_times_are_threads_of_their_own() -> None:
    tables = tables_of([at(1, A), at(2, A, unit="ns", weight=500)])
    assert [(thread.unit, list(thread.weights)) for thread in tables.threads] == [
        ("samples", [1]),
        ("ns", [500]),
    ]
    assert tables.units == ("samples", "ns")


def test_a_stack_that_is_not_whole_says_so_at_its_root() -> None:
    tables = tables_of([at(1, A, complete=False, reason="limit"), at(2)])
    names = [
        [tables.functions[tables.locations[at].function].name for at in stack] for stack in tables.stacks
    ]
    assert names == [["[truncated: limit]", "a"], ["[no frames]"]]


def test_the_start_is_before_every_sample() -> None:
    tables = tables_of([at(50, A), at(40, A, tid=2)])
    assert start_of(tables, Meta(started=45)) == 40
    assert start_of(tables, Meta(started=30)) == 30
    assert start_of(tables, Meta()) == 40
    assert start_of(tables_of([]), Meta()) == 0


def test_the_period_is_that_of_the_rate() -> None:
    assert period_of(Meta(rate=99.0)) == 10_101_010
    assert period_of(Meta()) == 0


def test_a_function_is_from_its_module_or_its_kind() -> None:
    assert origin_of(Place("native", "read", module="/libc.so")) == "/libc.so"
    assert origin_of(Place("kernel", "vfs_read")) == "[kernel]"
