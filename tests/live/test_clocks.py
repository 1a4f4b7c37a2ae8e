# SPDX-License-Identifier: Apache-2.0
"""Times of samples, whatever becomes of the wall clock, and in time namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rubyunwind import Profiler

from .recorder import hear, process
from .spinning import RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

SPIN = "def spin_here = (nil while true)\nputs; $stdout.flush; spin_here"
# Monotonic and boot time of what runs in it are a day ahead.
DAY = 86_400
NAMESPACE = ("unshare", "--time", "--monotonic", str(DAY), "--boottime", str(DAY), "--fork", "--kill-child")


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_a_jump_of_the_wall_clock_neither_breaks_the_order_nor_the_length(
    monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    real, real_ns = time.time, time.time_ns
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        began = real_ns()
        with Profiler([target.pid], rate=299) as profiler:
            before = gather(profiler, 100)
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            monkeypatch.setattr(time, "time_ns", lambda: real_ns() + jump * 1_000_000_000)
            after = gather(profiler, 100)
        ended = real_ns()
    times = [sample.timestamp for sample in (*before, *after)]
    assert times == sorted(times)
    assert began <= times[0] <= times[-1] <= ended


def test_a_jump_of_the_wall_clock_does_not_change_how_long_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = time.time
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        with Profiler([target.pid], rate=299) as profiler:
            times = []
            for sample in profiler.samples(duration=1):
                times.append(sample.timestamp)
                monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert 0.5e9 < times[-1] - times[0] < 1.5e9


def spinners_below(pid: int) -> int:
    """The process that a wrapper has started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_a_target_in_another_time_namespace_has_our_times() -> None:
    with process(*NAMESPACE, RUBY, "--disable-gems", script=SPIN) as wrapper:
        hear(wrapper)
        pid = spinners_below(wrapper.pid)
        began = time.time_ns()
        with Profiler([pid], rate=299) as profiler:
            samples = gather(profiler, 120)
        ended = time.time_ns()
    assert all(began <= sample.timestamp <= ended for sample in samples)
    last = list(samples)[-60:]
    assert [sample.reason for sample in last if not sample.complete] == []
    assert {tuple(f.label for f in s.frames if f.kind == "ruby") for s in last} == {("spin_here", "<main>")}


def test_a_profiler_in_another_time_namespace_gives_unix_time() -> None:
    code = """
import json, sys, time
from rubyunwind import Profiler
pid = int(sys.argv[1])
with Profiler([pid], rate=299, off_cpu=True) as profiler:
    samples, end = [], time.monotonic() + 30
    while len(samples) < 150 and time.monotonic() < end:
        samples += profiler.poll(0.1)
    samples += profiler.stop()
def ruby(sample):
    return [frame.label for frame in sample.frames if frame.kind == "ruby"]
found = [(s.timestamp, s.origin, s.weight, s.complete, ruby(s)) for s in samples]
print(json.dumps([time.monotonic(), found]))
"""
    script = "def rest = sleep(0.05)\ndef spin_here = (1_000_000.times { 1 + 1 })\nputs; $stdout.flush\n"
    script += "loop { spin_here; rest }"
    with process(RUBY, "--disable-gems", script=script) as target:
        hear(target)
        began, clock = time.time_ns(), time.monotonic()
        command = [*NAMESPACE, sys.executable, "-c", code, str(target.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
        ended = time.time_ns()
    assert done.returncode == 0, done.stderr
    theirs, found = json.loads(done.stdout)
    assert theirs > clock + DAY / 2  # their clock is ahead indeed
    assert all(began <= at <= ended for at, *_ in found)
    away = [weight for _, origin, weight, *_ in found if origin == "off-cpu"]
    assert away
    assert max(away) < ended - began
    stacks = {tuple(labels) for *_, complete, labels in found[-60:] if complete}
    assert any(labels and labels[-1] == "<main>" for labels in stacks)
