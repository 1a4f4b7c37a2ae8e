# SPDX-License-Identifier: Apache-2.0
"""A garbage collection in progress is a frame of the thread that collects, with its phase."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample, record

from .spinning import RUBY, gather, spinning

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


# Prints the milliseconds of CPU time that Ruby itself has spent collecting (since 3.1), and of all.
ALLOCATES = """
GC.measure_total_time = true
kept = Array.new(200_000) { |i| [i.to_s] }
ended = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) + 2
kept[rand(kept.length)] = [Object.new, "a string that is too long for its slot"] while
  Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < ended
puts GC.stat(:time), Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID, :millisecond)
"""


def test_collections_have_the_share_of_time_that_ruby_says(tmp_path: Path) -> None:
    """Time is the process's own CPU time on both sides, so that other programs do not matter."""
    said = tmp_path / "said"
    script = f"$stdout.reopen({str(said)!r})\n{ALLOCATES}"
    profile = record(command=[RUBY, "--disable-gems", "-e", script], rate=499)
    collecting, total = map(int, said.read_text().split())
    samples = list(profile.samples)
    share = sum(bool(collections(sample)) for sample in samples) / len(samples)
    assert collecting > 0.1 * total
    assert abs(share - collecting / total) < 0.05, (share, collecting, total)


def test_compaction_is_a_phase_of_its_own() -> None:
    with spinning("collecting.rb", "compact") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, 100)
    phases = Counter(phase for sample in samples for phase in collections(sample))
    assert phases["compacting"] > 0.5 * len(samples)


def test_a_program_that_allocates_nothing_has_no_such_frame() -> None:
    with spinning("recursion.rb", "20") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, 200)
    assert not [sample for sample in samples if collections(sample)]
