# SPDX-License-Identifier: Apache-2.0
"""What /proc says of the threads of a process: of this one, and of ones with odd names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from rubyunwind.process import threads as module
from rubyunwind.process.threads import ThreadInfo, read_thread, read_wait_channel, thread_info


def cpu_ns(tid: int) -> int:
    return next(thread.cpu_ns for thread in thread_info(os.getpid()) if thread.tid == tid)


def test_a_thread_that_runs_is_told_from_one_that_sleeps() -> None:
    end, ids = threading.Event(), [0, 0]

    def run(index: int, work: bool) -> None:
        ids[index] = threading.get_native_id()
        while work and not end.is_set():
            pass
        end.wait()

    both = [threading.Thread(target=run, args=(index, index == 0)) for index in range(2)]
    for thread in both:
        thread.start()
    try:
        while not all(ids):
            time.sleep(0.001)
        while next(t.state for t in thread_info(os.getpid()) if t.tid == ids[1]) != "S":
            time.sleep(0.001)
        before = [cpu_ns(tid) for tid in ids]
        deadline = time.monotonic() + 30
        while cpu_ns(ids[0]) == before[0]:
            assert time.monotonic() < deadline, "the time of a running thread does not grow"
        assert cpu_ns(ids[1]) == before[1]
        found = [thread.tid for thread in thread_info(os.getpid())]
        assert found == sorted(found)
        assert {*ids, *live_threads()} <= set(found)
    finally:
        end.set()
        for thread in both:
            thread.join()


def live_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


def test_a_process_that_is_gone_has_no_threads() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert thread_info(ended.pid) == ()
    assert read_thread(ended.pid, ended.pid) is None
    assert read_wait_channel(ended.pid, ended.pid) == ""


def test_a_thread_of_another_process_is_not_found_in_this_one() -> None:
    assert read_thread(os.getpid(), 1) is None


@pytest.mark.parametrize("name", [b"puma 1) R 2 (", b"", b"a\nb", b"\xff\xfe"])
def test_names_may_hold_anything(name: bytes) -> None:
    stat = b"12 (" + name + b") S 1 12 12 0 -1 4194560 99 0 0 0 250 50 0 0 20 0 4 0 876 0 0\n"
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert module._parse(12, stat, 0) == ThreadInfo(
        12, name.decode("utf-8", "surrogateescape"), "S", 300 * tick
    )
    assert module._parse(12, stat, 5) == ThreadInfo(12, name.decode("utf-8", "surrogateescape"), "S", 5)


@pytest.mark.parametrize("text", [b"", b"12 (ruby", b"12 (ruby) S 1 2", b") ( S"])
def test_a_stat_file_cut_short_is_no_thread(text: bytes) -> None:
    assert module._parse(12, text, 0) is None
