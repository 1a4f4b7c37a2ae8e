# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost in silence: what was read and what is counted as lost make up what was due by CPU time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rubyunwind import Profiler

from .spinning import spinning

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 999
SHARE = 0.05


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, by the scheduler."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def accounted(profiler: Profiler, pid: int, work: float) -> tuple[int, int, float]:
    """Read nothing for some seconds, then all there is; return what was read, what was lost, what was due."""
    profiler.poll(0)
    before = profiler.stats
    began = cpu_seconds(pid)
    time.sleep(work)
    due = (cpu_seconds(pid) - began) * RATE
    profiler.stop()
    after = profiler.stats
    return after.read - before.read, after.lost - before.lost, due


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_rings_that_overflow_lose_by_count_only(unwinder: str) -> None:
    """Of the deep stacks a ring holds a few, and nobody reads it."""
    with (
        spinning("bounces.rb", "200") as program,
        Profiler([program.pid], rate=RATE, unwinder=unwinder) as profiler,
    ):
        for _ in range(5):
            profiler.poll(0.05)
        read, lost, due = accounted(profiler, program.pid, 2)
    assert lost > 0.1 * due
    assert abs(read + lost - due) <= SHARE * due, (read, lost, due)


def test_a_reader_that_keeps_up_loses_nothing_at_a_thousand_samples_a_second() -> None:
    with spinning("blocks_and_bmethods.rb") as program, Profiler([program.pid], rate=RATE) as profiler:
        profiler.poll(0.1)
        before, began = profiler.stats, cpu_seconds(program.pid)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            profiler.poll(0.1)
        due = (cpu_seconds(program.pid) - began) * RATE
        profiler.stop()
        after = profiler.stats
    assert after.lost == 0
    assert abs(after.read - before.read - due) <= SHARE * due


def test_a_flood_on_one_cpu_does_not_starve_the_others() -> None:
    """Two programs spin, deep and flat: each has what its CPU time makes due, or it is counted."""
    with (
        spinning("bounces.rb", "200") as deep,
        spinning("rescue_and_ensure.rb") as flat,
        Profiler([deep.pid, flat.pid], rate=RATE) as profiler,
    ):
        profiler.poll(0.1)
        began = {pid: cpu_seconds(pid) for pid in (deep.pid, flat.pid)}
        before = profiler.stats
        counts = dict.fromkeys(began, 0)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for sample in profiler.poll(0.1):
                counts[sample.pid] += 1
        due = {pid: (cpu_seconds(pid) - since) * RATE for pid, since in began.items()}
        for sample in profiler.stop():
            counts[sample.pid] += 1
        lost = profiler.stats.lost - before.lost
    assert abs(sum(counts.values()) + lost - sum(due.values())) <= SHARE * sum(due.values())
    assert counts[flat.pid] >= 0.7 * due[flat.pid]


def test_a_rate_that_the_kernel_has_lowered_is_said_with_the_rate_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rubyunwind.profiler import profiler as module

    with spinning("rescue_and_ensure.rb") as program, Profiler([program.pid], rate=499) as profiler:
        assert not [note for note in profiler.notes if "max_sample_rate" in note]
        monkeypatch.setattr(module, "rate_in_force", lambda _: 250)
        (note,) = [note for note in profiler.notes if "max_sample_rate" in note]
    assert "lowered kernel.perf_event_max_sample_rate to 250: not 499 samples" in note
