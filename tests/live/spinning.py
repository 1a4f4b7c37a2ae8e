# SPDX-License-Identifier: Apache-2.0
"""Ruby programs that print their own stack and spin there, and what a profiler says of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rubyunwind import Profiler, Sample
from rubyunwind.profiler.user_profiler import UserProfiler

PROGRAMS = Path(__file__).parent.parent / "ruby"
RUBY = shutil.which("ruby") or "ruby"
# What the profiler does in a second or two, with plenty of room for a busy machine.
PATIENCE = 30.0

Location = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Ruby:
    """An interpreter and where it finds tests/ruby. With a `root`, both are paths in that file system."""

    program: str = RUBY
    programs: str = str(PROGRAMS)
    root: Path | None = None

    def command(self, name: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        inside = ["chroot", str(self.root)] if self.root else []
        return [*inside, self.program, "--disable-gems", *options, f"{self.programs}/{name}", *arguments]


HERE = Ruby()


@dataclass(frozen=True, slots=True)
class Spinning:
    """A program that spins; `stacks` are what its threads printed: (thread id or 0, locations leaf first)."""

    pid: int
    stacks: tuple[tuple[int, tuple[Location, ...]], ...]

    @property
    def stack(self) -> tuple[Location, ...]:
        ((_, stack),) = self.stacks
        return stack


def _cpu_ticks(pid: int) -> dict[int, int]:
    """Return what each thread has used: utime of proc(5), in ticks of 10 ms."""
    ticks = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            fields = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            ticks[int(thread.name)] = int(fields.split()[11])
    return ticks


def _wait_for_the_spin(pid: int, threads: int) -> None:
    """Threads that have used two ticks more are done with printing. Ruby 2.7 does not tell which they are."""
    end, before = time.monotonic() + PATIENCE, _cpu_ticks(pid)
    while time.monotonic() < end:
        if sum(ticks >= before.get(tid, 0) + 2 for tid, ticks in _cpu_ticks(pid).items()) >= threads:
            return
        time.sleep(0.005)


@contextmanager
def spinning(
    name: str, *arguments: str, threads: int = 1, options: tuple[str, ...] = (), ruby: Ruby = HERE
) -> Iterator[Spinning]:
    """Run tests/ruby/NAME until it spins."""
    process = subprocess.Popen(
        ruby.command(name, *arguments, options=options),
        stdout=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(threads)]
        assert all(lines), f"{name} ended before it printed its stack"
        said = [json.loads(line) for line in lines]
        _wait_for_the_spin(process.pid, threads)
        yield Spinning(
            process.pid,
            tuple((one["tid"] or 0, tuple((p, n, label) for p, n, label in one["frames"])) for one in said),
        )
    finally:
        process.kill()
        process.communicate()


def locations(sample: Sample) -> tuple[Location, ...]:
    """What Ruby's own backtrace has of a sample: its Ruby frames and C functions."""
    return tuple(
        (frame.path or "", frame.line or 0, frame.label or frame.name)
        for frame in sample.frames
        if frame.kind in ("ruby", "cfunc", "unknown", "error")
    )


def difference(found: tuple[Location, ...], expected: tuple[Location, ...]) -> str:
    """Say where a stack leaves the expected one; "" if it does not."""
    for index, (one, other) in enumerate(zip_longest(found, expected, fillvalue="nothing")):
        if one != other:
            return f"frame {index} of {len(found)} is {one}, expected {other} of {len(expected)}"
    return ""


def gather(profiler: Profiler | UserProfiler, count: int) -> list[Sample]:
    """Poll until `count` samples came. Fails if they do not."""
    samples: list[Sample] = []
    end = time.monotonic() + PATIENCE
    while len(samples) < count and time.monotonic() < end:
        samples += profiler.poll(0.1)
    assert len(samples) >= count, f"only {len(samples)} of {count} samples in {PATIENCE} s; {profiler.stats}"
    return samples
