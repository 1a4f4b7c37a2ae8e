# SPDX-License-Identifier: Apache-2.0
"""Where threads wait and for how long: held against the program's own stacks and its own clock."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rubyunwind import NotSupported, OffCPU, Profiler, Sample
from rubyunwind.abi import Counter
from rubyunwind.bpf.features import LEGACY
from rubyunwind.profiler import tracer
from rubyunwind.profiler.waits import LOCK

from .recorder import Record, column, page_data, read_jsonl
from .spinning import PATIENCE, PROGRAMS, RUBY, locations

pytestmark = pytest.mark.usefixtures("bpf")

# Of the time that the program's clock shows. It holds some time on the CPU, too.
SHARE = 0.05
# Lines that waiting.rb prints once it has been let go: four threads, a child, and the wait without end.
SAID = 6


class Waiting:
    """A Ruby program that waits on standard input before it begins."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [RUBY, "--disable-gems", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # so that select knows of every line
        )
        self.pid = self.process.pid

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def ruby(*arguments: str) -> Iterator[Waiting]:
    program = Waiting(*arguments)
    try:
        assert program.line(), "it ended before it was ready"
        yield program
    finally:
        program.end()


def during(profiler: Profiler, seconds: float) -> list[Sample]:
    end, found = time.monotonic() + seconds, []
    while time.monotonic() < end:
        found += list(profiler.poll(0.05))
    return found


@contextmanager
def waits() -> Iterator[Waiting]:
    with ruby(str(PROGRAMS / "waiting.rb")) as program:
        yield program


def recorded(wish: OffCPU | str | bool = "only") -> tuple[list[Sample], list[dict[str, Any]], Profiler]:
    """Record waiting.rb from where it is let go, until a moment after all that ends has ended."""
    with waits() as program, Profiler([program.pid], off_cpu=wish) as profiler:
        program.go()
        assert program.process.stdout is not None
        samples, said = [], []
        output = program.process.stdout
        end = time.monotonic() + PATIENCE
        while len(said) < SAID and time.monotonic() < end:
            samples += list(profiler.poll(0.05))
            while len(said) < SAID and select.select([output], [], [], 0)[0]:
                said.append(json.loads(output.readline()))
        samples += during(profiler, 0.3)
        samples += list(profiler.stop())
    assert len(said) == SAID
    return samples, said, profiler


def own_frames(frames: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(frame) for frame in frames)


@pytest.fixture(scope="module")
def recording() -> tuple[list[Sample], list[dict[str, Any]], Profiler]:
    return recorded()


Recorded = tuple[list[Sample], list[dict[str, Any]], Profiler]


@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("sleeping", "sleep"),
        ("popping", "pop"),
        ("reading", "sysread"),
        ("locking", "lock"),
        ("child", "sleep"),
    ],
)
def test_a_wait_has_its_stack_and_its_time(recording: Recorded, kind: str, function: str) -> None:
    samples, said, _ = recording
    (truth,) = [one for one in said if one.get("kind") == kind]
    mine = [sample for sample in samples if (sample.pid, sample.tid) == (truth["pid"], truth["tid"])]
    method = truth["frames"][0][2]
    in_it = [s for s in mine if any(frame.label == method for frame in s.frames)]
    total = sum(sample.weight for sample in in_it)
    if kind == "child":  # until it is registered it has the time, and no frames of its own
        early = [sample for sample in mine if {frame.kind for frame in sample.frames} == {"kernel"}]
        assert {sample.reason for sample in early} <= {"unmapped pc"}
        total += sum(sample.weight for sample in early)
    assert abs(total - truth["ns"]) <= SHARE * truth["ns"], (total, truth["ns"])
    place = tuple(truth["frames"][0][:2])
    stacks: Tally[tuple[Any, ...]] = Tally()
    for sample in in_it:
        stacks[locations(sample)] += sample.weight
    expected = ((*place, function), *own_frames(truth["frames"]))
    stack, weight = stacks.most_common(1)[0]
    assert stack == expected
    assert weight >= (1 - SHARE) * sum(stacks.values())
    longest = sorted(in_it, key=lambda sample: -sample.weight)[: truth["rounds"] - 1]
    assert all(sample.complete for sample in longest)
    assert all(sample.frames[0].kind == "kernel" for sample in longest)


def test_samples_are_off_cpu_and_in_ns_only(recording: Recorded) -> None:
    samples, said, _ = recording
    assert {(sample.origin, sample.unit) for sample in samples} == {("off-cpu", "ns")}
    assert {sample.pid for sample in samples} == {one["pid"] for one in said}


def test_who_still_waits_at_the_end_is_there_with_the_time_so_far(recording: Recorded) -> None:
    samples, said, profiler = recording
    (truth,) = [one for one in said if "spins" in one]
    last = [sample for sample in samples if sample.tid == truth["tid"]][-1]
    line = truth["frames"][0][1]
    assert locations(last)[0] == (str(PROGRAMS / "waiting.rb"), line, "sleep")
    assert last.weight >= 0.2e9  # it was watched for 0.3 s after it had said so
    assert last.cpu == -1
    switches = profiler.stats.switches
    assert switches is not None
    assert switches.waiting >= 1


def test_every_switch_is_accounted_for(recording: Recorded) -> None:
    samples, _, profiler = recording
    counters, switches = profiler.counters, profiler.stats.switches
    assert switches is not None
    assert switches.seen == counters[Counter.OFF_CPU_SWITCHES]
    assert switches.seen == switches.sent + switches.waiting + switches.failed
    assert switches.not_chosen == switches.short == 0
    assert len(samples) == switches.sent + switches.waiting == profiler.stats.read
    assert profiler.stats.lost == counters[Counter.OFF_CPU_OUTPUT_FAILED] == 0


NAPS = "puts; $stdout.flush; gets; %s.times { sleep(%s) }; puts; $stdout.flush; sleep"


def napping(count: int, seconds: float, wish: OffCPU) -> tuple[list[Sample], Profiler]:
    program = NAPS % (count, seconds)
    with ruby("-e", program) as target, Profiler([target.pid], off_cpu=wish) as profiler:
        target.go()
        samples = during(profiler, count * (seconds + 0.0003) + 0.5)
        assert target.line()
        samples += list(profiler.stop())
    return samples, profiler


def test_waits_are_chosen_by_probability_and_weighted_back() -> None:
    samples, profiler = napping(3000, 0.0005, OffCPU(only=True, probability=0.25))
    switches = profiler.stats.switches
    assert switches is not None
    assert switches.seen >= 3000
    assert switches.seen == switches.sent + switches.not_chosen + switches.waiting + switches.failed
    # Standard deviations: 0.008 of the share, and 0.03 of the sum.
    assert abs(switches.not_chosen / switches.seen - 0.75) < 0.05
    naps = [sample for sample in samples if any(frame.label == "sleep" for frame in sample.frames)]
    mean = sum(sample.weight for sample in naps) / 4 / len(naps)
    assert mean >= 0.5e6
    assert abs(sum(sample.weight for sample in naps) - 3000 * mean) < 0.2 * 3000 * mean


def test_short_waits_are_counted_with_their_time() -> None:
    samples, profiler = napping(50, 0.002, OffCPU(only=True, shortest=0.2))
    switches = profiler.stats.switches
    assert switches is not None
    assert switches.short >= 50
    assert switches.short_ns >= 50 * 2e6
    assert all(sample.weight >= 0.2e9 for sample in samples if sample.cpu >= 0)
    assert switches.seen == switches.sent + switches.short + switches.waiting + switches.failed


def test_threads_that_take_turns_wait_for_the_lock() -> None:
    spin = "Thread.new { nil while true }; puts; $stdout.flush; gets; nil while true"
    with ruby("-e", spin) as program, Profiler([program.pid], off_cpu="only") as profiler:
        program.go()
        began = time.monotonic()
        samples = during(profiler, 1.5)
        samples += list(profiler.stop())
        seconds = time.monotonic() - began
    waited: Tally[int] = Tally()
    for sample in samples:
        if LOCK in sample.frames:
            waited[sample.tid] += sample.weight
    # Of the two one has the lock and the other waits for it.
    assert len(waited) == 2
    assert 0.7 * seconds <= sum(waited.values()) / 1e9 <= 1.1 * seconds


def test_the_stack_of_a_thread_that_ends_with_its_process_has_names(record: Record, tmp_path: Path) -> None:
    # It is known for a Ruby before the thread begins to wait.
    program = "sleep 0.3\ndef waits = Queue.new.pop\nThread.new { waits }; sleep 0.6; exit!(0)"
    recorder = record("--off-cpu=only", "-o", "p.jsonl", "--", RUBY, "--disable-gems", "-e", program)
    assert recorder.wait() == 0
    samples = read_jsonl((tmp_path / "p.jsonl").read_bytes())
    long = [sample for sample in samples if sample["weight"] > 0.4e9]
    names = [[frame.get("label") for frame in sample["frames"]] for sample in long]
    assert any("pop" in each and "waits" in each for each in names), names


def test_both_are_recorded_and_never_added_up(record: Record, tmp_path: Path) -> None:
    # CLOCK_PROCESS_CPUTIME_ID is 2.
    program = "sleep 0.3; nil while Process.clock_gettime(2) < 0.5"
    command = ("--", RUBY, "--disable-gems", "-e", program)
    for name in ("p.jsonl", "p.folded", "p.html"):
        assert record("--off-cpu", "-r", 299, "-o", name, *command).wait() == 0
    samples = read_jsonl((tmp_path / "p.jsonl").read_bytes())
    units = {(sample["origin"], sample["unit"]) for sample in samples}
    assert units == {("sampling", "samples"), ("off-cpu", "ns")}
    lines = (tmp_path / "p.folded").read_text().splitlines()
    assert {line.partition(";")[0] for line in lines} == {"[samples]", "[ns]"}
    page = page_data((tmp_path / "p.html").read_bytes())
    weights: Tally[str] = Tally()
    units = [page["strings"][unit] for *_, unit in page["tracks"]]
    for track, weight in zip(
        column(page["weights"]["track"]), column(page["weights"]["weight"]), strict=True
    ):
        weights[units[track]] += int(weight)
    assert weights.keys() == {"samples", "ns"}
    assert 30 <= weights["samples"] <= 400
    assert weights["ns"] >= 0.3e9


def test_the_recorder_says_what_became_of_the_switches(record: Record) -> None:
    command = ("--", RUBY, "--disable-gems", "-e", "20.times { sleep 0.002 }; sleep 0.2")
    options = ("--off-cpu", "--off-cpu-shortest", "0.1", "--off-cpu-probability", "1")
    recorder = record(*options, "-o", "p.jsonl", *command)
    assert recorder.wait() == 0
    (line,) = [line for line in recorder.err.splitlines() if "threads left their CPU" in line]
    assert "were too short" in line
    assert "not chosen" not in line


@pytest.mark.parametrize("loop", [True, False])
def test_programs_with_and_without_bpf_loop_take_the_same_stack(
    monkeypatch: pytest.MonkeyPatch, loop: bool
) -> None:
    has = tracer._has
    if loop and not has("helper loop"):
        pytest.skip("this kernel has no bpf_loop")
    monkeypatch.setattr(tracer, "_has", lambda feature: loop if feature == "helper loop" else has(feature))
    deep = "def down(n) = n.zero? ? sleep(0.1) : down(n - 1)\nputs; $stdout.flush; gets; down(700); sleep"
    with ruby("-e", deep) as program, Profiler([program.pid], off_cpu="only") as profiler:
        program.go()
        samples = during(profiler, 0.8)
    (sample,) = [sample for sample in samples if sample.weight > 0.09e9]
    assert [frame.label for frame in sample.frames].count("down") == 701
    assert sample.complete


def test_nobody_else_is_recorded() -> None:
    other = subprocess.Popen([RUBY, "--disable-gems", "-e", "loop { sleep 0.001 }"])
    try:
        _, profiler = napping(20, 0.02, OffCPU(only=True))
    finally:
        other.kill()
        other.wait()
    switches = profiler.stats.switches
    assert switches is not None
    assert 20 <= switches.seen < 200


def test_the_chain_and_old_kernels_have_none() -> None:
    with pytest.raises(NotSupported, match="off-CPU stacks are taken by the walker only") as caught:
        tracer.load_tracer(tracer.tracer_spec(LEGACY), off_cpu=OffCPU())
    assert caught.value.needs == "Linux 5.10 with CONFIG_DEBUG_INFO_BTF"
    with (
        pytest.raises(NotSupported, match="leave the unwinder out"),
        Profiler([], unwinder="chain", off_cpu=True),
    ):
        pass
