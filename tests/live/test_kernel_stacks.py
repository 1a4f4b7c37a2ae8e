# SPDX-License-Identifier: Apache-2.0
"""Kernel frames: there when the CPU was in the kernel, and never those of another sample."""

from __future__ import annotations

from collections import Counter as Tally

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.abi import Counter

from .spinning import gather, spinning

pytestmark = pytest.mark.usefixtures("bpf")

# Kernel functions that only one of the two methods of kernel_readers.rb gets to.
ONLY_ZEROS = {"read_zero", "read_iter_zero", "iov_iter_zero"}
ONLY_RANDOM = {"urandom_read_iter", "get_random_bytes_user", "chacha_block_generic"}


def check(samples: list[Sample]) -> Tally[str]:
    """Hold the kernel frames of each sample against its Ruby frames; count what was seen."""
    seen: Tally[str] = Tally()
    for sample in samples:
        labels = {frame.label for frame in sample.frames if frame.kind == "ruby"}
        kernel = [frame.name for frame in sample.frames if frame.kind == "kernel"]
        kinds = [frame.kind for frame in sample.frames]
        assert kinds[: len(kernel)] == ["kernel"] * len(kernel)  # they are the leaf part
        if ONLY_ZEROS & set(kernel):
            assert "read_random" not in labels, (labels, kernel)
            seen["zeros"] += "read_zeros" in labels
        if ONLY_RANDOM & set(kernel):
            assert "read_zeros" not in labels, (labels, kernel)
            seen["random"] += "read_random" in labels
    return seen


def test_kernel_frames_belong_to_the_ruby_code_that_called() -> None:
    with spinning("kernel_readers.rb") as program, Profiler([program.pid], rate=499) as profiler:
        seen = check(gather(profiler, 400))
    assert seen["zeros"] > 10
    assert seen["random"] > 10


def test_stacks_that_collide_in_the_stack_map_keep_their_own_frames() -> None:
    """One slot for all kernel stacks: every other stack than the first one collides with it."""
    with (
        spinning("kernel_readers.rb") as program,
        Profiler([program.pid], rate=499, unwinder="chain", map_sizes={"kernel_stackmap": 1}) as profiler,
    ):
        seen = check(gather(profiler, 400))
        collisions = profiler.counters[Counter.KERNEL_STACK_COLLISION]
    assert collisions > 10
    assert seen["zeros"] > 10
    assert seen["random"] > 10


def test_user_frames_are_whole_below_the_kernel_frames() -> None:
    with spinning("kernel_readers.rb") as program, Profiler([program.pid], rate=499) as profiler:
        samples = gather(profiler, 300)
    deep = [sample for sample in samples if sample.frames and sample.frames[0].kind == "kernel"]
    assert len(deep) > 20
    whole = [sample for sample in deep if sample.complete and sample.frames[-1].name == "_start"]
    assert len(whole) >= 0.99 * len(deep)
