# SPDX-License-Identifier: Apache-2.0
"""Targets that fork without end, or map all that they may: they cost a bounded share, and it is said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rubyunwind import Profiler
from rubyunwind.process.mappings import parse_code, read_maps

from .groups import bounded_group, members
from .recorder import hear, process, until
from .spinning import RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

SPIN = "def spin_here = (nil while true)\nputs; $stdout.flush; spin_here"
# Each process forks another one, and works a little; nothing but the group's bound ends it.
BOMB = "bomb() { bomb & i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; bomb; }; bomb"
MOST = 150  # processes of the bomb, which is nicer than everybody else


@pytest.mark.one_of_several
def test_a_fork_bomb_costs_a_bounded_share_and_is_reported() -> None:
    with (
        bounded_group(MOST, 256 << 20) as groups,
        process(RUBY, "--disable-gems", script=SPIN) as ruby,
        Profiler(all_processes=True, rate=99) as profiler,
    ):
        hear(ruby)
        profiler.poll(0.1)
        enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
        with subprocess.Popen(
            ["nice", "-n", "19", "sh", "-c", f"{enter}; {BOMB}"], stderr=subprocess.DEVNULL
        ) as bomb:
            until(lambda: profiler.poll(0.01) is not None and len(members(groups[0])) > MOST / 2, "no bomb")
            began, cpu = time.monotonic(), time.process_time()
            longest, samples = 0.0, 0
            while time.monotonic() < began + 5:
                before = time.process_time()
                samples += sum(sample.pid == ruby.pid for sample in profiler.poll(0.05))
                longest = max(longest, time.process_time() - before)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
            stats = profiler.stats
            bomb.kill()
    assert share < 0.5
    assert longest < 1
    assert samples  # what else runs has its samples
    assert dict(stats.failed).get("process not registered yet", 0) > 0
    assert stats.lost == 0


REGIONS = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
count = 0
# Neighbours of different protection are not merged: readable, not accessible, readable, ...
while libc.mmap(None, 4096, count & 1, 0x22, -1, 0) != 2**64 - 1:
    count += 1
print(count, flush=True)
while True:
    pass
"""


def test_a_process_that_maps_as_many_regions_as_it_may_costs_a_bounded_time_and_memory() -> None:
    with (
        process(sys.executable, "-c", REGIONS) as target,
        process(RUBY, "--disable-gems", script=SPIN) as ruby,
    ):
        hear(ruby)
        count = int(hear(target))
        assert count > 10_000
        assert len(parse_code(read_maps(target.pid))) < 100
        with Profiler(all_processes=True, rate=99) as profiler:
            before = resident()
            samples = gather(profiler, 1)
            until(
                lambda: (
                    samples.extend(profiler.poll(0.05)) or {target.pid, ruby.pid} <= {s.pid for s in samples}
                ),
                "not both are sampled",
            )
            began, cpu = time.monotonic(), time.process_time()
            late, longest = [], 0.0
            while time.monotonic() < began + 4:
                since = time.process_time()
                late += profiler.poll(0.05)
                longest = max(longest, time.process_time() - since)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
            grown = resident() - before
    ours = [sample for sample in late if sample.pid == target.pid]
    assert ours
    assert [sample.reason for sample in ours[-20:] if not sample.complete] == []
    assert [sample for sample in late if sample.pid == ruby.pid]
    assert share < 0.25
    assert longest < 1
    assert grown < 64 << 20


def resident() -> int:
    """Bytes of memory of this process."""
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) << 10
