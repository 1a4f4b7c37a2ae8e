# SPDX-License-Identifier: Apache-2.0
"""The agent of the soak: samples all processes and throws the samples away, but for their counts.

Arguments: the rate, and the name (comm) of the short-lived processes. Says "ready" when it samples, and then
answers a line of its input with a line of JSON: "counts", "pids" (those in the maps), "end".
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterable
from typing import Any

from rubyunwind import Profiler
from rubyunwind.profiler.samples import Samples

BY_PID = ("reported_pids", "pid_events", "followed_pids", "ruby_procs", "ruby_vms", "ruby_tls")
BY_ADDRESS = ("pid_page_to_mapping_info", "pid_mappings")


def pids_in_maps(profiler: Profiler) -> dict[str, list[int]]:
    """The pids of each map that is keyed by them; 0 stands for all in followed_pids."""
    maps = profiler.collection.maps
    found = {name: {int.from_bytes(key, "little") for key in maps[name]} for name in BY_PID}
    # The key of an LPM trie: its length in bits, then the pid as a big-endian number.
    found |= {name: {int.from_bytes(key[4:8], "big") for key in maps[name]} for name in BY_ADDRESS}
    return {name: sorted(pids - {0}) for name, pids in found.items()}


def own_descriptors(profiler: Profiler) -> int:
    """How many descriptors there are, but for those of registered processes and of their files."""
    tracker = profiler._tracker
    return len(os.listdir("/proc/self/fd")) - len(tracker.processes) - len(tracker.files)  # noqa: PTH208


class FirstStacks:
    """When each process of one name was first sampled, and when its first whole Ruby stack had arrived.

    The first sample of a process that is not registered is not sent: the kernel side notes its time where
    it notes that the process was reported.
    """

    def __init__(self, profiler: Profiler, comm: str) -> None:
        self._comm = comm
        self._met: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._stack: dict[int, float] = {}
        reports = profiler._tracker._reports
        let_through = reports.let_through
        reported = profiler.collection.maps["reported_pids"]

        def note(pid: int) -> None:
            raw = reported.get(pid)
            if raw is not None:
                self._met[pid] = int.from_bytes(bytes(raw), "little") / 1e9
            let_through(pid)

        reports.let_through = note  # type: ignore[method-assign]

    def take(self, samples: Samples, epoch: float) -> None:
        """Look at samples that have just arrived; `epoch` is the unix time of the monotonic clock's zero."""
        now = time.monotonic()
        for sample in samples:
            if sample.comm != self._comm:
                continue
            pid, at = sample.pid, sample.timestamp / 1e9 - epoch
            self._first.setdefault(pid, min(self._met.pop(pid, at), at))
            self._last[pid] = at
            if pid not in self._stack and sample.complete and any(f.kind == "ruby" for f in sample.frames):
                self._stack[pid] = now

    def told(self) -> dict[str, Any]:
        """Seconds from first sample to first stack, and for those without one how long they were sampled."""
        waits = [self._stack[pid] - first for pid, first in self._first.items() if pid in self._stack]
        without = [self._last[pid] - first for pid, first in self._first.items() if pid not in self._stack]
        return {"waits": waits, "without": without}


def counts(profiler: Profiler) -> dict[str, Any]:
    """What was read, lost, failed; `entries` are the program's runs on processes that are to be sampled."""
    stats = profiler.stats
    kernel = {counter.name: count for counter, count in profiler.counters.items()}
    return {
        "read": stats.read,
        "lost": stats.lost,
        "failed": dict(stats.failed),
        "entries": kernel["SAMPLES"],
        "unsent": kernel["UNKNOWN_PID"] + kernel["DROPPED_ERROR_ONLY"],
        "evicted": stats.evicted,
        "no_room": stats.no_room,
        "unfinished": stats.unfinished,
        "own": own_descriptors(profiler),
    }


def main(arguments: Iterable[str]) -> None:
    rate, comm = arguments
    answering = 0.0  # CPU seconds that the questions have cost
    epoch = time.time() - time.monotonic()
    with Profiler(all_processes=True, rate=int(rate)) as profiler:
        firsts = FirstStacks(profiler, comm)
        print("ready", flush=True)
        poller = select.poll()
        poller.register(profiler.fileno(), select.POLLIN)
        poller.register(sys.stdin.fileno(), select.POLLIN)
        asked = ""
        while asked != "end":
            ready = {fd for fd, _ in poller.poll()}
            if profiler.fileno() in ready:
                firsts.take(profiler.poll(0), epoch)
            if sys.stdin.fileno() not in ready:
                continue
            began = time.process_time()
            asked = sys.stdin.readline().strip() or "end"
            if asked == "end":
                firsts.take(profiler.stop(), epoch)
            said = {**firsts.told()} if asked == "end" else {}
            said |= pids_in_maps(profiler) if asked == "pids" else counts(profiler)
            answering += time.process_time() - began
            print(json.dumps({**said, "answering": answering}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
