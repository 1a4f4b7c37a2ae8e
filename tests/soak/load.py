# SPDX-License-Identifier: Apache-2.0
"""What the agent samples: short-lived Rubies, here and in two namespaces, and a Ruby of fifty threads."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from live.spinning import RUBY

__all__ = ["NAMESPACES", "SHORT", "Load"]

PROGRAMS = Path(__file__).parent / "ruby"
SHORT = "short-ruby"
"""The name of the short-lived ones."""
NAMESPACES = 2
# A pid and a mount namespace, whose processes end with its first one, and that with `unshare`.
_INSIDE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
# CPU seconds that a short one works, beside its start.
_WORK = (0.05, 0.25)


class Load:
    """Starts `per_minute` Rubies a minute while `run` is called. A context manager that ends them all.

    They are started at random times: regular ones would beat with the ticks of the profiler. `started` counts
    them.
    """

    def __init__(self, folder: Path, per_minute: float) -> None:
        self._gap = 60 / per_minute
        self._random = random.Random(7)
        self._program = folder / SHORT
        self._program.symlink_to(shutil.which(RUBY) or RUBY)
        self._launchers: list[subprocess.Popen[str]] = []
        self._due = 0.0
        self._stack = ExitStack()
        self.started = 0

    def __enter__(self) -> Load:
        with self._stack:
            short = [str(self._program), str(PROGRAMS / "short.rb")]
            launch = [RUBY, "--disable-gems", str(PROGRAMS / "launcher.rb"), *short]
            self._launchers = [
                self._start(launch),
                *(self._start([*_INSIDE, *launch]) for _ in range(NAMESPACES)),
            ]
            self._start([RUBY, "--disable-gems", str(PROGRAMS / "fifty_threads.rb")])
            self._stack = self._stack.pop_all()
        return self

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.communicate)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{command} does not start")
        return process

    def run(self, until: float) -> None:
        """Start what is due until that time (monotonic seconds)."""
        self._due = self._due or time.monotonic()
        while self._due < until:
            time.sleep(max(0.0, self._due - time.monotonic()))
            launcher = self._launchers[self.started % len(self._launchers)]
            assert launcher.stdin is not None
            launcher.stdin.write(f"{self._random.uniform(*_WORK):.3f}\n")
            launcher.stdin.flush()
            self.started += 1
            self._due += self._random.uniform(0, 2 * self._gap)
        time.sleep(max(0.0, until - time.monotonic()))

    def stop(self) -> None:
        """End all of it. Twice is harmless."""
        self._stack.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
