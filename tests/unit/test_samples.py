# SPDX-License-Identifier: Apache-2.0
"""Samples are a list of samples to whoever reads them, however they came in and are kept."""

from __future__ import annotations

import tracemalloc
from array import array
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_strategies import profiles as sample_lists

from rubyunwind import Sample
from rubyunwind.profiler import samples as samples_module
from rubyunwind.profiler.sample import Frame
from rubyunwind.profiler.samples import SampledStack, SampledThread, Samples

SAMPLE = Sample(1, 1, 1, "ruby", ())
STACK = (Frame("ruby", "A#b", "b", "/a.rb", 1), Frame("native", "main", module="/bin/x", offset=1))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_module, "_CHUNK", 4)


@given(st.lists(sample_lists, max_size=4))
def test_they_are_what_was_put_in_one_by_one_or_by_the_column(parts: list[list[Sample]]) -> None:
    everything = [sample for part in parts for sample in part]
    one_by_one, joined = Samples(everything), Samples()
    for part in parts:
        joined += Samples(part)
    for samples in (one_by_one, joined):
        assert len(samples) == len(everything)
        assert list(samples) == everything
        assert [samples[index] for index in range(len(samples))] == everything
        assert samples[1:-1] == everything[1:-1]
        assert samples == everything
        assert samples + samples == everything + samples == everything * 2
        assert samples.incomplete == sum(not sample.complete for sample in everything)
        if everything:
            assert samples[-1] == everything[-1]
        with pytest.raises(IndexError, match=f"of {len(everything)}"):
            samples[len(everything)]


@given(sample_lists, st.data())
def test_selected_are_those_that_were_asked_for(everything: list[Sample], data: st.DataObject) -> None:
    samples = Samples(everything)
    stacks: list[SampledStack | None] = [
        data.draw(st.sampled_from([stack, None, stack._replace(frames=())])) for stack in samples.stacks
    ]
    threads = [data.draw(st.booleans()) for _ in samples.threads]
    times = st.none() | st.sampled_from([sample.timestamp for sample in everything] or [0])
    since, until = data.draw(times), data.draw(times)
    expected = []
    for one in everything:
        stack = SampledStack(one.frames, one.complete, one.reason, one.origin, one.backend, one.unit)
        new = stacks[samples.stacks.index(stack)]
        thread = SampledThread(one.pid, one.tid, one.comm, one.container)
        if new is None or not threads[samples.threads.index(thread)]:
            continue
        if (since is None or one.timestamp >= since) and (until is None or one.timestamp < until):
            expected.append(replace(one, frames=new.frames))
    found = samples.selected(stacks, threads, since, until)
    assert list(found) == expected
    assert set(found.stacks) <= {stack for stack in stacks if stack is not None}
    found.append(SAMPLE)
    assert found[-1] == SAMPLE


@given(sample_lists)
def test_columns_can_be_put_together_again(everything: list[Sample]) -> None:
    samples, again = Samples(everything), Samples()
    stacks, threads = samples.stacks, samples.threads
    for columns in samples.columns():
        again.extend_columns(stacks, threads, columns)
        stacks, threads = (), ()
    assert list(again) == everything
    again.extend(everything)
    assert again == everything * 2


@given(sample_lists)
def test_merged_has_the_weight_of_each_stack_of_each_thread(everything: list[Sample]) -> None:
    def sums(samples: list[Sample]) -> Counter[object]:
        total: Counter[object] = Counter()
        for one in samples:
            total[one.pid, one.tid, one.comm, one.frames, one.complete, one.reason, one.unit] += one.weight
        return total

    merged = Samples(everything).merged()
    assert sums(merged) == sums(everything)
    assert len(merged) <= len(everything)


def test_equal_stacks_come_out_as_one_tuple() -> None:
    def one(time: int) -> Sample:
        return Sample(time, 1, 1, "ruby", (STACK[0], STACK[1]))

    first, second = Samples([one(1), one(2)]), Samples([one(3)])
    first.extend(second)
    first.extend(second)
    assert len({id(sample.frames) for sample in first}) == 1
    assert len(first.stacks) == 1


def test_columns_become_samples_and_may_grow() -> None:
    samples = Samples.of_columns(
        [SampledStack(STACK), SampledStack((), False, "limit")],
        [SampledThread(1, 2, "ruby")],
        (array("q", [5, 6]), array("I", [1, 0]), array("I", [0, 0]), array("i", [0, 1]), array("Q", [1, 1])),
    )
    expected = [
        Sample(5, 1, 2, "ruby", (), complete=False, reason="limit", cpu=0),
        Sample(6, 1, 2, "ruby", STACK, cpu=1),
    ]
    assert samples == expected
    samples.append(expected[1])
    assert samples == [*expected, expected[1]]
    assert len(samples.stacks) == 2


def test_columns_of_different_lengths_or_types_are_refused() -> None:
    good = [array(kind, [0]) for kind in "qIIiQ"]
    for index, wrong in ((1, array("I")), (0, array("Q", [0]))):
        columns = [*good[:index], wrong, *good[index + 1 :]]
        with pytest.raises(ValueError, match="a column of"):
            Samples.of_columns([], [], tuple(columns))  # type: ignore[arg-type]


def test_a_million_samples_take_a_few_megabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    stacks = [SampledStack((Frame("native", f"f{number}"),)) for number in range(200)]
    threads = [SampledThread(1, tid, "ruby") for tid in range(5)]
    tracemalloc.start()
    try:
        samples = Samples()
        for batch in range(1000):
            count = 1000
            times = array(
                "q", range(batch * count * 10_101_000, (batch + 1) * count * 10_101_000, 10_101_000)
            )
            spread = array("I", ((at * 7919) % 200 for at in range(count)))
            rest = (
                array("I", (at % 5 for at in range(count))),
                array("i", [0]) * count,
                array("Q", [1]) * count,
            )
            samples += Samples.of_columns(stacks, threads, (times, spread, *rest))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(samples) == 1_000_000
    assert held < 10 << 20
