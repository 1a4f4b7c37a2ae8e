# SPDX-License-Identifier: Apache-2.0
"""Ruby processes to be measured, and who runs on which CPU."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import IO

__all__ = ["ROOT", "Ruby", "bench_cpu", "stay_apart", "target_cpu"]

ROOT = Path(__file__).parent.parent
RECURSION = ROOT / "tests/ruby/recursion.rb"
FIXED_LOOP = Path(__file__).parent / "ruby/fixed_loop.rb"
# Above what else runs on the machine: what is measured is the profiler, not the neighbours.
_NICE = -10
_ANSWER = 30  # seconds until a target counts as hung


def target_cpu() -> int:
    """Return the CPU that targets are pinned to: the last one there is."""
    return max(os.sched_getaffinity(1))


def bench_cpu() -> int:
    """Return the CPU for the recorder: another one, unless there is just one."""
    return min(os.sched_getaffinity(1))


def stay_apart() -> None:
    """Pin this process, and what it starts, to the recorder's CPU, ahead of what else runs on the machine."""
    os.sched_setaffinity(0, {bench_cpu()})
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)


class Ruby:
    """A Ruby process, pinned to `target_cpu`. A context manager that kills it."""

    def __init__(self, script: Path, *arguments: object) -> None:
        self._process = subprocess.Popen(
            ["ruby", str(script), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self._process.pid
        os.sched_setaffinity(self.pid, {target_cpu()})
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)

    @classmethod
    def spinning(cls, depth: int) -> Ruby:
        """Start one that spins under `depth` Ruby frames, all plain calls, and wait until it does."""
        # <main>, and `down` for each level from depth - 2 to 0.
        ruby = cls(RECURSION, depth - 2)
        ruby.answer()
        return ruby

    @classmethod
    def working(cls, depth: int) -> Ruby:
        """Start one that works under `depth` Ruby frames; it answers with ns of CPU and wall clock."""
        return cls(FIXED_LOOP, depth)

    def ask(self, rounds: int) -> None:
        """Let it do a piece of work; `answer` has its times once `output` is readable."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rounds}\n".encode())
        self._process.stdin.flush()

    @property
    def output(self) -> IO[bytes]:
        """Where its answers come from."""
        assert self._process.stdout is not None
        return self._process.stdout

    def answer(self) -> bytes:
        """Wait for one line of output."""
        if not select.select([self.output], [], [], _ANSWER)[0]:
            raise TimeoutError(f"the Ruby process said nothing in {_ANSWER} s")
        return self.output.readline()

    def stop(self) -> None:
        """Halt it, so that others have the CPU."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Ruby:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()
