# SPDX-License-Identifier: Apache-2.0
"""The flavour for old kernels works on this one as well: finds offsets, samples exactly, follows, forgets."""

from __future__ import annotations

import platform
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from live.spinning import gather, locations, spinning
from rubyunwind import Profiler
from rubyunwind.bpf.btf import Btf
from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.features import LEGACY
from rubyunwind.profiler import tracer
from rubyunwind.profiler.task_layout import find_task_layout
from rubyunwind.profiler.tracer import load_tracer, tracer_spec

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
THREAD_POINTER = {"x86_64": ("thread_struct", "fsbase"), "aarch64": ("thread_struct", "uw")}
PROGRAMS = ["names_with_odd_characters.rb", "rescue_and_ensure.rb", "fiber_in_enumerator.rb"]


@pytest.fixture
def short_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load what a kernel takes that has no programs of more than 4096 instructions."""
    monkeypatch.setattr(tracer, "_with_long_programs", lambda spec: spec)


def test_the_offsets_are_those_of_the_kernels_type_information() -> None:
    if not KERNEL_BTF.exists():
        pytest.skip("this kernel has no type information to compare with")
    layouts = Btf.parse(KERNEL_BTF.read_bytes()).layouts()
    task = dict(layouts["task_struct"].offsets)
    struct_name, member = THREAD_POINTER[platform.machine()]
    expected = (
        task["stack"],
        task["thread"] + dict(layouts[struct_name].offsets)[member],
        task["pid"],
        task["tgid"],
    )
    found: list[tuple[int, int, int, int]] = []

    def look() -> None:
        config, offsets = find_task_layout(tracer_spec(LEGACY))
        found.append((config.task_stack_offset, config.tpbase_offset, offsets.pid, offsets.tgid))

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [expected, expected]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("short_programs")
def test_stacks_are_exact_within_4096_instructions_a_program(program: str) -> None:
    with spinning(program) as running, Profiler([running.pid], rate=199, flavour=LEGACY) as profiler:
        samples = gather(profiler, 100)
    wrong = [locations(sample) for sample in samples if locations(sample) != running.stack]
    assert len(wrong) <= len(samples) // 100, wrong[:3]
    assert {sample.reason for sample in samples if locations(sample) == running.stack} == {None}


@pytest.mark.usefixtures("short_programs")
def test_a_stack_that_takes_too_many_turns_is_exact_as_far_as_it_goes_and_says_that_it_was_cut() -> None:
    with (
        spinning("blocks_and_bmethods.rb") as running,
        Profiler([running.pid], rate=199, flavour=LEGACY) as profiler,
    ):
        samples = gather(profiler, 100)
    right = [
        sample
        for sample in samples
        if sample.reason == "tail calls" and running.stack[: len(locations(sample))] == locations(sample)
    ]
    assert len(right) >= 0.99 * len(samples)
    assert min(len(locations(sample)) for sample in right) >= 10


def test_long_programs_walk_as_many_turns_as_the_other_flavour() -> None:
    with (
        spinning("blocks_and_bmethods.rb") as running,
        Profiler([running.pid], rate=199, flavour=LEGACY) as profiler,
    ):
        samples = gather(profiler, 100)
        assert "unwind_native_long" in profiler.collection.programs
    exact = sum(locations(sample) == running.stack for sample in samples)
    assert exact >= 0.99 * len(samples)


def test_children_are_followed_and_forgotten_when_they_have_ended() -> None:
    script = "pid = fork { t = Time.now; nil while Time.now - t < 1.5 }; Process.wait(pid); sleep"
    with (
        subprocess.Popen(["ruby", "--disable-gems", "-e", script]) as program,
        Profiler([program.pid], rate=199, flavour=LEGACY) as profiler,
    ):
        try:
            seen: set[int] = set()
            followed = profiler.collection.maps["followed_pids"]
            end = time.monotonic() + 30
            while time.monotonic() < end:
                seen |= {sample.pid for sample in profiler.poll(0.1)} - {program.pid}
                left = {int.from_bytes(key, "little") for key in followed} - {0, program.pid}
                if seen and not left:
                    break
            assert len(seen) == 1
            assert left == set()
        finally:
            program.kill()


@pytest.fixture
def loaded() -> Iterator[Collection]:
    with load_tracer(tracer_spec(LEGACY)) as collection:
        yield collection


def test_the_program_that_shows_kernel_memory_is_not_kept(loaded: Collection) -> None:
    assert "analyze_system" not in loaded.programs
    assert "system_analysis" not in loaded.maps


def test_without_the_offsets_there_is_no_ruby_and_nothing_wrong(loaded: Collection) -> None:
    """A kernel that keeps things elsewhere than was found gives samples without an execution context."""
    del loaded
    with (
        spinning("rescue_and_ensure.rb") as running,
        Profiler([running.pid], rate=199, flavour=LEGACY) as profiler,
    ):
        profiler.collection.maps["system_config"][0] = bytes(32)
        gather(profiler, 20)
        samples = gather(profiler, 50)
    for sample in samples:
        assert locations(sample) in ((), running.stack)
