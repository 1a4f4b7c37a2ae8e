# SPDX-License-Identifier: Apache-2.0
"""Ruby programs that print their own stack and spin there, and what a profiler says of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.bpf import PerfBuffer
from rubyunwind.profiler.user_profiler import UserProfiler

from .programs import FOLDER, Program

PROGRAMS = FOLDER
RUBY = shutil.which("ruby") or "ruby"
# What the profiler does in a second or two, with plenty of room for a busy machine.
PATIENCE = 30.0

Location = tuple[str, int, str]

# Programs look up their threads in /proc. The mount is gone with the last process that sees it.
_IN_ROOT = 'mkdir -p "$0/proc" && mount --bind /proc "$0/proc" && exec chroot "$0" "$@"'


@dataclass(frozen=True, slots=True)
class Ruby:
    """An interpreter and where it finds tests/ruby. With a `root`, both are paths in that file system.

    `reason` is why a stack that goes through its C library may not reach the root.
    """

    program: str = RUBY
    programs: str = str(PROGRAMS)
    root: Path | None = None
    reason: str | None = None

    @property
    def has_one_context(self) -> bool:
        """Whether all threads share one execution context (before 3.0): only who holds the lock has it."""
        return self.program.endswith("2.7")

    @property
    def start(self) -> list[str]:
        """The command, which options may follow."""
        inside = ["unshare", "--mount", "sh", "-c", _IN_ROOT, str(self.root)] if self.root else []
        return [*inside, self.program, "--disable-gems"]


HERE = Ruby()


@dataclass(frozen=True, slots=True)
class Spinning:
    """A program that spins; `stacks` are what its threads printed: (thread id or 0, locations leaf first).

    `pid` is the process that spins, which may be a child of the one that was started; `waiting` are the
    threads among `stacks` that do not spin.
    """

    pid: int
    stacks: tuple[tuple[int, tuple[Location, ...]], ...]
    waiting: frozenset[int] = frozenset()

    @property
    def stack(self) -> tuple[Location, ...]:
        ((_, stack),) = self.stacks
        return stack


def _cpu_ticks(pid: int, tid: int) -> int:
    fields = (
        Path(f"/proc/{pid}/task/{tid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    )
    return int(fields.split()[11])  # utime of proc(5), in ticks of 10 ms


def _wait_for_the_spin(pid: int, tid: int) -> None:
    """A thread that has used two ticks more is done with printing."""
    end, before = time.monotonic() + PATIENCE, _cpu_ticks(pid, tid)
    while _cpu_ticks(pid, tid) < before + 2 and time.monotonic() < end:
        time.sleep(0.005)


@contextmanager
def spinning(
    name: str,
    *arguments: str,
    threads: int = 1,
    options: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    ruby: Ruby = HERE,
) -> Iterator[Spinning]:
    """Run tests/ruby/NAME until it spins."""
    process = subprocess.Popen(
        [*ruby.start, *options, f"{ruby.programs}/{name}", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})},
    )
    pids = {process.pid}
    try:
        assert process.stdout is not None
        said = [_said(name, process.stdout.readline()) for _ in range(threads)]
        pid = said[0]["pid"]
        pids.add(pid)
        for one in said:
            if one["spins"]:
                _wait_for_the_spin(pid, one["tid"] or pid)
        yield Spinning(
            pid,
            tuple((one["tid"] or 0, tuple((p, n, label) for p, n, label in one["frames"])) for one in said),
            frozenset(one["tid"] for one in said if not one["spins"]),
        )
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def started(program: Program, ruby: Ruby = HERE) -> AbstractContextManager[Spinning]:
    """Run a program of the list until it spins."""
    return spinning(
        program.name,
        *program.arguments,
        threads=program.threads,
        options=program.options,
        environment=program.environment,
        ruby=ruby,
    )


def _said(name: str, line: bytes) -> dict[str, Any]:
    """Return what a program printed; a Ruby that lacks what the program is about makes the test skip."""
    assert line, f"{name} ended before it printed its stack"
    said: dict[str, Any] = json.loads(line)
    if "unavailable" in said:
        pytest.skip(said["unavailable"])
    return said


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


def gather_records(profiler: Profiler, count: int) -> list[bytes]:
    """Return records as the kernel sends them. The profiler itself gets no more samples from then on."""
    records: list[bytes] = []
    end = time.monotonic() + PATIENCE
    with PerfBuffer(profiler.collection.maps["trace_events"], pages=256) as buffer:  # takes its rings' place
        while len(records) < count and time.monotonic() < end:
            buffer.poll(100)
            records += [bytes(record) for _, record in buffer.records()]
    assert len(records) >= count, f"only {len(records)} of {count} records in {PATIENCE} s"
    return records
