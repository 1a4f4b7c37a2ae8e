# SPDX-License-Identifier: Apache-2.0
"""A Profiler in somebody else's program: it takes nothing of that over, and can be stopped in any way."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rubyunwind import LifetimeError, Profiler
from rubyunwind.abi import Counter

from .recorder import process, ruby, until
from .spinning import PATIENCE, RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

ROOT = Path(__file__).parents[2]
RATE = 299
SPIN = "def spin_here = (nil while true)\nspin_here"


@pytest.fixture
def busy() -> Iterator[int]:
    with process("sh", "-c", "while :; do :; done") as shell:
        yield shell.pid


# What belongs to the whole process, and how it is looked at.
LOOKS = """
import atexit, faulthandler, gc, io, json, locale, logging, os, resource, signal, subprocess, sys, threading
import warnings

def look():
    def handlers(one):
        return [handler for handler in one.handlers if not isinstance(handler, logging.NullHandler)]
    loggers = {name: (one.level, len(handlers(one)), one.propagate)
               for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger)}
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "tasks": os.listdir("/proc/self/task"),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "wakeup": signal.set_wakeup_fd(-1),
        "timers": [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
        "root logger": (logging.root.level, len(logging.root.handlers), logging.lastResort is not None),
        "loggers": {name: found for name, found in loggers.items() if found != (0, 0, True)},
        "excepthooks": [str(hook) for hook in (sys.excepthook, sys.unraisablehook, threading.excepthook)],
        "streams": [id(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "tracing": [str(sys.gettrace()), str(sys.getprofile())],
        "gc": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "environment": dict(os.environ),
        "place": [os.getcwd(), os.umask(os.umask(0))],
        "limits": [resource.getrlimit(which) for which in range(16)],
        "locale": locale.setlocale(locale.LC_ALL),
        "path": list(sys.path),
        "warnings": len(warnings.filters),
        "switching": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "nice": [os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))],
    }
"""


def test_nothing_of_the_process_is_changed(busy: int) -> None:
    program = f"""
{LOOKS}
from rubyunwind import Profiler
from rubyunwind.process.deputy import deputies
with Profiler([{busy}]): pass  # what is loaded once stays: modules, and libbpf
before = look()
with Profiler([{busy}], rate=499) as profiler, Profiler(all_processes=True) as other:
    count = 0
    while count < 50:
        count += len(profiler.poll(0.1))
        other.poll(0)
    during = look()
    deputy = deputies._child is not None
    profiler.stop()
after = look()
changed = [[name for name in before if found[name] != before[name]] for found in (during, after)]
print(json.dumps([changed, deputy, before["threads"], before["root logger"]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    (during, after), deputy, threads, logger = json.loads(done.stdout)
    # Which are there while it is; and a child while a file is open whose server may keep silent.
    assert set(during) == {"descriptors"} | ({"children"} if deputy else set())
    assert after == []
    assert threads == ["MainThread"]
    assert logger == [30, 0, True]


def test_importing_and_recording_leave_no_mark_either() -> None:
    program = f"""
{LOOKS}
before = look()
import rubyunwind
profile = rubyunwind.record(command=["true"])
after = look()
print(json.dumps([name for name in before if after[name] != before[name]]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout or "null") == [], done.stderr


def test_several_profilers_in_one_process_do_not_disturb_each_other() -> None:
    with ruby(SPIN) as one, ruby(SPIN) as other, ExitStack() as stack:
        first = stack.enter_context(Profiler([one.pid], rate=RATE))
        second = stack.enter_context(Profiler([other.pid], rate=RATE))
        both = stack.enter_context(Profiler(all_processes=True, rate=RATE))
        found: dict[int, set[int]] = {}
        counts: dict[int, int] = {}

        def enough() -> bool:
            for number, profiler in enumerate((first, second, both)):
                samples = profiler.poll(0.02)
                found.setdefault(number, set()).update(sample.pid for sample in samples)
                counts[number] = counts.get(number, 0) + len(samples)
            return min(counts.values()) >= 100 and found[2] >= {one.pid, other.pid}

        until(enough, "one of them has no samples")
        assert (found[0], found[1]) == ({one.pid}, {other.pid})
        second.close()
        assert {sample.pid for sample in gather(first, 50)} == {one.pid}
        assert second.stats.read == counts[1]


def test_it_starts_and_stops_many_times(busy: int) -> None:
    with Profiler([busy], rate=499) as profiler:
        descriptors = 0
        for turn in range(12):
            gather(profiler, 5)
            profiler.stop()
            stopped = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            descriptors = descriptors or stopped
            assert stopped == descriptors
            ticked = profiler.counters[Counter.SAMPLES]
            end = time.process_time() + 0.02
            while time.process_time() < end:
                pass
            assert profiler.poll(0) == []
            assert profiler.counters[Counter.SAMPLES] == ticked
            profiler.start()
            if turn == 0:
                profiler.start()  # twice is once
        assert gather(profiler, 20)
        profiler.stop()  # what is sent is all read, once nothing more is sent
        assert profiler.stats.read == profiler.counters[Counter.SENT]


def test_what_ended_or_began_while_it_was_stopped_is_noticed() -> None:
    with Profiler(all_processes=True, rate=RATE) as profiler:
        with ruby(SPIN) as first:
            until(lambda: any(s.pid == first.pid for s in profiler.poll(0.05)), "the first is not seen")
            profiler.stop()
        with ruby(SPIN) as second:
            profiler.start()
            assert first.pid not in profiler._tracker.processes
            until(
                lambda: any(
                    s.pid == second.pid and any(f.label == "spin_here" for f in s.frames)
                    for s in profiler.poll(0.05)
                ),
                "the second is not seen",
            )


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    said: list[object] = []

    def run() -> None:
        try:
            said.append(action())
        except Exception as error:
            said.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, said


@pytest.mark.parametrize("turn", range(5))
def test_another_thread_closes_it_while_it_waits(turn: int) -> None:
    del turn
    with process("cat") as idle:
        profiler = Profiler([idle.pid], rate=RATE).__enter__()
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

        def wait() -> object:
            while True:
                profiler.poll(1000)

        thread, said = in_thread(wait)
        time.sleep(0.05)
        profiler.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        (error,) = said
        assert isinstance(error, LifetimeError)
        assert "is closed" in str(error)
        assert len(os.listdir("/proc/self/fd")) < before - 10  # noqa: PTH208


def test_another_thread_ends_the_iteration_over_samples(busy: int) -> None:
    profiler = Profiler([busy], rate=499).__enter__()
    thread, said = in_thread(lambda: sum(1 for _ in profiler.samples()))
    until(lambda: profiler._tallies.read > 20, "no samples")
    profiler.close()
    thread.join(PATIENCE)
    assert said
    assert not isinstance(said[0], Exception)
    assert profiler.stats.read >= 20


def test_a_signal_handler_closes_it_in_the_midst_of_its_work(busy: int) -> None:
    profiler = Profiler([busy], rate=499).__enter__()
    before = signal.signal(signal.SIGALRM, lambda *_: profiler.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        polls = iter(lambda: profiler.poll(1000), None)
        with pytest.raises(LifetimeError):
            list(polls)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert profiler._stack.pop_all().__exit__(None, None, None) is False  # nothing was left to close
    assert not profiler.running


@pytest.mark.parametrize("way", ["select", "poll", "epoll"])
def test_its_descriptor_can_be_waited_for(busy: int, way: str) -> None:
    with Profiler([busy], rate=RATE) as profiler:
        waits: dict[str, Any] = {}
        waits["select"] = lambda: select.select([profiler], [], [], PATIENCE)[0]
        poll, epoll = select.poll(), select.epoll()
        poll.register(profiler, select.POLLIN)
        epoll.register(profiler.fileno(), select.EPOLLIN)
        waits["poll"] = lambda: poll.poll(PATIENCE * 1000)
        waits["epoll"] = lambda: epoll.poll(PATIENCE)
        samples = []
        while len(samples) < 40:
            assert waits[way]()
            samples += profiler.poll(0)
        epoll.close()
    assert {sample.pid for sample in samples} == {busy}


# Is sampled, and leaves time for the profiler.
SELDOM = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; done"


def test_what_waits_is_to_be_seen_in_the_stats() -> None:
    with Profiler(all_processes=True, rate=RATE) as profiler, ExitStack() as stack:
        assert profiler.stats.unfinished == 0
        pids = {stack.enter_context(process("sh", "-c", SELDOM)).pid for _ in range(5)}
        time.sleep(1)  # nobody looks meanwhile
        profiler._tracker._reports.take()
        waiting = profiler.stats.waiting
        assert waiting >= 3
        until(
            lambda: profiler.poll(0.01) is not None and pids <= profiler._tracker.processes.keys(),
            "they are not taken up",
        )
        until(lambda: profiler.poll(0.01) is not None and profiler.stats.waiting < waiting, "others wait")


def test_the_asyncio_example_streams_three_rubies_that_are_started_after_it() -> None:
    example = ROOT / "examples/asyncio_stream.py"
    if not example.exists():
        pytest.skip(f"no source tree here: {example} does not exist")
    with subprocess.Popen(
        [sys.executable, example], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as streaming:
        assert streaming.stdout is not None
        assert streaming.stderr is not None
        assert streaming.stderr.readline() == "ready\n"
        try:
            with ExitStack() as stack:
                names = ("one", "two", "three")
                spins = [
                    stack.enter_context(
                        process(RUBY, "--disable-gems", "-e", f"def in_{name} = (nil while true)\nin_{name}")
                    )
                    for name in names
                ]
                wanted = {(spin.pid, f"in_{name}") for spin, name in zip(spins, names, strict=True)}
                seen: dict[tuple[int, str], int] = dict.fromkeys(wanted, 0)
                end = time.monotonic() + PATIENCE
                while min(seen.values()) < 10:
                    assert time.monotonic() < end, seen
                    assert select.select([streaming.stdout], [], [], PATIENCE)[0], seen
                    said = json.loads(streaming.stdout.readline())
                    if (said["pid"], said["stack"][0]) in seen:
                        assert said["stack"][1:] == ["<main>"]
                        seen[said["pid"], said["stack"][0]] += 1
        finally:
            streaming.send_signal(signal.SIGINT)
            errors = streaming.communicate(timeout=PATIENCE)[1]
        assert set(re.findall(r"^\w+Error|^KeyboardInterrupt", errors, re.MULTILINE)) <= {"KeyboardInterrupt"}
