# SPDX-License-Identifier: Apache-2.0
"""Perf buffers: whole records, counted losses, wake-ups."""

from __future__ import annotations

import itertools
import os
import select
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.perf_buffer import PerfBuffer
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.errors import BpfError

from .loader_program import OUTPUT_FAILED, RAN_STOP, configure, metric, spin_until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("bpf")]


@pytest.fixture
def collection(loader_object: Path) -> Iterator[Collection]:
    """Pinned to one CPU, so that all records meet in one ring."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with load_collection_spec(path=loader_object).load() as loaded:
            yield loaded
    finally:
        os.sched_setaffinity(0, allowed)


def sample(collection: Collection, samples: int) -> int:
    """Take at least that many samples of this busy loop; return how many there were in all."""
    with perf_event_open(pid=0, frequency=999, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        spin_until(collection, RAN_STOP, metric(collection, RAN_STOP) + samples)
        event.disable()
    return metric(collection, RAN_STOP)


@pytest.mark.parametrize("length", [8, 61, 64, 999, 1024])
def test_every_record_of_a_busy_loop_arrives_whole(collection: Collection, length: int) -> None:
    configure(collection, slot=0, burst=3, length=length)
    with PerfBuffer(collection.maps["trace_events"]) as buffer:
        sent = 3 * sample(collection, 5)
        assert buffer.consume() == sent
        records = buffer.records()
        assert buffer.records() == []
        assert (buffer.lost, buffer.malformed) == (0, 0)
    assert [struct.unpack_from("<II", data) for _, data in records] == [(n + 1, length) for n in range(sent)]
    # The kernel pads a payload so that it ends on 8 bytes behind its 4-byte length.
    assert {len(data) for _, data in records} == {(length + 4 + 7) // 8 * 8 - 4}
    assert {cpu for cpu, _ in records} == {min(os.sched_getaffinity(0))}


def test_records_stay_valid_when_the_buffer_is_used_again_and_closed(collection: Collection) -> None:
    configure(collection, slot=0, burst=1, length=16)
    with PerfBuffer(collection.maps["trace_events"]) as buffer:
        sample(collection, 1)
        buffer.poll(0)
        first = buffer.records()
        copy = [(cpu, bytes(data)) for cpu, data in first]
        sample(collection, 5)
        buffer.consume()
        buffer.records()
    assert [(cpu, bytes(data)) for cpu, data in first] == copy


def test_an_overflow_is_reported_as_lost_with_the_next_record(collection: Collection) -> None:
    configure(collection, slot=0, burst=60, length=1000)
    with PerfBuffer(collection.maps["trace_events"], pages=1) as buffer:
        sample(collection, 2)
        failed = metric(collection, OUTPUT_FAILED)
        assert failed > 0
        taken = buffer.consume()
        configure(collection, slot=0, burst=1, length=16)
        sample(collection, 1)
        taken += buffer.consume()
        assert buffer.lost == failed
        assert taken == len(buffer.records())


def test_callbacks_get_records_and_losses_in_order(collection: Collection) -> None:
    configure(collection, slot=0, burst=60, length=1000)
    seen: list[tuple[str, int]] = []
    with PerfBuffer(
        collection.maps["trace_events"],
        pages=1,
        on_record=lambda cpu, data: seen.append(("record", struct.unpack_from("<I", data)[0])),
        on_lost=lambda cpu, count: seen.append(("lost", count)),
    ) as buffer:
        sample(collection, 1)
        buffer.consume()
        configure(collection, slot=0, burst=1, length=16)
        sample(collection, 1)
        buffer.consume()
        assert buffer.records() == []
        assert buffer.lost == metric(collection, OUTPUT_FAILED)
    losses = [count for kind, count in seen if kind == "lost"]
    numbers = [number for kind, number in seen if kind == "record"]
    assert sum(losses) == metric(collection, OUTPUT_FAILED) > 0
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    # Before the record behind the gap, the loss.
    gap = next(i for i, (a, b) in enumerate(itertools.pairwise(numbers)) if b != a + 1)
    assert seen[seen.index(("record", numbers[gap])) + 1][0] == "lost"


def test_only_losses_can_be_watched_while_records_are_collected(collection: Collection) -> None:
    configure(collection, slot=0, burst=60, length=1000)
    lost: list[int] = []
    with PerfBuffer(
        collection.maps["trace_events"], pages=1, on_lost=lambda cpu, n: lost.append(n)
    ) as buffer:
        sample(collection, 1)
        taken = buffer.consume()
        configure(collection, slot=0, burst=1, length=16)
        sample(collection, 1)
        taken += buffer.consume()
        assert len(buffer.records()) == taken
    assert sum(lost) == metric(collection, OUTPUT_FAILED)


def test_an_exception_in_a_callback_reaches_the_caller_of_consume(collection: Collection) -> None:
    def fail(cpu: int, data: bytes) -> None:
        raise ZeroDivisionError("mine")

    configure(collection, slot=0, burst=1, length=16)
    with PerfBuffer(collection.maps["trace_events"], on_record=fail) as buffer:
        sample(collection, 1)
        with pytest.raises(ZeroDivisionError, match="mine"):
            buffer.consume()


def test_the_epoll_descriptor_is_ready_after_as_many_records_as_asked(collection: Collection) -> None:
    configure(collection, slot=0, burst=1, length=16)
    with PerfBuffer(collection.maps["trace_events"], wakeup_events=40) as buffer:
        poller = select.poll()
        poller.register(buffer.fileno(), select.POLLIN)
        sample(collection, 2)
        assert metric(collection, RAN_STOP) < 40
        assert poller.poll(0) == []
        sample(collection, 60)
        assert poller.poll(0) != []
        buffer.consume()
        assert poller.poll(0) == []


def test_a_byte_watermark_wakes_too(collection: Collection) -> None:
    configure(collection, slot=0, burst=4, length=1000)
    with PerfBuffer(collection.maps["trace_events"], wakeup_bytes=8000) as buffer:
        sample(collection, 5)
        assert buffer.poll(1000) == metric(collection, RAN_STOP) * 4


def test_poll_without_records_returns_zero(collection: Collection) -> None:
    with PerfBuffer(collection.maps["trace_events"]) as buffer:
        assert buffer.poll(1) == 0
        assert buffer.rings >= 1


def test_a_signal_ends_the_wait_without_an_error(collection: Collection) -> None:
    import signal

    hits: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: hits.append(number))
    try:
        with PerfBuffer(collection.maps["trace_events"]) as buffer:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert buffer.poll(5000) == 0
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert hits == [signal.SIGALRM]


def test_a_wrong_map_or_size_is_refused(collection: Collection) -> None:
    with pytest.raises(BpfError, match="make perf buffers for map settings"):
        PerfBuffer(collection.maps["settings"])
    with pytest.raises(ValueError, match="power of two"):
        PerfBuffer(collection.maps["trace_events"], pages=3)
