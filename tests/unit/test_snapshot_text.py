# SPDX-License-Identifier: Apache-2.0
"""What a snapshot says of threads: what needs a look comes first, equal stacks are one."""

from __future__ import annotations

import pytest

from rubyunwind.cli.snapshot_text import snapshot_text
from rubyunwind.profiler.occupation import Concern, occupation_of
from rubyunwind.profiler.sample import Frame
from rubyunwind.profiler.snapshot import Snapshot, ThreadStack

MAIN = Frame("ruby", "<main>", "<main>", "/app.rb", 1)
WORK = Frame("ruby", "Work#run", "run", "/app.rb", 5)
FUTEX = Frame("native", "pthread_cond_wait", module="/lib/libc.so.6", offset=7)


def cfunc(name: str, line: int = 9) -> Frame:
    return Frame("cfunc", name, name.rpartition("#")[2], "/app.rb", line)


LOCK, QUEUE = cfunc("Thread::Mutex#synchronize"), cfunc("Thread::Queue#pop")
SSL = cfunc("OpenSSL::SSL::SSLSocket#sysread")


def thread(tid: int, *frames: Frame, state: str = "sleeping", name: str = "", **other: str) -> ThreadStack:
    return ThreadStack(tid, name, state, frames, complete=True, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "frames", "concern", "text", "holds"),
    [
        ("sleeping", (LOCK, MAIN), Concern.LOCKED, "waiting for a lock", ()),
        ("sleeping", (cfunc("synchronize"), MAIN), Concern.LOCKED, "waiting for a lock", ()),  # Ruby 3.2
        ("sleeping", (cfunc("Mutex#lock"), MAIN), Concern.LOCKED, "waiting for a lock", ()),  # Ruby 2.7
        ("sleeping", (cfunc("Monitor#synchronize"), MAIN), Concern.LOCKED, "waiting for a lock", ()),
        (
            "sleeping",
            (LOCK, WORK, cfunc("Monitor#synchronize", 3), MAIN),
            Concern.LOCKED_WITH_LOCK,
            "waiting for a lock",
            ("/app.rb:3",),
        ),
        ("running", (WORK, LOCK, MAIN), Concern.BUSY, "", ("/app.rb:9",)),
        ("in uninterruptible sleep", (cfunc("File#read"), MAIN), Concern.BUSY, "", ()),
        ("sleeping", (cfunc("Kernel#sleep"), LOCK, MAIN), Concern.HOLDER, "asleep as told", ("/app.rb:9",)),
        # It has given the lock back for that long.
        (
            "sleeping",
            (cfunc("Thread::ConditionVariable#wait"), WORK, LOCK, MAIN),
            Concern.WAITING,
            "waiting for a condition variable",
            (),
        ),
        ("sleeping", (WORK, MAIN), Concern.BUSY, "waiting for its turn to run (the GVL)", ()),
        ("sleeping", (QUEUE, MAIN), Concern.WAITING, "waiting for a queue", ()),
        (
            "sleeping",
            (cfunc("PG::Connection#exec_params"), MAIN),
            Concern.WAITING,
            "waiting for a database",
            (),
        ),
        (
            "sleeping",
            (cfunc("OpenSSL::SSL::SSLSocket#sysread"),),
            Concern.WAITING,
            "waiting for input or output",
            (),
        ),
        ("sleeping", (cfunc("Array#each"), MAIN), Concern.WAITING, "", ()),
        ("sleeping", (FUTEX,), Concern.WAITING, "", ()),
        ("signal 11", (WORK, MAIN), Concern.BUSY, "", ()),
        ("dead", (LOCK, MAIN), Concern.LOCKED, "waiting for a lock", ()),  # in a core
    ],
)
def test_what_a_thread_does_follows_from_its_innermost_ruby_frame(
    state: str, frames: tuple[Frame, ...], concern: Concern, text: str, holds: tuple[str, ...]
) -> None:
    assert occupation_of(thread(1, FUTEX, *frames, state=state)) == (concern, text, holds)


def lines(*threads: ThreadStack, native: bool = False, every_name: bool = False) -> list[str]:
    return list(snapshot_text(Snapshot(1, "ruby", threads), native=native, every_name=every_name))


IDLE = [thread(100 + n, FUTEX, QUEUE, MAIN, name=f"puma {n}", wait_channel="futex_wait") for n in range(20)]
ACROSS = [thread(n, FUTEX, LOCK, WORK, LOCK, MAIN, name=f"dead {n}") for n in (30, 31)]


def test_what_needs_a_look_is_first_and_idle_threads_are_one() -> None:
    found = lines(
        *IDLE, thread(5, WORK, MAIN, state="running"), thread(6, FUTEX, LOCK, MAIN, name="w"), *ACROSS
    )
    heads = [line for line in found if line.startswith(("thread ", "2 threads", "20 threads"))]
    assert heads == [
        "2 threads: waiting for a lock (sleeping)",
        "thread 6 w: waiting for a lock (sleeping)",
        "thread 5: running",
        "20 threads: waiting for a queue (sleeping in futex_wait)",
    ]
    assert found[1] == "  3 waiting for a lock, 1 running, 20 waiting for a queue"
    assert found[2].strip().startswith("2 threads wait for a lock and hold another: a deadlock if")
    assert "  holds the lock taken at /app.rb:9" in found


def test_threads_of_equal_stacks_are_named_some_or_all() -> None:
    some, all_of_them = (
        " ".join(" ".join(lines(*IDLE, every_name=every)).split()) for every in (False, True)
    )
    assert "puma 7 (107) and 12 more; -v names all" in some
    assert "puma 8 (108)" not in some
    assert all(f"puma {n} ({100 + n})" in all_of_them for n in range(20))
    assert max(map(len, lines(*IDLE, every_name=True))) <= 100


def test_native_frames_are_shown_when_asked_for_and_where_there_is_no_ruby_code() -> None:
    ruby, other = thread(1, FUTEX, QUEUE, MAIN), thread(2, FUTEX)
    shown = [line for line in lines(ruby) if "pthread" in line]
    assert shown == []
    assert "  native frames are left out; --native shows them" in lines(ruby)
    assert [line for line in lines(other) if "pthread" in line] == [
        "    native  pthread_cond_wait  /lib/libc.so.6+0x7"
    ]
    assert "  native frames are left out; --native shows them" not in lines(other)
    assert any("pthread" in line for line in lines(ruby, native=True))


def test_threads_that_wait_alike_in_two_places_of_the_kernel_are_one() -> None:
    found = lines(
        thread(1, QUEUE, MAIN, wait_channel="futex_wait"), thread(2, QUEUE, MAIN, wait_channel="poll")
    )
    assert "2 threads: waiting for a queue (sleeping in futex_wait or poll)" in found


def test_threads_that_differ_in_a_line_or_in_their_state_stay_apart() -> None:
    threads = [
        thread(1, QUEUE, MAIN),
        thread(2, cfunc("Thread::Queue#pop", 10), MAIN),
        thread(3, QUEUE, MAIN, state="stopped"),
        ThreadStack(4, "", "sleeping", (QUEUE, MAIN), complete=False, reason="limit"),
    ]
    found = lines(*threads)
    assert sum(line.startswith("thread ") for line in found) == 4
    assert "    [incomplete: limit]" in found


def test_hostile_names_stay_on_their_line() -> None:
    hostile = "a\nb\x1b[2J\u202e"
    found = lines(
        thread(1, Frame("ruby", hostile, path=hostile, line=1), name=hostile),
        thread(2, cfunc(hostile), Frame("cfunc", "Mutex#synchronize", path=hostile, line=2), name=hostile),
    )
    assert all(line.isprintable() for line in found)
