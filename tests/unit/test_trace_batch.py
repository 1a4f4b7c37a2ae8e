# SPDX-License-Identifier: Apache-2.0
"""Traces grouped in C: what comes out is what the records held, each distinct stack once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rubyunwind._native import ffi
from rubyunwind.abi import Frame, FrameMarker, Trace, TraceFlag, TraceOrigin
from rubyunwind.bpf.perf_sinks import PERF_RECORD_LOST, PERF_RECORD_SAMPLE, TraceSink
from rubyunwind.bpf.trace_batch import TraceBatch

CONT = -2  # LIBBPF_PERF_EVENT_CONT


def event(kind: int, body: bytes) -> Any:
    """A record as it lies in a ring: struct perf_event_header, then the body."""
    return ffi.new(
        "char[]", kind.to_bytes(4, "little") + bytes(2) + (8 + len(body)).to_bytes(2, "little") + body
    )


def sample_event(payload: bytes) -> Any:
    padded = payload.ljust(((len(payload) + 4 + 7) & ~7) - 4, b"\0")
    return event(PERF_RECORD_SAMPLE, len(padded).to_bytes(4, "little") + padded)


class Grouped:
    """A sink that records are pushed into, as libbpf does."""

    def __init__(self) -> None:
        self.sink = TraceSink()

    def push(self, cpu: int, record: Any) -> None:
        assert self.sink._lib.group_event(self.sink.group, cpu, record) == CONT
        self.sink.finish()

    def take(self) -> TraceBatch:
        return self.sink.take()

    def __enter__(self) -> Grouped:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sink.free()


def trace(**fields: Any) -> Trace:
    frames = fields.pop("frames", (0x10, 0x20))
    return Trace(
        **{"pid": 7, "tid": 8, "comm": "ruby", "origin": TraceOrigin.SAMPLING, "ktime": 5, **fields},
        frames=[Frame(file_id=1, addr_or_line=a, kind=FrameMarker.NATIVE) for a in frames],
    )


traces = st.builds(
    trace,
    pid=st.integers(1, 3),
    tid=st.integers(1, 3),
    comm=st.sampled_from(["ruby", "puma 1", "x" * 15, "\udc80", ""]),
    ktime=st.integers(0, 2**63),
    offtime=st.integers(0, 2**64 - 1),
    kernel_stack_id=st.integers(-20, 3),
    origin=st.sampled_from(list(TraceOrigin)),
    flags=st.sampled_from([0, TraceFlag.NATIVE_ROOT]),
    frames=st.lists(st.integers(0, 3), max_size=4).map(tuple),
)


@given(st.lists(st.tuples(traces, st.integers(0, 7)), max_size=60))
def test_every_trace_comes_back_with_its_thread_its_time_and_its_stack(
    pushed: list[tuple[Trace, int]],
) -> None:
    with Grouped() as grouped:
        for one, cpu in pushed:
            grouped.push(cpu, sample_event(bytes(one)))
        batch = grouped.take()
        assert len(grouped.take()) == 0
    assert len(batch) == len(pushed)
    for index, (one, cpu) in enumerate(pushed):
        thread, stack = batch.threads[batch.thread[index]], batch.stacks[batch.stack[index]]
        assert (thread.pid, thread.tid, thread.comm) == (one.pid, one.tid, one.comm)
        assert (batch.ktime[index], batch.offtime[index], batch.cpu[index]) == (one.ktime, one.offtime, cpu)
        assert bytes(stack) == bytes(one.replace(ktime=0, tid=0, comm="", offtime=0))
    assert len({bytes(stack) for stack in batch.stacks}) == len(batch.stacks)
    assert len(set(batch.threads)) == len(batch.threads)
    assert Counter(batch.stack) == Counter(dict(enumerate(batch.counts)))


def test_more_stacks_than_fit_at_first_and_the_next_batch_starts_anew() -> None:
    with Grouped() as grouped:
        for turn in range(2):
            for number in range(3000):
                grouped.push(turn, sample_event(bytes(trace(frames=(number // 2, turn), tid=number % 1000))))
            batch = grouped.take()
            assert len(batch) == 3000
            assert batch.counts == (2,) * 1500
            assert len(batch.threads) == 1000
            assert [stack.frames[0].addr_or_line for stack in batch.stacks] == list(range(1500))
            assert {stack.frames[1].addr_or_line for stack in batch.stacks} == {turn}
        grouped.push(0, sample_event(bytes(trace())))
        assert len(grouped.take().stacks) == 1


def test_a_record_that_is_no_trace_is_counted_and_left_out() -> None:
    whole = bytes(trace())
    too_many = bytearray(whole)
    too_many[60:64] = (2601).to_bytes(4, "little")
    uncut = whole.ljust(3152, b"\0")
    with Grouped() as grouped:
        for payload in (whole[:-24], whole[:79], b"", bytes(too_many), whole + bytes(24)):
            grouped.push(0, sample_event(payload))
        assert len(grouped.take()) == 0
        assert (grouped.sink.malformed, grouped.sink.total) == (5, 0)
        grouped.push(0, sample_event(uncut))
        grouped.push(0, sample_event(whole))
        batch = grouped.take()
        assert (len(batch), len(batch.stacks)) == (2, 1)  # the whole struct is the same trace
        assert (grouped.sink.malformed, grouped.sink.total) == (5, 2)


def test_sizes_that_contradict_each_other_and_losses_are_counted() -> None:
    with Grouped() as grouped:
        grouped.push(0, event(PERF_RECORD_SAMPLE, (1000).to_bytes(4, "little") + bytes(8)))
        grouped.push(0, event(PERF_RECORD_SAMPLE, b""))
        grouped.push(0, event(PERF_RECORD_LOST, bytes(8) + (3).to_bytes(8, "little")))
        assert (grouped.sink.malformed, grouped.sink.lost, len(grouped.take())) == (2, 3, 0)
