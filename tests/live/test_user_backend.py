# SPDX-License-Identifier: Apache-2.0
"""Sampling from user space, without BPF and without a stop: what it sees, and what it says it did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from rubyunwind import AttachError, Recording, Sample, record
from rubyunwind.bpf.lifetime import LifetimeError
from rubyunwind.profiler.sampled_process import SampledProcess, cpu_time
from rubyunwind.profiler.user_profiler import UserProfiler

from .recorder import Record, hear, labels, process, read_jsonl, refused, ruby, until
from .spinning import PATIENCE, PROGRAMS, RUBY, Spinning, locations, spinning

pytestmark = pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby is installed")

RATE = 299
SAMPLES = 150
SHARE = 0.99
NOBODY = 65534
COUNT = "def work = (i = 0; i += 1 while i < 2 * 9**7)\nwork"
SPIN = "def busy = (nil while true)\nputs :ready; $stdout.flush\nbusy"


def gather(profiler: UserProfiler, count: int) -> list[Sample]:
    samples: list[Sample] = []
    end = time.monotonic() + PATIENCE
    while len(samples) < count:
        assert time.monotonic() < end, (len(samples), profiler.stats)
        samples += profiler.poll()
    return samples


@contextmanager
def user_profile(name: str, *arguments: str, threads: int = 1) -> Iterator[tuple[Spinning, UserProfiler]]:
    with (
        spinning(name, *arguments, threads=threads) as program,
        UserProfiler([program.pid], rate=RATE) as profiler,
    ):
        yield program, profiler


# What it sees


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bounces.rb", ("11",)),
        ("names_with_odd_characters.rb", ()),
        ("recursion.rb", ("100",)),
        ("fiber_in_enumerator.rb", ()),
        ("blocks_and_bmethods.rb", ()),
        ("rescue_and_ensure.rb", ()),
    ],
)
def test_stacks_are_the_programs_own(name: str, arguments: tuple[str, ...]) -> None:
    with user_profile(name, *arguments) as (program, profiler):
        samples = gather(profiler, SAMPLES)
    exact = sum(locations(sample) == program.stack for sample in samples)
    assert exact >= SHARE * len(samples), next(s.frames for s in samples if locations(s) != program.stack)
    assert {(s.pid, s.tid, s.comm, s.backend) for s in samples} == {
        (program.pid, program.pid, "ruby", "user")
    }
    assert {frame.kind for sample in samples for frame in sample.frames} <= {"ruby", "cfunc"}
    assert Counter(sample.reason for sample in samples) == {None: len(samples)}
    assert profiler.runtimes[0].startswith("ruby ")


def test_each_thread_that_gets_the_lock_has_its_own_stack_and_id() -> None:
    with user_profile("two_spinning_threads.rb", threads=2) as (program, profiler):
        samples = gather(profiler, 2 * SAMPLES)
    stacks = dict(program.stacks)
    assert {sample.tid for sample in samples} == set(stacks)
    exact = sum(locations(sample) == stacks[sample.tid] for sample in samples)
    assert exact >= SHARE * len(samples)


def test_a_stack_deeper_than_a_trace_is_cut_at_its_root_and_says_so() -> None:
    with user_profile("recursion.rb", "400") as (program, profiler):
        samples = gather(profiler, 20)
    assert {sample.reason for sample in samples} == {"limit"}
    assert profiler.stats.truncated == profiler.stats.read
    for sample in samples:
        seen = locations(sample)
        assert len(seen) > 100
        assert seen == program.stack[: len(seen)]


def test_no_frame_of_a_program_that_calls_and_collects_all_the_time_is_garbage() -> None:
    path = str(PROGRAMS / "allocating.rb")
    with (
        process(RUBY, "--disable-gems", path) as target,
        UserProfiler([int(hear(target))], rate=RATE) as profiler,
    ):
        samples = gather(profiler, 2 * SAMPLES)
        # How many different stacks so many samples meet is luck: some more, until there are enough to judge.
        end = time.monotonic() + PATIENCE
        while len(set(map(locations, samples))) <= 10 and time.monotonic() < end:
            samples += profiler.poll()
    torn = dict(profiler.stats.failed).get("torn read", 0)
    print(f"torn: {torn} of {torn + len(samples)}")
    assert torn < 0.2 * (torn + len(samples))
    callers = {
        "initialize": "new",
        "new": "grow",
        "*": ("grow", "block in evaluate", "block in churn"),
    }
    ours = {
        *("<main>", "churn", "grow", "initialize", "new", "evaluate", "block in churn", "block in evaluate"),
        *("each", "map", "eval", "*", "to_s", "+", "-", "block (2 levels) in evaluate"),
    }
    for sample in samples:
        frames = sample.frames[sample.frames[0].kind == "gc" :]  # a collection is the leaf
        assert {frame.kind for frame in frames} <= {"ruby", "cfunc"}
        assert {frame.path for frame in frames} <= {path, "evaluated"}
        named = [frame.label for frame in frames]
        assert set(named) <= ours
        assert named[-2:] == ["churn", "<main>"] or named == ["<main>"]
        for frame, caller in pairwise(named):
            if frame in callers:
                assert caller in callers[frame], named
    assert len({tuple(locations(sample)) for sample in samples}) > 10


# How much it counts


def test_the_weights_are_the_cpu_time_in_ticks() -> None:
    with ruby(SPIN) as target:
        hear(target)
        with UserProfiler([target.pid], rate=99) as profiler:
            before = cpu_time(target.pid)
            samples = gather(profiler, 100)
            used = cpu_time(target.pid) - before
    weights = sum(sample.weight for sample in samples)
    assert weights + sum(count for _, count in profiler.stats.failed) == pytest.approx(used / 1e9 * 99, abs=3)
    assert profiler.stats.read == len(samples)


def test_a_program_that_sleeps_has_no_samples() -> None:
    with ruby("puts :ready; $stdout.flush\nsleep") as target:
        hear(target)
        with UserProfiler([target.pid], rate=RATE) as profiler:
            assert list(profiler.samples(0.5)) == []
            assert profiler.running
    assert profiler.ticks > 50


def test_a_program_that_mostly_sleeps_is_mostly_seen_computing() -> None:
    script = """
    def compute = (50_000.times { |i| i * i })
    puts :ready; $stdout.flush
    loop { compute; sleep 0.05 }
    """
    with ruby(script) as target:
        hear(target)
        with UserProfiler([target.pid], rate=999) as profiler:
            samples = gather(profiler, 30)
    computing = sum("compute" in [frame.label for frame in sample.frames] for sample in samples)
    assert computing > 0.5 * len(samples)  # less than one only where it has to wait for a CPU


# Processes that come, change and go


def test_the_end_of_the_process_ends_the_samples() -> None:
    with ruby(f"Thread.new {{ sleep 0.5; exit! }}; {SPIN}") as target:
        hear(target)
        with UserProfiler([target.pid], rate=RATE) as profiler:
            samples = list(profiler.samples())
            assert not profiler.running
            assert profiler.poll(0) == []
    assert samples
    assert not [frame for sample in samples for frame in sample.frames if frame.kind not in ("ruby", "cfunc")]


def test_what_a_process_executes_and_forks_is_followed() -> None:
    script = (
        "def inner = (nil while Process.ppid > 1)\nfork { inner }\nputs :ready; $stdout.flush\nProcess.wait"
    )
    with (
        process("sh", "-c", f"exec {RUBY} --disable-gems -e '{script}'") as target,
        UserProfiler([target.pid], rate=RATE) as profiler,
    ):
        samples = gather(profiler, 30)
    of_child = [sample for sample in samples if sample.pid != target.pid]
    assert len(of_child) > 20
    assert {sample.tid for sample in of_child} == {sample.pid for sample in of_child}
    roots = {tuple(frame.label for frame in sample.frames[-4:]) for sample in of_child}
    assert roots == {("inner", "block in <main>", "fork", "<main>")}


def test_without_children_only_the_process_itself_is_sampled() -> None:
    with ruby(f"fork {{ sleep 0.2; nil while Process.ppid != 1 }}; {SPIN}") as target:
        hear(target)
        with UserProfiler([target.pid], rate=RATE, children=False) as profiler:
            samples = gather(profiler, SAMPLES)
    assert {sample.pid for sample in samples} == {target.pid}


def test_a_process_without_ruby_is_counted_and_noted() -> None:
    with process("sh", "-c", "while :; do :; done") as target:
        with UserProfiler([target.pid], rate=RATE) as profiler:
            assert list(profiler.samples(0.3)) == []
            assert profiler.notes[0] == f"pid {target.pid}: no Ruby was found in it; it is not sampled"
        assert set(dict(profiler.stats.failed)) == {"no Ruby"}
        assert profiler.stats.read == 0
    profiler.close()
    assert profiler.notes


def test_it_refuses_use_out_of_order_and_processes_that_are_not_there() -> None:
    with pytest.raises(LifetimeError, match="not entered yet"):
        UserProfiler([1]).poll()
    with pytest.raises(AttachError, match="no such process"), UserProfiler([2**22 - 1]):
        pass
    with pytest.raises(ValueError, match="a rate of 0 Hz"):
        UserProfiler(rate=0)
    with UserProfiler() as profiler:
        assert not profiler.running
        assert profiler.fileno() >= 0
        with pytest.raises(LifetimeError, match="entered before"):
            profiler.__enter__()
    with pytest.raises(LifetimeError, match="closed"):
        profiler.poll()


def test_descriptors_are_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks
    with ruby(SPIN) as target:
        hear(target)
        with UserProfiler([target.pid], rate=RATE) as profiler:
            gather(profiler, 3)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# The command and the library


def test_the_library_records_with_it() -> None:
    profile = record(command=[RUBY, "--disable-gems", "-e", COUNT], backend="user")
    assert (profile.backend, profile.exit_status) == ("user", 0)
    assert {sample.backend for sample in profile.samples} == {"user"}
    assert profile.totals.read == len(profile.samples) > 3


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="backend 'ptrace': it must be one of auto, bpf, user"):
        Recording(pids=[1], backend="ptrace")


def test_a_recording_names_its_backend_in_every_sample_and_in_the_totals(record: Record) -> None:
    recorder = record("-d", 1, "-o", "out.jsonl", "--", RUBY, "--disable-gems", "-e", SPIN, backend="user")
    until(lambda: recorder.files == {"out.jsonl"}, "no output")
    until(lambda: "wrote" in recorder.err, "it does not end")
    recorder.interrupt(group=True)
    recorder.wait()
    samples = read_jsonl((recorder.folder / "out.jsonl").read_bytes())
    assert {sample["backend"] for sample in samples} == {"user"}
    assert {sample["weight"] for sample in samples} <= set(range(1, 20))
    assert any(labels(sample) == ["busy", "<main>"] for sample in samples)
    assert " at 99 Hz (user): " in recorder.err
    assert "BPF" not in recorder.err


def test_where_bpf_works_auto_uses_it(record: Record, bpf: None) -> None:
    recorder = record("-o", "out.jsonl", "--", RUBY, "--disable-gems", "-e", COUNT, backend="auto")
    assert recorder.wait() == 0
    samples = read_jsonl((recorder.folder / "out.jsonl").read_bytes())
    assert {sample["backend"] for sample in samples} == {"bpf"}


def as_nobody() -> tuple[str, ...]:
    """Words that run a command without any right but to read files (Python may lie below /root)."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return ()
    if setpriv is None:
        pytest.skip("no setpriv to give up rights with")
    capabilities = "-all,+dac_read_search"
    return (
        *(setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *(f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}", f"--bounding-set={capabilities}"),
    )


@pytest.fixture
def nobodys_folder(tmp_path: Path) -> Path:
    if os.geteuid() == 0:
        os.chown(tmp_path, NOBODY, NOBODY)
    return tmp_path


@pytest.mark.usefixtures("nobodys_folder")
@pytest.mark.parametrize("backend", ["auto", "user"])
def test_an_ordinary_user_records_a_command_of_his_own(record: Record, backend: str) -> None:
    words = (RUBY, "--disable-gems", "-e", COUNT)
    recorder = record("-o", "out.jsonl", "--", *words, backend=backend, wrapper=as_nobody())
    assert recorder.wait() == 0, recorder.err
    samples = read_jsonl((recorder.folder / "out.jsonl").read_bytes())
    assert {sample["backend"] for sample in samples} == {"user"}
    assert any(labels(sample) == ["work", "<main>"] for sample in samples)
    said = [line for line in recorder.err.splitlines() if "BPF" in line]
    if backend == "user":
        assert said == []
    else:
        (line,) = said
        assert line.startswith("rubyunwind: BPF is refused (")
        assert "CAP_BPF and CAP_PERFMON" in line
        assert "sampling from user space instead: Ruby frames and C functions only" in line
        assert "no native or kernel frames, and torn samples are dropped" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user: run as root")
@pytest.mark.usefixtures("nobodys_folder")
def test_a_process_of_somebody_else_is_refused_with_the_reason(record: Record) -> None:
    with ruby(SPIN) as target:
        hear(target)
        recorder = record("-p", target.pid, backend="user", wrapper=as_nobody())
        refused(recorder, "its memory may not be read: it belongs to uid 0, we run as uid 65534; run as root")


def test_without_libbpf_auto_falls_back_and_bpf_does_not(record: Record) -> None:
    words = ("-o", "out.jsonl", "--", RUBY, "--disable-gems", "-e", COUNT)
    recorder = record(*words, backend="auto", env={"RUBYUNWIND_LIBBPF": "/nonexistent"})
    assert recorder.wait() == 0
    assert "BPF is refused (no usable libbpf" in recorder.err
    assert read_jsonl((recorder.folder / "out.jsonl").read_bytes())[0]["backend"] == "user"


def test_a_command_that_does_not_exist_is_no_reason_to_fall_back(record: Record) -> None:
    refused(record("-o", "profile", "--", "nosuch", backend="user"), "cannot run nosuch", status=127)


@pytest.fixture
def spinning_process() -> Iterator[Callable[[], subprocess.Popen[str]]]:
    with ruby(SPIN) as target:
        hear(target)
        yield lambda: target


def test_the_identity_of_a_process_is_kept(spinning_process: Callable[[], subprocess.Popen[str]]) -> None:
    from rubyunwind.bpf.hosted import HostedCollection

    target = spinning_process()
    with HostedCollection() as collection:
        sampled = SampledProcess(target.pid, collection)
        sampled.sync()
        assert sampled.ruby is not None
        target.kill()
        target.wait()
        with pytest.raises(AttachError, match="has ended"):
            sampled.sync()
        sampled.close()
        sampled.close()
