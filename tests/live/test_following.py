# SPDX-License-Identifier: Apache-2.0
"""Which processes are sampled, and that what they burn is in the counts however short they live.

How many samples there have to be follows from the CPU time that a program says it has used, times the rate.
That is coarse: the kernel books CPU time in slices and a task's last steps after its process is gone, and a
tick comes late on a machine that shares its CPUs. So a quarter more or less is allowed; a design that loses
what short-lived tasks burn loses most of it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.abi import Counter, FollowFlag
from rubyunwind.process.identity import read_status, threads

from .recorder import Record, hear, ids, process, read_jsonl, ruby, say, until
from .spinning import PATIENCE
from .test_lifecycle import FORKS, child_of

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 499
# Begins at a line from us, and ends after that much CPU time of it and its children; prints seconds of both.
STORM = """
    def used
      times = Process.times
      [times.utime + times.stime, times.cutime + times.cstime]
    end
    $stdout.sync = true
    puts; gets
    before = used
    yield_once while used.sum - before.sum < 1.2
    puts used.zip(before).map { |now, then_| now - then_ }.join(" ")
    gets
"""
SPAWN = 'def yield_once = system("true")\n'
THREAD = """
    def busy = (nil while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < 0.002)
    def yield_once = Thread.new { busy }.join
"""
# A stranger: other programs that burn CPU beside what is followed, in short children, too.
SPIN = "while :; do :; done"


def storm(script: str, *, children: bool) -> tuple[Profiler, list[Sample], int, float, float]:
    """Sample a storm; return the closed profiler, the samples, the pid, and the CPU seconds of it and its children."""
    with ruby(script + STORM) as target:
        hear(target)
        with Profiler([target.pid], rate=RATE, children=children) as profiler:
            say(target)
            assert target.stdout is not None
            os.set_blocking(target.stdout.fileno(), False)
            samples: list[Sample] = []
            end = time.monotonic() + 4 * PATIENCE
            while not (line := target.stdout.readline()):
                samples += profiler.poll(0.1)
                assert time.monotonic() < end, f"the storm does not end; {profiler.stats}"
            samples += profiler.stop()
    own, of_children = map(float, line.split())
    return profiler, samples, target.pid, own, of_children


def accounted(profiler: Profiler) -> int:
    """Samples that were read, and those that are known to be missing."""
    totals = profiler.stats
    return totals.read + totals.lost + dict(totals.failed).get("process not registered yet", 0)


def test_what_a_storm_of_short_children_burns_is_in_the_counts() -> None:
    profiler, samples, pid, own, of_children = storm(SPAWN, children=True)
    assert profiler.stats.read == len(samples)
    assert of_children > 0.3  # it is about them
    assert accounted(profiler) == pytest.approx((own + of_children) * RATE, rel=0.25)
    of_parent = sum(sample.pid == pid for sample in samples)
    assert of_parent == pytest.approx(own * RATE, rel=0.25)
    assert profiler.counters[Counter.NOT_FOLLOWED] == 0


def test_of_a_storm_of_children_that_are_not_followed_the_parent_is_sampled() -> None:
    profiler, samples, pid, own, of_children = storm(SPAWN, children=False)
    assert of_children > 0.3
    assert {sample.pid for sample in samples} == {pid}
    assert len(samples) == pytest.approx(own * RATE, rel=0.25)
    assert profiler.stats.lost == 0
    assert profiler.counters[Counter.UNKNOWN_PID] == 0


def test_what_a_storm_of_short_threads_burns_is_in_the_counts() -> None:
    profiler, samples, pid, own, _ = storm(THREAD, children=True)
    assert {sample.pid for sample in samples} == {pid}
    assert len(samples) == pytest.approx(own * RATE, rel=0.25)
    assert len({sample.tid for sample in samples}) >= 50
    busy = [sample for sample in samples if any(frame.label == "busy" for frame in sample.frames)]
    assert len(busy) >= 0.6 * len(samples)


@contextmanager
def spinning_shell() -> Iterator[int]:
    with process("sh", "-c", SPIN) as shell:
        yield shell.pid


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its reaped children."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_what_runs_beside_is_neither_sampled_nor_counted() -> None:
    storm = "while :; do /bin/true; done"
    with process("cat") as idle, spinning_shell() as stranger, process("sh", "-c", storm) as spawner:
        say(idle, "ready")
        hear(idle)
        with Profiler([idle.pid], rate=RATE) as profiler:
            profiler.poll(0.05)
            before = profiler.counters
            started = {pid: cpu_seconds(pid) for pid in (stranger, spawner.pid)}
            samples: list[Sample] = []

            def burnt() -> bool:
                samples.extend(profiler.poll(0.05))
                return all(cpu_seconds(pid) > since + 0.2 for pid, since in started.items())

            until(burnt, "the strangers get no CPU time")
            after = profiler.counters
            for which in (Counter.SAMPLES, Counter.UNKNOWN_PID, Counter.SENT):
                assert after[which] == before[which], which
            assert samples == []
            # The clock has ticked all the while: once it is followed, it is seen, and it alone.
            profiler.follow(stranger)
            until(lambda: samples.extend(profiler.poll(0.05)) or len(samples) >= 20, "it is not sampled")
            assert {sample.pid for sample in samples} == {stranger}


def test_a_busy_process_is_told_from_those_beside_it() -> None:
    with spinning_shell() as target, spinning_shell(), Profiler([target], rate=RATE) as profiler:
        samples: list[Sample] = []
        until(lambda: samples.extend(profiler.poll(0.05)) or len(samples) >= 100, "it is not sampled")
        samples += profiler.stop()
        counted = profiler.counters
    assert {sample.pid for sample in samples} == {target}
    assert counted[Counter.SAMPLES] == len(samples)
    assert counted[Counter.UNKNOWN_PID] == 0


@pytest.mark.parametrize(("options", "followed"), [(("-s",), True), ((), False)], ids=["-s", "alone"])
def test_a_child_that_was_forked_before_is_recorded_with_s_only(
    record: Record, tmp_path: Path, options: tuple[str, ...], followed: bool
) -> None:
    with ruby(FORKS) as target:
        hear(target)
        say(target)
        until(lambda: children_of(target.pid), "it does not fork")
        child = child_of(target.pid)
        try:
            enough = ("-r", RATE, "-d", 1, "-o", "profile.jsonl")
            recorder = record(*enough, *options, "-p", target.pid)
            assert recorder.wait() == 0
        finally:
            os.kill(child, 9)
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert ids(samples) == ({target.pid, child} if followed else {target.pid})


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def followed(profiler: Profiler) -> dict[int, int]:
    """What the kernel side follows: flags by pid."""
    entries = profiler.collection.maps["followed_pids"].items()
    return {int.from_bytes(k, "little"): int.from_bytes(v, "little") for k, v in entries if any(k)}


def wait_for(profiler: Profiler, condition: Callable[[], object], what: str) -> None:
    """Like until, with the profiler at work."""

    def met() -> object:
        profiler.poll(0.005)
        return condition()

    until(met, what)


ALL = FollowFlag.PROCESS | FollowFlag.CHILDREN


def test_a_process_that_has_ended_is_followed_no_longer_nor_are_its_children() -> None:
    with process("sh", "-c", "read go; sleep 60 & echo $!; read go; exit") as shell:
        with Profiler([shell.pid], rate=RATE) as profiler:
            assert followed(profiler) == {shell.pid: ALL}
            say(shell)
            child = int(hear(shell))
            assert followed(profiler) == {shell.pid: ALL, child: ALL}
            say(shell)
            wait_for(profiler, lambda: read_status(shell.pid).ended, "the shell does not end")
            assert followed(profiler) == {child: ALL}  # an orphan stays one of ours
            os.kill(child, 9)
            wait_for(profiler, lambda: followed(profiler) == {}, "the child is still followed")
            wait_for(profiler, lambda: not profiler.running, "the recording does not end")


def test_a_process_stays_followed_until_its_last_thread_has_ended() -> None:
    script = """
        import ctypes, threading, platform
        def spin():
            print(flush=True)
            while True: pass
        threading.Thread(target=spin).start()
        input()
        number = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # exit(2): of this thread alone
        ctypes.CDLL(None).syscall(number, 0)
    """
    import sys
    import textwrap

    with process(sys.executable, "-c", textwrap.dedent(script)) as target:
        hear(target)
        with Profiler([target.pid], rate=RATE) as profiler:
            say(target)
            wait_for(profiler, lambda: read_status(target.pid).state == "Z", "its leader does not end")
            (rest,) = set(threads(target.pid)) - {target.pid}
            samples: list[Sample] = []
            until(lambda: samples.extend(profiler.poll(0.05)) or len(samples) >= 50, "it is not sampled")
            assert {sample.tid for sample in samples[-20:]} == {rest}
            assert followed(profiler) == {target.pid: ALL}
            target.kill()
            wait_for(profiler, lambda: not profiler.running, "the recording does not end")
            assert followed(profiler) == {}


def test_a_process_that_is_followed_from_its_exec_on_is_not_sampled_before() -> None:
    script = "while [ $n -lt 200000 ]; do n=$((n+1)); done; echo; read go; exec sh -c '" + SPIN + "'"
    with process("env", "n=0", "sh", "-c", "read go; " + script) as shell:
        until(lambda: read_status(shell.pid).comm == "sh", "it does not begin")
        with Profiler(rate=RATE, children=False) as profiler:
            profiler.follow(shell.pid, from_exec=True)
            say(shell)
            hear(shell)  # it has counted, which takes some 0.2 s
            assert profiler.poll(0) == []
            assert profiler.counters[Counter.SAMPLES] == 0
            assert followed(profiler) == {shell.pid: FollowFlag.PROCESS | FollowFlag.FROM_EXEC}
            say(shell)
            samples: list[Sample] = []
            until(lambda: samples.extend(profiler.poll(0.05)) or len(samples) >= 20, "it is not sampled")
            assert followed(profiler) == {shell.pid: FollowFlag.PROCESS}


def test_a_child_that_had_ended_before_is_not_followed() -> None:
    # Until its parent waits for it, it is still listed. A pid that stays in the map would be sampled
    # when the kernel gives it to another process.
    with process("sh", "-c", "true & echo $!; exec sleep 60") as parent:
        child = int(hear(parent))
        until(lambda: read_status(parent.pid).comm == "sleep", "it does not exec")
        until(lambda: read_status(child).ended, "the child does not end")
        with Profiler([parent.pid], rate=RATE) as profiler:
            assert followed(profiler) == {parent.pid: ALL}


def test_a_child_that_finds_no_room_is_counted_and_said() -> None:
    script = "read go; for n in 1 2 3 4 5 6; do sleep 60 & echo $!; done; read go; kill $(jobs -p)"
    with process("sh", "-c", script) as shell:
        with Profiler([shell.pid], rate=RATE, map_sizes={"followed_pids": 4}) as profiler:
            say(shell)
            children = {int(hear(shell)) for _ in range(6)}
            profiler.poll(0.05)
            kept = set(followed(profiler)) - {shell.pid}
            counted = profiler.counters[Counter.NOT_FOLLOWED]
            said = dict(profiler.stats.failed)["processes too many to follow"]
        say(shell)
        shell.wait()
    assert kept < children
    assert counted == said == len(children - kept) >= 1
