# SPDX-License-Identifier: Apache-2.0
"""What a thread waits for, as the stack tells with which it left its CPU."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from rubyunwind.profiler.sample import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LOCK", "RUNNABLE", "waiting_frames"]

# Frames above the innermost one that say what no frame of the stack does.
RUNNABLE = Frame("kernel", "[ready to run, waits for a CPU]")
LOCK = Frame("native", "[waits for the GVL]")

# The kernel takes the stack inside its scheduler, below which lie our program and the tracepoint. Their
# number differs from kernel to kernel.
_SCHEDULER = "__schedule"
_MOST_INNER = 12

# thread_pthread.c: what takes the lock, up to Ruby 3.1, in 3.2 and from 3.3 on. Not
# thread_sched_wait_running_turn: from 3.3 on those that sleep wait there, too.
_TAKERS = frozenset(
    {
        "gvl_acquire",
        "gvl_acquire_internal",
        "gvl_yield",
        "thread_sched_acquire",
        "thread_sched_to_running",
        "thread_sched_to_running_common",
        "thread_sched_yield",
    }
)
# thread.c: exported, so that they have names always. Their own waits, that is those that no Ruby code in
# between has asked for, are for the lock that they have just handed over.
_YIELDERS = frozenset({"rb_thread_schedule", "rb_threadptr_execute_interrupts"})
# Of the C library: the lock is a condition, and a mutex for a moment.
_CONDITIONS = ("pthread_cond_", "__pthread_cond_")


def waiting_frames(frames: list[Frame], *, runnable: bool) -> list[Frame]:
    """Return the frames of a thread that left its CPU, leaf first, without those of the switch itself.

    What is left begins with the function that asked the scheduler for it. A thread that could go on, or waits
    for Ruby's lock as far as that can be told, has a frame above that says so. Where kernel functions have no
    names nothing is taken away.
    """
    for at, frame in enumerate(frames[:_MOST_INNER]):
        if frame.kind != "kernel":
            break
        if frame.name == _SCHEDULER:
            frames = frames[at + 1 :]
            break
    if runnable:
        return [RUNNABLE, *frames]
    return [LOCK, *frames] if _waits_for_lock(frames) else frames


def _waits_for_lock(frames: Sequence[Frame]) -> bool:
    user = [frame for frame in frames if frame.kind != "kernel"]
    native = list(takewhile(lambda frame: frame.kind == "native", user))
    # A compiler's copy of a function has a suffix: .isra.0, .part.1.
    names = [frame.name.partition(".")[0] for frame in native]
    if not _TAKERS.isdisjoint(names):
        return True
    at = next((at for at, name in enumerate(names) if name in _YIELDERS), 0)
    # From it on inwards nothing but Ruby itself, up to the wait for a condition.
    ruby = native[at].module if at else None
    own = len(list(takewhile(lambda frame: frame.module == ruby, reversed(native[:at]))))
    return 0 < own < at and names[at - own - 1].startswith(_CONDITIONS)
