# SPDX-License-Identifier: Apache-2.0
"""Perf events: who is sampled, and what a refusal advises."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.perf_event import PERF_TYPE_HARDWARE, perf_event_open
from rubyunwind.bpf.spec import load_collection_spec
from rubyunwind.errors import BpfError

from .loader_program import EMPTY_SLOT, RAN_ENTRY, configure, metric, spin_until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("bpf")]
EMPTY = 8  # a slot without a program


@pytest.fixture
def collection(loader_object: Path) -> Iterator[Collection]:
    with load_collection_spec(path=loader_object).load() as loaded:
        yield loaded


def spin(seconds: float) -> None:
    """Use that much CPU time, however busy the machine is: the clock of the event is the same."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def spin_in_thread(seconds: float) -> None:
    thread = threading.Thread(target=spin, args=(seconds,))
    thread.start()
    thread.join()


def test_disabled_events_do_not_tick_until_enabled(collection: Collection) -> None:
    configure(collection, EMPTY)
    with perf_event_open(pid=0, frequency=999, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        spin(0.05)
        assert metric(collection, RAN_ENTRY) == 0
        event.enable()
        spin_until(collection, EMPTY_SLOT, 3)
        event.disable()
        seen = metric(collection, RAN_ENTRY)
        spin(0.05)
        assert metric(collection, RAN_ENTRY) == seen


@pytest.mark.parametrize(
    ("inherit", "sampled"), [({}, False), ({"inherit": True}, True), ({"inherit_thread": True}, True)]
)
def test_threads_started_later_are_sampled_only_when_inherited(
    collection: Collection, inherit: dict[str, bool], sampled: bool
) -> None:
    configure(collection, EMPTY)
    with perf_event_open(pid=0, frequency=999, disabled=True, **inherit) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        before = metric(collection, RAN_ENTRY)
        spin_in_thread(0.2)
        rose = metric(collection, RAN_ENTRY) - before
    # The waiting main thread itself gets a few ticks.
    assert (rose > 50) is sampled, rose


@pytest.mark.parametrize(
    ("inherit", "sampled"), [({"inherit": True}, True), ({"inherit_thread": True}, False)]
)
def test_children_are_sampled_with_inherit_not_with_inherit_thread(
    collection: Collection, inherit: dict[str, bool], sampled: bool
) -> None:
    start, go = os.pipe()
    with perf_event_open(pid=0, frequency=999, disabled=True, **inherit) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        child = os.fork()
        if child == 0:
            os.read(start, 1)
            spin(0.2)
            os._exit(0)
        configure(collection, EMPTY, pid=child)
        os.write(go, b"x")
        os.waitpid(child, 0)
    os.close(start)
    os.close(go)
    assert (metric(collection, RAN_ENTRY) > 50) is sampled


def test_enable_on_exec_starts_at_exec(collection: Collection) -> None:
    start, go = os.pipe()
    spun, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(start, 1)
        spin(0.1)
        os.write(tell, b"x")
        os.read(start, 1)
        os.execvp("sh", ["sh", "-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"])
    configure(collection, EMPTY, pid=child)
    with perf_event_open(pid=child, frequency=999, disabled=True, enable_on_exec=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        os.write(go, b"x")
        os.read(spun, 1)
        assert metric(collection, RAN_ENTRY) == 0
        os.write(go, b"x")
        os.waitpid(child, 0)
    for fd in (start, go, spun, tell):
        os.close(fd)
    assert metric(collection, RAN_ENTRY) > 5


def test_period_counts_nanoseconds(collection: Collection) -> None:
    configure(collection, EMPTY)
    with perf_event_open(pid=0, period=1_000_000, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        spin_until(collection, RAN_ENTRY, 10)


def test_a_second_program_on_one_event_is_refused(collection: Collection) -> None:
    with perf_event_open(pid=0, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        with pytest.raises(BpfError, match="attach a program to perf event on the calling thread") as caught:
            event.attach(collection.programs["unwind_stop"])
    assert caught.value.errno == errno.EEXIST


def test_a_thread_that_is_gone_is_named() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BpfError, match=f"there is no thread {child}; it may have exited") as caught:
        perf_event_open(pid=child)
    assert caught.value.errno == errno.ESRCH


def test_a_rate_above_the_limit_is_reported_with_the_limit() -> None:
    limit = Path("/proc/sys/kernel/perf_event_max_sample_rate").read_text().strip()
    with pytest.raises(BpfError, match=f"10000000 Hz is above .*max_sample_rate, which is {limit}"):
        perf_event_open(pid=0, frequency=10_000_000)


def test_all_threads_need_a_cpu() -> None:
    with pytest.raises(BpfError, match="on a given, existing CPU only"):
        perf_event_open(pid=-1, cpu=-1)


def test_a_missing_counter_advises_the_software_clock() -> None:
    with pytest.raises(BpfError, match="use the software cpu-clock") as caught:
        perf_event_open(pid=0, kind=PERF_TYPE_HARDWARE, config=0x7F)
    assert caught.value.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)


def test_no_descriptors_left_advises_the_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(BpfError, match="raise RLIMIT_NOFILE"):
            perf_event_open(pid=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_rights_paranoid_is_told() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            try:
                perf_event_open(cpu=0)
                answer = "opened"
            except BpfError as error:
                answer = str(error)
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read().decode()
    os.waitpid(child, 0)
    assert "kernel.perf_event_paranoid is" in answer
    assert "CAP_PERFMON" in answer
