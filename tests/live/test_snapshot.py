# SPDX-License-Identifier: Apache-2.0
"""Snapshots: every thread of a live process or a core file, held against what Ruby printed of itself."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from rubyunwind import snapshot
from rubyunwind.errors import AttachError, DecodeError
from rubyunwind.profiler.snapshot import ThreadStack, take_snapshot

from .spinning import Location, spinning

ROOT = Path(__file__).parents[2]
CORES = ROOT / "tests" / "cores"

SLEEPERS = """
threads = 20.times.map { |n| Thread.new { Thread.current.name = "sleeper #{n}"; [n].each { sleep } } }
sleep 0.01 until threads.all? { |t| t.status == "sleep" }
puts "ready"; $stdout.flush
sleep
"""

# Two threads that take two locks in opposite order, and a dozen that wait for work.
DEADLOCKED = """\
queue, a, b, met = Queue.new, Mutex.new, Mutex.new, Queue.new
12.times { |n| Thread.new { Thread.current.name = "worker #{n}"; queue.pop } }
def take(other) = other.lock
both = [[1, a, b], [2, b, a]].map do |number, mine, other|
  Thread.new do
    Thread.current.name = "lock #{number}"
    mine.synchronize { met << 1; sleep 0.01 until met.size == 2; take(other) }
  end
end
Thread.pass until queue.num_waiting == 12 && met.size == 2
sleep 0.3
puts "ready"; $stdout.flush
sleep
"""


def locations(thread: ThreadStack) -> tuple[Location, ...]:
    return tuple(
        (frame.path or "", frame.line or 0, frame.label or frame.name)
        for frame in thread.frames
        if frame.kind not in ("native", "kernel")
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rubyunwind.cli.main", "snapshot", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["blocks_and_bmethods.rb", "fiber_in_enumerator.rb", "recursion.rb"])
def test_the_stack_of_a_spinning_thread_is_rubys_own(name: str) -> None:
    with spinning(name, "60") as program:
        threads = snapshot(program.pid)
    (main,) = (thread for thread in threads if thread.tid == program.pid)
    assert locations(main) == program.stack
    assert main.state == "running"


def test_every_thread_has_its_own_stack() -> None:
    with spinning("two_spinning_threads.rb", threads=2) as program:
        threads = {thread.tid: thread for thread in snapshot(program.pid)}
    for tid, stack in program.stacks:
        assert locations(threads[tid]) == stack
    others = [thread for tid, thread in threads.items() if tid not in dict(program.stacks)]
    assert sorted(thread.frames and locations(thread)[0][2] for thread in others) == ["join", "sleep"]
    assert all(thread.complete for thread in threads.values()), threads
    assert all(thread.frames[-1].kind == "native" for thread in threads.values())


def test_sleeping_threads_keep_their_stacks_names_and_states() -> None:
    ruby = shutil.which("ruby") or "ruby"
    with subprocess.Popen([ruby, "--disable-gems", "-e", SLEEPERS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            taken = take_snapshot(process.pid)
        finally:
            process.kill()
    sleepers = [thread for thread in taken.threads if thread.name.startswith("sleeper")]
    assert {thread.name for thread in sleepers} == {f"sleeper {n}" for n in range(20)}
    for thread in sleepers:
        assert thread.state == "sleeping"
        assert [label for _, _, label in locations(thread)] == [
            "sleep",
            "block (3 levels) in <main>",
            "each",
            "block (2 levels) in <main>",
        ]
    assert taken.stopped_ns > 0


def test_threads_that_lock_each_other_out_come_first_and_idle_ones_are_one() -> None:
    with subprocess.Popen(["ruby", "--disable-gems", "-e", DEADLOCKED], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            text = command("-p", str(process.pid))
            document = json.loads(command("-p", str(process.pid), "--json").stdout)
        finally:
            process.kill()
    assert text.returncode == 0, text.stderr
    heads = re.findall(r"^(?:thread \d+|\d+ threads)[^:]*: ([^(\n]*[^(\s])", text.stdout, re.MULTILINE)
    assert heads[0] == "waiting for a lock"
    assert heads[-1] == "waiting for a queue"
    names = dict(re.findall(r"(\d+) threads: .*\n  (.*)", text.stdout))
    assert re.fullmatch(r"lock [12] \(\d+\), lock [12] \(\d+\)", names["2"])
    assert names["12"].startswith("worker ")
    assert "2 threads wait for a lock and hold another" in text.stdout
    doings = {thread["name"]: (thread["doing"], thread["holds"]) for thread in document["threads"]}
    assert doings["lock 1"] == ("waiting for a lock", ["-e:7"])
    assert doings["lock 2"] == ("waiting for a lock", ["-e:7"])
    assert doings["worker 3"] == ("waiting for a queue", [])


def test_the_process_goes_on_after_a_snapshot() -> None:
    with spinning("recursion.rb", "3") as program:
        before = Path(f"/proc/{program.pid}/stat").read_text().rsplit(")")[1].split()[11]
        snapshot(program.pid)
        for _ in range(500):
            state, _, *rest = Path(f"/proc/{program.pid}/stat").read_text().rsplit(")")[1].split()
            if int(rest[9]) > int(before) + 2:
                break
            subprocess.run(["sleep", "0.01"], check=True)
        assert state in "RS"
        assert int(rest[9]) > int(before), "it used no CPU time since"


def test_text_and_json_say_the_same() -> None:
    with spinning("names_with_odd_characters.rb") as program:
        text, document = command("-p", str(program.pid)), command("-p", str(program.pid), "--json")
    assert text.returncode == document.returncode == 0, (text.stderr, document.stderr)
    taken = json.loads(document.stdout)
    assert taken["pid"] == program.pid
    (main,) = (thread for thread in taken["threads"] if thread["tid"] == program.pid)
    shown = [(f["path"], f["line"], f["label"]) for f in main["frames"] if f["kind"] in ("ruby", "cfunc")]
    assert tuple(shown) == program.stack
    assert f"thread {program.pid}" in text.stdout
    assert all(line.isprintable() for line in text.stdout.splitlines())


def test_without_a_stop_every_ruby_thread_has_its_ruby_frames() -> None:
    with spinning("two_spinning_threads.rb", threads=2) as program:
        taken = take_snapshot(program.pid, nonblocking=True)
    assert taken.stopped_ns == 0
    threads = {thread.tid: thread for thread in taken.threads}
    for tid, stack in program.stacks:
        assert threads[tid].complete, threads[tid].reason
        assert locations(threads[tid]) == stack
    assert sorted(
        locations(thread)[0][2] for tid, thread in threads.items() if tid not in dict(program.stacks)
    ) == [
        "join",
        "sleep",
    ]
    assert all(frame.kind in ("ruby", "cfunc") for thread in taken.threads for frame in thread.frames)


def test_a_stack_that_never_holds_still_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from rubyunwind.profiler.context_reader import ContextReader

    monkeypatch.setattr(ContextReader, "read", lambda *_, **__: None)
    with spinning("recursion.rb", "3") as program:
        taken = take_snapshot(program.pid, nonblocking=True)
    (main,) = taken.threads
    assert (main.frames, main.complete, main.reason) == ((), False, "torn read")


# ---- core files ----


@pytest.mark.parametrize("core", sorted(CORES.glob("*.gz")), ids=lambda path: path.name)
def test_a_small_core_gives_what_the_program_printed(core: Path) -> None:
    stacks = [json.loads(line) for line in core.with_suffix(".json").read_text().splitlines()]
    threads = {thread.tid: thread for thread in snapshot(core=core)}
    for stack in stacks:
        tid = stack.get("tid") or stack["pid"]
        assert locations(threads[tid]) == tuple(tuple(frame) for frame in stack["frames"])


@pytest.mark.skipif(shutil.which("gcore") is None, reason="no gcore (gdb)")
def test_a_core_by_gcore_has_whole_mixed_stacks(tmp_path: Path) -> None:
    with spinning("bounces.rb", "5") as program:
        subprocess.run(
            ["gcore", "-o", str(tmp_path / "core"), str(program.pid)], check=True, capture_output=True
        )
        live = {thread.tid: thread for thread in snapshot(program.pid)}
    core = tmp_path / f"core.{program.pid}"
    (main,) = (thread for thread in snapshot(core=core) if thread.tid == program.pid)
    assert main.complete, main.reason
    assert locations(main) == program.stack
    assert [frame.name for frame in main.frames[-8:]] == [
        frame.name for frame in live[program.pid].frames[-8:]
    ]


# ---- bad input ----


def test_bad_input_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no core\n")
    with spinning("recursion.rb", "3") as program:
        pid = str(program.pid)
        for arguments, status, words in (
            ((), 2, "name a process"),
            (("-p", pid, "--core", str(text)), 2, "one of them"),
            (("--core", str(text)), 1, "core"),
            (("--core", str(tmp_path / "nothing")), 1, "No such file"),
            (("--core", sys.executable), 1, "core"),
            (("-p", "999999999"), 1, "no such process"),
            (("-p", "2"), 1, "kernel thread"),
            (("-p", pid, "--ec", "here"), 2, "hexadecimal"),
        ):
            result = command(*arguments)
            assert result.returncode == status, (arguments, result)
            assert words in result.stderr, (arguments, result.stderr)
            assert "Traceback" not in result.stderr


@pytest.mark.parametrize("cut", [0, 64, 1000, 100_000])
def test_a_core_that_is_cut_short_gives_an_error_or_what_it_has(tmp_path: Path, cut: int) -> None:
    whole = gzip.decompress(next(iter(sorted(CORES.glob("*.gz")))).read_bytes())
    core = tmp_path / "core"
    core.write_bytes(whole[:cut])
    threads: tuple[ThreadStack, ...] = ()
    with suppress(AttachError, DecodeError):  # anything else is a fault
        threads = snapshot(core=core)
    assert len(threads) <= 1


def test_a_program_without_ruby_has_native_stacks() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            os.sched_yield()
            taken = take_snapshot(process.pid)
        finally:
            process.kill()
    assert any("no Ruby" in note for note in taken.notes)
    assert taken.threads[0].frames
