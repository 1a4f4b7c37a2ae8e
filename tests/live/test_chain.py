# SPDX-License-Identifier: Apache-2.0
"""The kernel side by itself: what it counts, reports and sends when its maps say this or that."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.abi import (
    EVENT_TYPE_GENERIC_PID,
    Counter,
    MetricID,
    ProgUnwind,
    RubyTLSInfo,
    RubyTLSKind,
    SystemConfig,
    TraceFlag,
    decode_trace,
)
from rubyunwind.bpf import Collection, PerfBuffer, perf_event_open
from rubyunwind.bpf.compound_maps import PerCPUMap
from rubyunwind.bpf.prefixes import pid_page_key
from rubyunwind.bpf.spec import load_collection_spec

from .spinning import PATIENCE, gather, gather_records, locations, spinning

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299


def key(number: int) -> bytes:
    return number.to_bytes(4, "little")


def metric(collection: Collection, which: MetricID) -> int:
    metrics = collection.maps["metrics"]
    assert isinstance(metrics, PerCPUMap)
    return metrics.total(which)


def counter(collection: Collection, which: Counter) -> int:
    counters = collection.maps["counters"]
    assert isinstance(counters, PerCPUMap)
    return counters.total(which)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@contextmanager
def busy_process() -> Iterator[int]:
    """A process that spins in user mode and is no Ruby."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def sampled(collection: Collection, pid: int) -> Iterator[PerfBuffer]:
    """Run the entry program on a process that nobody registers."""
    traces = PerfBuffer(collection.maps["trace_events"], pages=8)
    with traces, perf_event_open(pid=pid, frequency=RATE, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        yield traces


# ---- the tail-call array ----


def after(profiler: Profiler, count: int = 50) -> list[Sample]:
    """Samples taken from now on: those on their way are dropped."""
    profiler.poll(0)
    gather(profiler, 5)
    return gather(profiler, count)


def test_an_empty_ruby_slot_ends_the_walk_with_a_count_and_keeps_the_leaf() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        del profiler.collection.maps["progs"][key(ProgUnwind.RUBY)]
        samples = after(profiler)
        counted = counter(profiler.collection, Counter.EMPTY_SLOT)
    assert {sample.reason for sample in samples} == {"empty program slot"}
    assert counted >= len(samples)
    assert all(sample.frames and sample.frames[0].kind in ("native", "kernel") for sample in samples)


def test_with_all_slots_empty_no_sample_is_lost() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        collection = profiler.collection
        for slot in (ProgUnwind.NATIVE, ProgUnwind.RUBY, ProgUnwind.STOP):
            del collection.maps["progs"][key(slot)]
        samples = after(profiler)
        taken, sent = counter(collection, Counter.SAMPLES), counter(collection, Counter.SENT)
        failed = counter(collection, Counter.OUTPUT_FAILED)
    assert {sample.reason for sample in samples} == {"empty program slot"}
    assert abs(taken - sent - failed) <= os.cpu_count() * 2  # one may run between the two readings


def test_an_empty_stop_slot_alone_costs_nothing_but_a_mark() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        del profiler.collection.maps["progs"][key(ProgUnwind.STOP)]
        samples = after(profiler)
    exact = [sample for sample in samples if locations(sample) == program.stack]
    assert len(exact) >= 0.99 * len(samples)


# ---- where the execution context comes from ----


def test_a_program_that_fills_only_the_frozen_maps_gets_the_main_ractors_stack() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        del profiler.collection.maps["ruby_tls"][key(program.pid)]
        before = counter(profiler.collection, Counter.EC_FROM_RACTOR)
        samples = after(profiler)
        assert counter(profiler.collection, Counter.EC_FROM_RACTOR) >= before + 50
    exact = [sample for sample in samples if locations(sample) == program.stack]
    assert len(exact) >= 0.99 * len(samples)


def test_a_thread_without_execution_context_gets_no_ruby_frames_and_says_so() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        tls = profiler.collection.maps["ruby_tls"]
        assert RubyTLSInfo.from_bytes(tls[key(program.pid)]).kind == RubyTLSKind.DTV
        # glibc, x86_64: tcbhead_t.sysinfo lies 32 bytes behind the thread pointer and is 0.
        tls[key(program.pid)] = bytes(RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=32))
        samples = after(profiler)
        assert counter(profiler.collection, Counter.NO_EC) >= 50
    assert {sample.reason for sample in samples} == {"no execution context"}
    assert all(frame.kind not in ("ruby", "cfunc") for sample in samples for frame in sample.frames)
    assert all(sample.frames[-1].name == "_start" for sample in samples)


def test_a_process_without_ruby_information_keeps_its_native_leaf() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        del profiler.collection.maps["ruby_procs"][key(program.pid)]
        samples = after(profiler)
        assert metric(profiler.collection, MetricID.UNWIND_RUBY_ERR_NO_PROC_INFO) >= 50
    assert {sample.reason for sample in samples} == {"no Ruby information"}


# ---- records and metrics ----


def test_a_record_ends_behind_its_last_frame() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        records = gather_records(profiler, 50)
    sizes = [(len(record), decode_trace(record).stack_len) for record in records]
    assert min(frames for _, frames in sizes) > 10
    assert all(0 <= size - (80 + 24 * frames) < 8 for size, frames in sizes)


def test_frames_of_each_kind_are_counted_as_metrics() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        samples = gather(profiler, 50) + profiler.stop()
        ruby, native = (
            metric(profiler.collection, which)
            for which in (MetricID.UNWIND_RUBY_FRAMES, MetricID.UNWIND_NATIVE_FRAMES)
        )
    kinds = [frame.kind for sample in samples for frame in sample.frames]
    assert ruby == kinds.count("ruby") + kinds.count("cfunc")
    assert native == kinds.count("native")


def test_flags_say_how_far_a_trace_got() -> None:
    with (
        spinning("bounces.rb", "2") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        traces = [decode_trace(record) for record in gather_records(profiler, 50)]
    whole = TraceFlag.NATIVE_ROOT | TraceFlag.RUBY_MET | TraceFlag.RUBY_BASE | TraceFlag.EC_FROM_TLS
    assert all(trace.flags & ~TraceFlag.KERNEL_MODE == whole for trace in traces)
    assert all(trace.comm == "ruby" and trace.pid == program.pid for trace in traces)


# ---- processes that user space does not know, or not well ----


@pytest.fixture
def collection() -> Iterator[Collection]:
    with load_collection_spec().load(max_entries={"kernel_stackmap": 256}) as loaded:
        yield loaded


def test_samples_of_an_unknown_process_are_counted_and_reported_once(collection: Collection) -> None:
    with busy_process() as pid, sampled(collection, pid) as traces:
        until(lambda: counter(collection, Counter.UNKNOWN_PID) >= 20)
        assert key(pid) in collection.maps["pid_events"]
        assert key(pid) in collection.maps["reported_pids"]
        assert metric(collection, MetricID.NUM_PROC_NEW) == 1
        # Taken off the list but not handled: within the window it is not reported again.
        del collection.maps["pid_events"][key(pid)]
        seen = counter(collection, Counter.UNKNOWN_PID)
        until(lambda: counter(collection, Counter.UNKNOWN_PID) >= seen + 20)
        assert key(pid) not in collection.maps["pid_events"]
        # Handled: the next sample reports it.
        del collection.maps["reported_pids"][key(pid)]
        until(lambda: key(pid) in collection.maps["pid_events"])
        traces.consume()
        assert traces.records() == []


def test_an_old_report_is_repeated_after_its_window(collection: Collection) -> None:
    with busy_process() as pid:
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        window = 30_000_000_000
        collection.maps["reported_pids"][key(pid)] = (now - window // 2).to_bytes(8, "little")
        with sampled(collection, pid):
            until(lambda: counter(collection, Counter.UNKNOWN_PID) >= 20)
            assert key(pid) not in collection.maps["pid_events"]
            collection.maps["reported_pids"][key(pid)] = (now - window - 1).to_bytes(8, "little")
            until(lambda: key(pid) in collection.maps["pid_events"])


def test_one_event_wakes_user_space_until_it_is_armed_again(collection: Collection) -> None:
    inhibit = collection.maps["inhibit_events"]
    with PerfBuffer(collection.maps["report_events"], pages=1) as reports:

        def events() -> int:
            reports.consume()
            return len(reports.records())

        with busy_process() as pid, sampled(collection, pid):
            until(lambda: key(EVENT_TYPE_GENERIC_PID) in inhibit)
            until(lambda: counter(collection, Counter.UNKNOWN_PID) >= 10)
            assert events() == 1
            del collection.maps["reported_pids"][key(pid)]  # reported again, but the latch holds
            until(lambda: key(pid) in collection.maps["reported_pids"])
            assert events() == 0
            del inhibit[key(EVENT_TYPE_GENERIC_PID)]
            del collection.maps["reported_pids"][key(pid)]
            until(lambda: key(EVENT_TYPE_GENERIC_PID) in inhibit)
            assert events() == 1
    assert metric(collection, MetricID.NUM_GENERIC_PID) == 2


def test_an_event_that_nobody_reads_does_not_close_the_latch(collection: Collection) -> None:
    with busy_process() as pid, sampled(collection, pid):
        until(lambda: counter(collection, Counter.EVENT_FAILED) >= 1)
        assert key(EVENT_TYPE_GENERIC_PID) not in collection.maps["inhibit_events"]
        assert key(pid) in collection.maps["pid_events"]


def test_a_report_that_finds_no_room_is_counted_and_tried_again() -> None:
    with load_collection_spec().load(max_entries={"pid_events": 1, "kernel_stackmap": 256}) as collection:
        collection.maps["pid_events"][key(1)] = b"\x01"
        with busy_process() as pid, sampled(collection, pid):
            until(lambda: metric(collection, MetricID.PID_EVENTS_ERR) >= 3)
            del collection.maps["pid_events"][key(1)]
            until(lambda: key(pid) in collection.maps["pid_events"])


def test_code_that_is_not_registered_cuts_the_stack_and_reports_the_process(collection: Collection) -> None:
    with busy_process() as pid:
        collection.maps["pid_page_to_mapping_info"][pid_page_key(pid)] = bytes(16)
        with sampled(collection, pid) as traces:
            until(lambda: metric(collection, MetricID.NUM_UNKNOWN_PC) == 1)
            until(lambda: metric(collection, MetricID.UNWIND_NATIVE_ERR_WRONG_TEXT_SECTION) >= 10)
            assert key(pid) in collection.maps["pid_events"]
            traces.consume()
            records = [decode_trace(record) for _, record in traces.records()]
    assert records
    assert {record.error.name for record in records if record.error} == {"NATIVE_NO_PID_PAGE_MAPPING"}
    assert all(record.stack_len == 1 for record in records if not record.flags & TraceFlag.KERNEL_INLINE)


def test_traces_that_are_only_an_error_can_be_dropped_and_are_counted(collection: Collection) -> None:
    collection.maps["system_config"][key(0)] = bytes(SystemConfig(drop_error_only_traces=True))
    with busy_process() as pid:
        collection.maps["pid_page_to_mapping_info"][pid_page_key(pid)] = bytes(16)
        with sampled(collection, pid) as traces:
            until(lambda: counter(collection, Counter.DROPPED_ERROR_ONLY) >= 10)
            traces.consume()
            records = [decode_trace(record) for _, record in traces.records()]
    # What is sent has a kernel stack besides the error.
    assert all(record.kernel_stack_id >= 0 or record.stack_len > 1 for record in records)


# ---- processes come and go ----


def test_exit_and_exec_of_known_processes_and_forks_of_rubies_are_reported_and_no_others(
    collection: Collection,
) -> None:
    for name in ("process_exit", "process_exec", "process_fork"):
        collection.programs[name].attach_raw_tracepoint()
    events = collection.maps["pid_events"]
    known = collection.maps["pid_page_to_mapping_info"]

    stranger = subprocess.Popen(["true"])
    stranger.wait()
    assert key(stranger.pid) not in events

    fork = 'read go; sh -c "exit 0" & echo $!; wait; '
    script = f'echo ready; {fork}{fork}read go; exec sh -c "read go"'
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"  # its own exec is over
        known[pid_page_key(shell.pid)] = bytes(16)
        shell.stdin.write("fork\n")
        first = int(shell.stdout.readline())
        collection.maps["ruby_procs"][key(shell.pid)] = bytes(32)
        shell.stdin.write("fork\n")
        child = int(shell.stdout.readline())
        until(lambda: key(child) in events)
        assert key(first) not in events
        assert key(shell.pid) not in events
        shell.stdin.write("exec\n")
        until(lambda: key(shell.pid) in events)
        del events[key(shell.pid)]
        shell.stdin.write("exit\n")
        until(lambda: key(shell.pid) in events)
    assert metric(collection, MetricID.NUM_PROC_EXIT) == 1
