# SPDX-License-Identifier: Apache-2.0
"""A garbage collection in progress is a frame of the thread that collects, with its phase."""

from __future__ import annotations

from collections import Counter

import pytest

from rubyunwind import Profiler, Sample

from .spinning import gather, spinning

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299


def collections(sample: Sample) -> list[str]:
    return [frame.label or "" for frame in sample.frames if frame.kind == "gc"]


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_the_thread_that_collects_has_the_frame_and_no_other_thread(unwinder: str) -> None:
    with (
        spinning("collecting.rb", "start", "compress", threads=2) as program,
        Profiler([program.pid], rate=RATE, unwinder=unwinder) as profiler,
    ):
        samples = gather(profiler, 600)
    by_thread = {tid: [sample for sample in samples if sample.tid == tid] for tid, _ in program.stacks}
    collector, other = by_thread.pop(program.pid), *by_thread.values()
    assert len(collector) >= 100
    assert len(other) >= 20
    inside = [sample for sample in collector if collections(sample)]
    assert len(inside) >= 0.9 * len(collector)
    assert set(Counter(phase for sample in inside for phase in collections(sample))) >= {
        "marking",
        "sweeping",
    }
    assert not [sample for sample in other if collections(sample)]
    assert [sample for sample in other if any(frame.label == "deflate" for frame in sample.frames)]


def test_the_frame_stands_between_the_collector_and_the_code_it_interrupts() -> None:
    with spinning("collecting.rb", "start") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = [sample for sample in gather(profiler, 300) if collections(sample)]
    assert all(len(collections(sample)) == 1 for sample in samples)
    complete = [sample for sample in samples if sample.complete]
    assert len(complete) >= 0.99 * len(samples)
    for sample in complete:
        kinds = [frame.kind for frame in sample.frames]
        at = kinds.index("gc")
        assert set(kinds[:at]) <= {"native", "kernel"}
        assert sample.frames[at + 1].label in ("start", "call")  # GC.start is Ruby code of the interpreter's


def test_compaction_is_a_phase_of_its_own() -> None:
    with spinning("collecting.rb", "compact") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, 100)
    phases = Counter(phase for sample in samples for phase in collections(sample))
    assert phases["compacting"] > 0.5 * len(samples)


def test_a_program_that_allocates_nothing_has_no_such_frame() -> None:
    with spinning("recursion.rb", "20") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, 200)
    assert not [sample for sample in samples if collections(sample)]
