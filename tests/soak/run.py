# SPDX-License-Identifier: Apache-2.0
"""Runs the load and the agent, prints the table and ends with status 1 if a number is not as it has to be.

python -m soak.run [--seconds 600] [--rate 20] [--write]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rubyunwind.errors import AttachError
from rubyunwind.process.identity import read_status

from .findings import Observed, findings
from .load import NAMESPACES, SHORT, Load
from .machine import Size, cpu_of, size_of, work_of_user_processes
from .page import PAGE, lines, write

PER_MINUTE = 200
# Seconds after which nothing of a process may be left in a map, and between looks for that.
_GONE, _LOOKS = 5.0, 30.0


class Agent:
    """The agent's process, and questions to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._answering = 0.0

    def hear(self) -> str:
        """Return a line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent has ended with status {self.process.wait()}")
        return line.strip()

    def ask(self, what: str) -> dict[str, Any]:
        """Return what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        said: dict[str, Any] = json.loads(self.hear())
        self._answering = said.pop("answering")
        return said

    @property
    def cpu(self) -> float:
        """CPU seconds that it has used, without those for answers."""
        return cpu_of(self.pid) - self._answering


@contextmanager
def agent(rate: int) -> Iterator[Agent]:
    """Start it, and wait until it samples."""
    command = [sys.executable, "-m", "soak.agent", str(rate), SHORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            started = Agent(process)
            started.hear()
            yield started
        finally:
            process.kill()


def _gone(pid: int) -> bool:
    try:
        return read_status(pid).ended
    except AttachError:
        return True


def _dead(said: dict[str, list[int]]) -> dict[str, set[int]]:
    """Return the pids of each map whose processes have ended."""
    return {name: {pid for pid in pids if _gone(pid)} for name, pids in said.items()}


def soak(seconds: float, rate: int) -> tuple[Observed, float]:
    """Run everything for a time, and return what was seen, and how long the agent took to start."""
    sizes: list[Size] = []
    left: list[dict[str, list[int]]] = []
    dead: dict[str, set[int]] = {}
    with tempfile.TemporaryDirectory() as folder, Load(Path(folder), PER_MINUTE) as load, agent(rate) as one:
        began, cpu = time.monotonic(), one.cpu
        starting = cpu_of(one.pid)
        end = began + seconds
        warm = began + seconds / 5
        before: dict[str, Any] = {}
        work = 0.0
        look, again = began + _LOOKS, 0.0
        while (now := time.monotonic()) < end:
            load.run(min(now + 1, end))
            sizes.append(size_of(one.pid))
            now = time.monotonic()
            if not before and now >= warm:
                before, work = one.ask("counts"), work_of_user_processes(one.pid)
            if dead and now >= again:
                still = _dead(one.ask("pids"))
                left.append({name: sorted(pids & still[name]) for name, pids in dead.items()})
                dead = {}
            if now >= look:
                dead, again, look = _dead(one.ask("pids")), now + _GONE, now + _LOOKS
        after, work = one.ask("counts"), work_of_user_processes(one.pid) - work
        cpu, passed = one.cpu - cpu, time.monotonic() - began
        load.stop()
        dead = _dead(one.ask("pids"))
        time.sleep(_GONE)
        still = _dead(one.ask("pids"))
        left.append({name: sorted(pids & still[name]) for name, pids in dead.items()})
        last = one.ask("end")
        started = load.started
    seen = Observed(rate, started, sizes, left, before, after, last, work, cpu, passed)
    return seen, starting


def main() -> int:
    """Return 0 if everything is as it has to be."""
    parser = argparse.ArgumentParser(prog="soak.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long (default: 600)")
    parser.add_argument("--rate", type=int, default=20, help="samples a second of CPU time (default: 20)")
    parser.add_argument("--write", action="store_true", help=f"write the table into docs/{PAGE.name}")
    arguments = parser.parse_args()
    if arguments.seconds < 60:
        parser.error("less than a minute shows nothing: --seconds 60 at least")
    seen, starting = soak(arguments.seconds, arguments.rate)
    found = list(findings(seen))
    load = {
        "length": f"{seen.seconds:.0f} s",
        "short-lived Rubies": f"{seen.started}, {seen.started / seen.seconds * 60:.0f} a minute; a third "
        "here, a third in each namespace",
        "namespaces": f"{NAMESPACES}, pid and mount",
        "threads of one Ruby": "50",
        "CPU time of all processes": f"{seen.work:.0f} s in the last four fifths",
        "agent's CPU time until it samples": f"{starting:.2f} s",
    }
    text = list(lines(seen, found, load))
    print("\n".join(text))
    if arguments.write:
        write(text)
    for one in found:
        print(f"{'ok' if one.met else 'MISSED':6} {one.what}: {one.value} ({one.rule})")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
