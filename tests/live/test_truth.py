# SPDX-License-Identifier: Apache-2.0
"""Ruby is the oracle: a program prints caller_locations, spins there, and the profiler must say the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample, record
from rubyunwind.abi import PROG_UNWIND_RUBY, OffsetRange

from .programs import YJIT, Program, runnable
from .spinning import HERE, RUBY, Location, difference, gather, locations, spinning, started

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299
SAMPLES = 200
SHARE = 0.99  # of samples that must be exact; the rest may be in between two instructions of the spin


def exactness(samples: list[Sample], expected: object) -> float:
    return sum(locations(sample) == expected for sample in samples) / len(samples)


def first_difference(samples: list[Sample], expected: tuple[Location, ...]) -> str:
    """Say where the first stack that is not the expected one leaves it."""
    return next(filter(None, (difference(locations(sample), expected) for sample in samples)), "")


@pytest.mark.parametrize("program", runnable(HERE.start), ids=str)
def test_ruby_frames_and_c_functions_are_rubys_own(program: Program) -> None:
    with started(program) as running, Profiler([running.pid], rate=RATE) as profiler:
        spins = [tid for tid, _ in running.stacks if tid not in running.waiting]
        samples = gather(profiler, SAMPLES * len(spins))
    stacks = dict(running.stacks)
    assert {sample.pid for sample in samples} == {running.pid}
    assert set(spins) <= {sample.tid for sample in samples} <= set(stacks)
    for tid, stack in running.stacks:
        mine = [sample for sample in samples if sample.tid == tid]
        if mine:
            share = exactness(mine, stack)
            assert share >= program.share, f"{share:.3f} exact; {first_difference(mine, stack)}"
            if program.share == 1.0:
                assert {sample.reason for sample in mine} == {program.reason}


def test_a_ruby_that_became_another_by_exec_is_named_as_soon_as_it_runs() -> None:
    with (
        spinning("exec_of_another_ruby.rb", "late") as program,
        Profiler([program.pid], rate=RATE) as profiler,
    ):
        samples = gather(profiler, 3 * SAMPLES)
    path = program.stack[0][0]
    lines = ((18, "block in second_life"), (18, "each"), (18, "second_life"), (25, "<main>"))
    labels = [{label for _, _, label in locations(sample)} for sample in samples]
    assert not [one for one in labels if {"first_life", "second_life"} <= one]
    assert not [label for one in labels for label in one if label.startswith("[")]
    # What is whole and is done with printing.
    spin = [
        sample
        for sample, one in zip(samples, labels, strict=True)
        if sample.complete and "second_life" in one and "expect" not in one
    ]
    assert len(spin) >= SAMPLES
    assert exactness(spin, tuple((path, *line) for line in lines)) >= SHARE


def test_each_method_has_one_name_and_no_frame_is_unknown(tmp_path: Path) -> None:
    """Blocks that C functions call, seen while they are entered and left, are no other method's."""
    script = tmp_path / "names.rb"
    script.write_text(
        "def foo = 10.times { bar }\n"
        "def bar = 6000.times { baz }\n"
        "def baz = GC.stat\n"
        "ended = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 3\n"
        "foo while Process.clock_gettime(Process::CLOCK_MONOTONIC) < ended\n"
    )
    samples = record(command=[RUBY, "--disable-gems", str(script)], rate=499).samples
    # Ruby starts with a frame whose code it frees before the program's first line, within a few milliseconds.
    begun = min(one.timestamp for one in samples if any(frame.path == str(script) for frame in one.frames))
    frames, starting = (
        {
            (frame.kind, frame.label, frame.name)
            for sample in samples
            for frame in sample.frames
            if frame.kind not in ("native", "kernel", "gc") and (sample.timestamp >= begun) is running
        }
        for running in (True, False)
    )
    assert {name for kind, _, name in starting if kind == "unknown"} <= {"[Ruby code that was freed]"}
    mine = {label: {(k, n) for k, at, n in frames if at == label} for label in ("foo", "bar", "baz", "times")}
    assert mine == {
        "foo": {("ruby", "Object#foo")},
        "bar": {("ruby", "Object#bar")},
        "baz": {("ruby", "Object#baz")},
        "times": {("cfunc" if ("cfunc", "times", "Integer#times") in frames else "ruby", "Integer#times")},
    }
    assert ("cfunc", "stat", "GC.stat") in frames or ("ruby", "stat", "GC.stat") in frames
    assert {kind for kind, _, _ in frames} == {"ruby", "cfunc"}


@pytest.mark.parametrize(
    "name", ["blocks_and_bmethods.rb", "callables.rb", "callbacks_from_c.rb", "loops.rb"]
)
def test_a_stack_through_compiled_code_is_whole_and_shows_it(name: str) -> None:
    program = Program(name, options=YJIT)
    if not runnable(HERE.start, among=[program]):
        pytest.skip("this Ruby was built without YJIT")
    with started(program) as running, Profiler([running.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    assert {sample.reason for sample in samples} == {None}
    assert all(any(frame.kind == "jit" for frame in sample.frames) for sample in samples)


@pytest.mark.parametrize(
    ("name", "argument"), [("bounces.rb", "11"), ("fiber_in_enumerator.rb", ""), ("recursion.rb", "100")]
)
def test_every_stack_within_the_limits_is_whole(name: str, argument: str) -> None:
    with spinning(name, argument) as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    assert Counter(sample.reason for sample in samples) == {None: len(samples)}
    for sample in samples:
        kinds = [frame.kind for frame in sample.frames]
        assert kinds[-1] == "native"  # _start, the entry of a thread or of a fiber
        assert "ruby" in kinds


def test_ruby_frames_are_inside_the_interpreter_that_runs_them() -> None:
    """Root first: the loop, its Ruby frames, the C function they call, that one's code, the next loop."""
    with spinning("bounces.rb", "3") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    plain = [sample for sample in samples if locations(sample) == program.stack]
    assert len(plain) >= SHARE * len(samples)
    for sample in plain:
        root_first = [frame for frame in reversed(sample.frames) if frame.kind != "kernel"]
        loops = [i for i, frame in enumerate(root_first) if frame.name == "rb_vm_exec"]
        assert len(loops) == 4, [frame.name for frame in root_first]
        for loop, following in zip(loops, [*loops[1:], None], strict=True):
            inside = root_first[loop + 1 : following]
            kinds = "".join(frame.kind[0] for frame in inside)  # r, c, n
            ruby = kinds.rstrip("n")
            if following is not None:
                assert ruby.endswith("c"), kinds  # Array#each, then its native code
                assert inside[len(ruby) - 1].label == "each"
                assert "rb_ary_each" in [frame.name for frame in inside[len(ruby) :]]
            assert set(ruby) <= {"r", "c"}, kinds


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_a_part_of_the_loop_that_the_compiler_moved_away_is_the_loop_too(unwinder: str) -> None:
    with (
        spinning("bounces.rb", "3") as program,
        Profiler([program.pid], rate=RATE, unwinder=unwinder) as profiler,
    ):
        # This build has its loop in one piece: all of it becomes the second part.
        loops, cold = (
            profiler.collection.maps[name] for name in ("interpreter_offsets", "interpreter_cold_offsets")
        )
        ((key, whole),) = loops.items()
        cold[key] = whole
        loops[key] = bytes(OffsetRange(lower_offset=1, upper_offset=2, program_index=PROG_UNWIND_RUBY))
        profiler.poll(0.1)
        samples = gather(profiler, SAMPLES)
    assert exactness(samples, program.stack) >= SHARE
    assert all(sample.complete for sample in samples)


def test_no_sample_of_a_thread_shows_the_stack_of_another() -> None:
    with (
        spinning("two_spinning_threads.rb", threads=2) as program,
        Profiler([program.pid], rate=RATE) as profiler,
    ):
        samples = gather(profiler, 2 * SAMPLES)
    stacks = dict(program.stacks)
    labels = {tid: stack[0][2] for tid, stack in stacks.items()}
    assert sorted(labels.values()) == ["block in second_spinner", "first_spinner"]
    by_thread: dict[int, list[Sample]] = {tid: [s for s in samples if s.tid == tid] for tid in stacks}
    for tid, stack in stacks.items():
        mine = by_thread[tid]
        assert mine, f"thread {tid} was never sampled"
        assert exactness(mine, stack) >= SHARE
        foreign = {label for other, label in labels.items() if other != tid}
        assert not [s for s in mine if foreign & {frame.label for frame in s.frames}]


@pytest.mark.parametrize(
    ("program", "argument", "frames"), [("recursion.rb", "1000", 1002), ("bounces.rb", "200", 602)]
)
def test_stacks_of_rails_depth_are_whole_in_one_sample(program: str, argument: str, frames: int) -> None:
    """A thousand Ruby frames; 200 turns between Ruby and C, with 1,200 native frames."""
    with spinning(program, argument) as running, Profiler([running.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
        totals = profiler.stats
    assert len(running.stack) == frames
    assert exactness(samples, running.stack) >= SHARE
    assert sum(sample.complete for sample in samples) >= SHARE * len(samples)
    assert totals.lost == 0


@pytest.mark.parametrize(("unwinder", "depth", "most"), [("chain", "400", 127), ("walker", "12000", 2599)])
def test_a_stack_deeper_than_the_record_is_cut_at_its_root_and_says_so(
    unwinder: str, depth: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBY_THREAD_VM_STACK_SIZE", str(16 << 20))  # bytes; a megabyte holds 10,000 frames
    with (
        spinning("recursion.rb", depth) as program,
        Profiler([program.pid], rate=RATE, unwinder=unwinder) as profiler,
    ):
        samples = gather(profiler, SAMPLES)
        totals = profiler.stats
    assert {sample.reason for sample in samples} == {"limit"}
    assert totals.truncated == totals.read
    assert dict(totals.failed)["limit"] == totals.read
    exact = [
        s
        for s in samples
        if locations(s) == program.stack[: len(locations(s))] and most - 8 < len(locations(s)) <= most
    ]
    assert len(exact) >= SHARE * len(samples)


def test_fewer_frames_than_there_is_room_for_may_be_asked_for() -> None:
    with (
        spinning("recursion.rb", "100") as program,
        Profiler([program.pid], rate=RATE, max_frames=50) as profiler,
    ):
        samples = gather(profiler, SAMPLES)
    assert {sample.reason for sample in samples} == {"limit"}
    # Of 50 one is the error, which is no place.
    assert {len(sample.frames) for sample in samples} == {49}
    assert all(locations(s) == program.stack[: len(locations(s))] for s in samples)


def test_more_bounces_than_tail_calls_are_cut_at_the_root_and_say_so() -> None:
    with (
        spinning("bounces.rb", "15") as program,
        Profiler([program.pid], rate=RATE, unwinder="chain") as profiler,
    ):
        samples = gather(profiler, SAMPLES)
    assert {sample.reason for sample in samples} <= {"limit", "tail calls"}
    exact = [s for s in samples if locations(s) == program.stack[: len(locations(s))]]
    assert len(exact) >= SHARE * len(samples)
