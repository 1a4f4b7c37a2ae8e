# SPDX-License-Identifier: Apache-2.0
"""CPUs that go offline and come online: each that is there is sampled, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rubyunwind import Profiler
from rubyunwind.abi import Counter as Counted
from rubyunwind.bpf.cpus import online_cpus

from .recorder import ruby, until

pytestmark = [pytest.mark.usefixtures("bpf"), pytest.mark.one_of_several]

RATE = 499
LAST = max(online_cpus())
SWITCH = Path(f"/sys/devices/system/cpu/cpu{LAST}/online")
SPIN = "nil while true"


@contextmanager
def offline() -> Iterator[None]:
    """Take the last CPU offline. A child brings it back, also when this process is killed."""
    child = subprocess.Popen(
        ["sh", "-c", f"echo 0 > {SWITCH} && echo off; cat; echo 1 > {SWITCH}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        went = child.stdout.readline() == b"off\n"
        if went:
            assert LAST not in online_cpus()
            yield
    finally:
        child.stdin.close()
        child.wait()
        child.stdout.close()
    if not went:
        pytest.skip(f"CPU {LAST} cannot be taken offline here")


def sampled_on(profiler: Profiler, cpu: int, count: int, pid: int) -> Counter[int]:
    """Read until there are so many samples of a CPU; return the number of samples by CPU."""
    found: Counter[int] = Counter()

    def enough() -> bool:
        # A CPU that was away takes a process away from its affinity, too: it is sent there again.
        os.sched_setaffinity(pid, {cpu})
        found.update(sample.cpu for sample in profiler.poll(0.05))
        return found[cpu] >= count

    until(enough, f"CPU {cpu} is not sampled")
    return found


@pytest.fixture(autouse=True)
def two_cpus() -> None:
    if len(online_cpus()) < 2 or not os.access(SWITCH, os.W_OK):
        pytest.skip("there is no CPU that can be taken offline")


def test_a_cpu_that_goes_and_comes_back_is_sampled_before_and_after() -> None:
    with ruby(SPIN) as program, Profiler([program.pid], rate=RATE) as profiler:
        read = sum(sampled_on(profiler, LAST, 50, program.pid).values())
        for _ in range(2):
            with offline():
                first = min(online_cpus())
                read += sum(sampled_on(profiler, first, 50, program.pid).values())
            read += sum(sampled_on(profiler, LAST, 50, program.pid).values())
        read += len(profiler.stop())
        # What the ring of a CPU held when it went is read, too.
        assert profiler.stats.lost == 0
        assert profiler.stats.read == read == profiler.counters[Counted.SENT]
        assert profiler.notes == ()


def test_a_cpu_that_was_away_for_a_moment_only_is_noticed() -> None:
    with ruby(SPIN) as program, Profiler([program.pid], rate=RATE) as profiler:
        sampled_on(profiler, LAST, 20, program.pid)
        with offline():
            pass
        sampled_on(profiler, LAST, 50, program.pid)


def test_a_cpu_that_comes_online_after_the_start_is_sampled() -> None:
    with ruby(SPIN) as program, ExitStack() as stack:
        with offline():
            profiler = stack.enter_context(Profiler([program.pid], rate=RATE))
        sampled_on(profiler, LAST, 50, program.pid)


def test_threads_that_wait_are_told_of_on_a_cpu_that_came_back() -> None:
    with ruby("sleep 0.005 while true") as program:
        os.sched_setaffinity(program.pid, {LAST})
        with Profiler([program.pid], rate=RATE, off_cpu="only") as profiler:
            sampled_on(profiler, LAST, 10, program.pid)
            with offline():
                sampled_on(profiler, min(online_cpus()), 10, program.pid)
            sampled_on(profiler, LAST, 50, program.pid)


def test_descriptors_do_not_add_up() -> None:
    with ruby(SPIN) as program, Profiler([program.pid], rate=RATE) as profiler:

        def descriptors() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        counts = []
        for _ in range(3):
            with offline():
                sampled_on(profiler, min(online_cpus()), 20, program.pid)
            sampled_on(profiler, LAST, 20, program.pid)
            counts.append(descriptors())
        assert counts[1] == counts[2]
