# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from rubyunwind.profiler.sample import Frame
from rubyunwind.profiler.waits import LOCK, RUNNABLE, waiting_frames

RUBY = "/usr/lib/libruby.so"


def kernel(*names: str) -> list[Frame]:
    return [Frame("kernel", name) for name in names]


def libc(*names: str) -> list[Frame]:
    return [Frame("native", name, module="/lib/libc.so.6") for name in names]


def ruby(*names: str) -> list[Frame]:
    return [Frame("native", name, module=RUBY) for name in names]


METHOD = [Frame("ruby", "spin", "spin", "/a.rb", 1)]
CONDITION = libc("libc.so.6+0x1", "pthread_cond_wait")
WAIT = [*kernel("schedule", "futex_wait"), *CONDITION]


def test_what_the_switch_itself_runs_is_left_out() -> None:
    frames = [*kernel("bpf_prog_1", "bpf_trace_run4", "__schedule", "schedule", "futex_wait"), *METHOD]
    assert waiting_frames(frames, runnable=False) == [*kernel("schedule", "futex_wait"), *METHOD]


def test_without_kernel_names_nothing_is_left_out() -> None:
    frames = [*[Frame("kernel", "[kernel]", offset=at) for at in range(20)], *METHOD]
    assert waiting_frames(frames, runnable=False) == frames


def test_only_frames_of_the_kernel_are_left_out() -> None:
    frames = [*kernel("a"), Frame("native", "b"), *kernel("__schedule")]
    assert waiting_frames(frames, runnable=False) == frames
    assert waiting_frames([], runnable=False) == []


def test_a_thread_that_could_go_on_says_so() -> None:
    frames = [*kernel("schedule"), *ruby("gvl_acquire"), *METHOD]
    assert waiting_frames(frames, runnable=True) == [RUNNABLE, *frames]


@pytest.mark.parametrize(
    "name", ["gvl_acquire_internal", "thread_sched_to_running", "thread_sched_to_running_common.isra.0"]
)
def test_a_thread_in_what_takes_the_lock_waits_for_it(name: str) -> None:
    frames = [*WAIT, *ruby("rb_native_cond_wait", name, "blocking_region_end", "rb_nogvl"), *METHOD]
    assert waiting_frames(frames, runnable=False) == [LOCK, *frames]


@pytest.mark.parametrize("name", ["rb_threadptr_execute_interrupts", "rb_thread_schedule"])
def test_a_stripped_ruby_that_hands_the_lock_over_waits_for_it(name: str) -> None:
    frames = [*WAIT, *ruby("libruby.so+0x1", "libruby.so+0x2", name, "libruby.so+0x3"), *METHOD]
    assert waiting_frames(frames, runnable=False) == [LOCK, *frames]


@pytest.mark.parametrize(
    "inner",
    [
        [],
        ruby("libruby.so+0x1"),  # Ruby itself is what called the kernel
        libc("read"),
        libc("pthread_cond_wait"),  # nobody else: not as the lock is taken
        [*libc("read"), *ruby("libruby.so+0x1")],
        [*CONDITION, Frame("native", "work", module="/a/extension.so"), *ruby("libruby.so+0x1")],
        [*CONDITION, *ruby("libruby.so+0x1"), *METHOD, *ruby("rb_vm_exec")],
        [*CONDITION, *ruby("libruby.so+0x1"), *libc("qsort"), *ruby("libruby.so+0x2")],
    ],
)
def test_other_waits_below_it_are_not_taken_for_the_lock(inner: list[Frame]) -> None:
    frames = [*kernel("schedule"), *inner, *ruby("rb_threadptr_execute_interrupts"), *METHOD]
    assert LOCK not in waiting_frames(frames, runnable=False)


def test_a_sleep_is_no_wait_for_the_lock() -> None:
    # From 3.3 on a thread that sleeps waits where others wait for their turn.
    frames = [*WAIT, *ruby("thread_sched_wait_running_turn", "native_sleep", "sleep_forever"), *METHOD]
    assert waiting_frames(frames, runnable=False) == frames
