# SPDX-License-Identifier: Apache-2.0
"""A CPU that goes offline and comes online while a program is recorded. Each test brings it back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample

from .spinning import PATIENCE, spinning

# Few machines let it happen; run-tests.sh has guests that do.
pytestmark = [pytest.mark.usefixtures("bpf"), pytest.mark.one_of_several]

CPU = 1
STATE = Path(f"/sys/devices/system/cpu/cpu{CPU}/online")


def switch(online: bool) -> None:
    STATE.write_text("1" if online else "0")


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    """Skip, with the reason, where CPU 1 cannot go offline; have it back in any case."""
    if not STATE.exists():
        pytest.skip(f"this machine has no CPU {CPU} that can go offline ({STATE} is missing)")
    try:
        switch(online=False)
    except OSError as error:
        pytest.skip(f"CPU {CPU} cannot go offline here: {error}")
    finally:
        if STATE.read_text().strip() == "0":
            switch(online=True)
    yield
    if STATE.read_text().strip() == "0":
        switch(online=True)


@pytest.fixture
def program() -> Iterator[int]:
    """A program that spins on CPU 1, as long as there is one: the kernel moves it away, and not back."""
    with spinning("loops.rb", "while") as running:
        yield running.pid


def until(profiler: Profiler, holds: Callable[[Sample], bool]) -> list[Sample]:
    """Poll until a sample is as asked; return all that came."""
    samples: list[Sample] = []
    end = time.monotonic() + PATIENCE
    while not any(map(holds, samples)):
        assert time.monotonic() < end, f"no such sample among {len(samples)}: {profiler.stats}"
        samples += profiler.poll(0.1)
    return samples


def on(cpu: int, origin: str = "sampling") -> Callable[[Sample], bool]:
    return lambda sample: sample.cpu == cpu and sample.origin == origin


def test_a_cpu_that_goes_and_comes_back_is_sampled_before_and_after(program: int) -> None:
    os.sched_setaffinity(program, {CPU})
    with Profiler([program], rate=199) as profiler:
        until(profiler, on(CPU))
        for _ in range(2):
            switch(online=False)
            until(profiler, on(0))
            end = time.monotonic() + PATIENCE
            while CPU in profiler._traces.cpus:
                assert time.monotonic() < end, "it was not noticed that the CPU went"
                profiler.poll(0.1)
            switch(online=True)
            os.sched_setaffinity(program, {CPU})
            until(profiler, on(CPU))
        assert profiler.notes == ()
        assert profiler.stats.lost == 0
        assert profiler._traces.cpus == profiler._reports.cpus >= {0, CPU}


def test_a_cpu_that_is_back_before_anybody_looked_is_sampled(program: int) -> None:
    os.sched_setaffinity(program, {CPU})
    with Profiler([program], rate=199) as profiler:
        until(profiler, on(CPU))
        switch(online=False)
        switch(online=True)
        back = time.time_ns()
        os.sched_setaffinity(program, {CPU})
        until(profiler, lambda sample: sample.cpu == CPU and sample.timestamp > back)


def test_a_cpu_that_was_offline_when_the_profiler_was_entered_is_sampled_once_it_comes(program: int) -> None:
    switch(online=False)
    with Profiler([program], rate=199, off_cpu=True) as profiler:
        assert CPU not in profiler._traces.cpus
        until(profiler, on(0))
        switch(online=True)
        os.sched_setaffinity(program, {CPU})
        until(profiler, on(CPU))
        os.sched_setaffinity(program, {0, CPU})


def test_what_a_ring_held_when_its_cpu_went_is_read(program: int) -> None:
    os.sched_setaffinity(program, {CPU})
    with Profiler([program], rate=199) as profiler:
        until(profiler, on(CPU))
        time.sleep(0.3)  # nobody polls: what comes stays in the ring
        switch(online=False)
        switch(online=True)
        gone = time.time_ns()
        os.sched_setaffinity(program, {CPU})
        samples = until(profiler, lambda sample: sample.cpu == CPU and sample.timestamp > gone)
        assert [sample for sample in samples if sample.cpu == CPU and sample.timestamp < gone]
        assert profiler.stats.lost == 0
