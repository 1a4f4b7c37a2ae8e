# SPDX-License-Identifier: Apache-2.0
"""Which processes are sampled, and that what they burn is in the counts however short they live.

How many samples there have to be follows from the CPU time that a program says it has used, times the rate.
That is coarse: the kernel books CPU time in slices and a task's last steps after its process is gone, and a
tick comes late on a machine that shares its CPUs. So a quarter more or less is allowed; a design that loses
what short-lived tasks burn loses most of it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
# A storm begins at a line from us and ends after 1.2 s of CPU time of it and its children, however long that
# takes; it prints the seconds of both. What a storm repeats takes a random time, 2 ms on average: the clock
# ticks each 2 ms, too, and would meet a steady rhythm always in the same place.
RUBY_STORM = """
    def used
      times = Process.times
      [times.utime + times.stime, times.cutime + times.cstime]
    end
    $stdout.sync = true
    puts; gets
    before = used
    one_more while used.sum - before.sum < 1.2
    puts used.zip(before).map { |now, start| now - start }.join(" ")
    gets
"""
CHILDREN = 'def one_more = system("true")\n' + RUBY_STORM
# With bursts of its own, so that there is enough of the parent to be counted.
BUSY_PARENT = (
    """
    def busy(until_) = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < until_)
    def one_more
      system("true")
      busy(Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) + rand * 0.004)
    end
"""
    + RUBY_STORM
)
THREADS = (
    """
    def busy(seconds)
      start = Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID)
      nil while Process.clock_gettime(Process::CLOCK_THREAD_CPUTIME_ID) < start + seconds
    end
    def one_more = Thread.new { busy(rand * 0.004) }.join
"""
    + RUBY_STORM
)
# Ruby gives the kernel's threads to one Thread after the other; Python makes a new one for each.
NATIVE_THREADS = """
import random
import threading
import time

def busy():
    end = random.uniform(0, 0.004)
    while time.thread_time() < end:
        pass

def one_more():
    thread = threading.Thread(target=busy)
    thread.start()
    thread.join()

print(flush=True)
input()
before = time.process_time()
while time.process_time() - before < 1.2:
    one_more()
print(time.process_time() - before, 0.0, flush=True)
input()
"""
SPIN = "while :; do :; done"


@dataclass(frozen=True, slots=True)
class Storm:
    """What came of a storm: the profiler, closed, the samples, the CPU seconds of it and of its children."""

    pid: int
    profiler: Profiler
    samples: list[Sample]
    own: float
    of_children: float

    @property
    def accounted(self) -> int:
        """Samples that were read, and those that are known to be missing."""
        totals = self.profiler.stats
        return totals.read + totals.lost + dict(totals.failed).get("process not registered yet", 0)


def sample_storm(target: subprocess.Popen[str], *, children: bool = True) -> Storm:
    hear(target)
    with Profiler([target.pid], rate=RATE, children=children) as profiler:
        say(target)
        assert target.stdout is not None
        samples: list[Sample] = []
        end = time.monotonic() + 4 * PATIENCE
        while not select.select([target.stdout], [], [], 0)[0]:
            samples += profiler.poll(0.1)
            assert time.monotonic() < end, f"the storm does not end; {profiler.stats}"
        samples += profiler.stop()
    own, of_children = map(float, hear(target).split())
    assert profiler.stats.read == len(samples)
    return Storm(target.pid, profiler, samples, own, of_children)


def test_what_a_storm_of_short_children_burns_is_in_the_counts() -> None:
    with ruby(CHILDREN) as target:
        storm = sample_storm(target)
    assert storm.of_children > 0.3  # it is about them
    assert storm.accounted == pytest.approx((storm.own + storm.of_children) * RATE, rel=0.25)
    assert len({sample.pid for sample in storm.samples}) >= 50
    assert storm.profiler.counters[Counter.NOT_FOLLOWED] == 0


def test_of_a_storm_of_children_that_are_not_followed_the_parent_is_sampled() -> None:
    with ruby(BUSY_PARENT) as target:
        storm = sample_storm(target, children=False)
    assert storm.of_children > 0.1
    assert {sample.pid for sample in storm.samples} == {storm.pid}
    assert len(storm.samples) == pytest.approx(storm.own * RATE, rel=0.25)
    assert storm.profiler.stats.lost == 0
    assert storm.profiler.counters[Counter.UNKNOWN_PID] == 0


def test_what_a_storm_of_short_ruby_threads_burns_is_in_the_counts() -> None:
    with ruby(THREADS) as target:
        storm = sample_storm(target)
    assert {sample.pid for sample in storm.samples} == {storm.pid}
    assert len(storm.samples) == pytest.approx(storm.own * RATE, rel=0.25)
    busy = [sample for sample in storm.samples if any(frame.label == "busy" for frame in sample.frames)]
    assert len(busy) >= 0.6 * len(storm.samples)


def test_what_a_storm_of_threads_that_live_two_milliseconds_burns_is_in_the_counts() -> None:
    with process(sys.executable, "-c", NATIVE_THREADS) as target:
        storm = sample_storm(target)
    assert {sample.pid for sample in storm.samples} == {storm.pid}
    assert len(storm.samples) == pytest.approx(storm.own * RATE, rel=0.25)
    assert len({sample.tid for sample in storm.samples}) >= 0.25 * len(storm.samples)


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
            gather_more(profiler, samples, 20)
            assert {sample.pid for sample in samples} == {stranger}


def test_a_busy_process_is_told_from_those_beside_it() -> None:
    with spinning_shell() as target, spinning_shell(), Profiler([target], rate=RATE) as profiler:
        samples: list[Sample] = []
        gather_more(profiler, samples, 100)
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


def gather_more(profiler: Profiler, samples: list[Sample], count: int) -> None:
    """Add samples to a list until it has that many."""

    def enough() -> bool:
        samples.extend(profiler.poll(0.05))
        return len(samples) >= count

    until(enough, f"there are not {count} samples")


ALL = FollowFlag.PROCESS | FollowFlag.CHILDREN


def test_a_process_that_has_ended_is_followed_no_longer_nor_are_its_children() -> None:
    script = "read go; sleep 60 & echo $!; read go; exit"
    with process("sh", "-c", script) as shell, Profiler([shell.pid], rate=RATE) as profiler:
        assert followed(profiler) == {shell.pid: ALL}
        say(shell)
        child = int(hear(shell))
        try:
            assert followed(profiler) == {shell.pid: ALL, child: ALL}
            say(shell)
            wait_for(profiler, lambda: read_status(shell.pid).ended, "the shell does not end")
            assert followed(profiler) == {child: ALL}  # an orphan stays one of ours
        finally:
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
    with process(sys.executable, "-c", textwrap.dedent(script)) as target:
        hear(target)
        with Profiler([target.pid], rate=RATE) as profiler:
            say(target)
            wait_for(profiler, lambda: read_status(target.pid).state == "Z", "its leader does not end")
            (rest,) = set(threads(target.pid)) - {target.pid}
            samples: list[Sample] = []
            gather_more(profiler, samples, 50)
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
            gather_more(profiler, samples, 20)
            assert followed(profiler) == {shell.pid: FollowFlag.PROCESS}


def test_a_child_that_had_ended_before_is_not_followed() -> None:
    # Until its parent waits for it, it is still listed. A pid that stays in the map would be sampled
    # when the kernel gives it to another process.
    with ruby("puts fork { exit! }; $stdout.flush; sleep") as parent:
        child = int(hear(parent))
        until(lambda: read_status(child).ended, "the child does not end")
        with Profiler([parent.pid], rate=RATE) as profiler:
            assert followed(profiler) == {parent.pid: ALL}


def test_a_child_that_finds_no_room_is_counted_and_said() -> None:
    script = "read go; for n in 1 2 3 4 5 6; do sleep 60 & echo $!; done; wait"
    with (
        process("sh", "-c", script) as shell,
        Profiler([shell.pid], rate=RATE, map_sizes={"followed_pids": 4}) as profiler,
    ):
        say(shell)
        children = {int(hear(shell)) for _ in range(6)}
        try:
            profiler.poll(0.05)
            kept = set(followed(profiler)) - {shell.pid}
            counted = profiler.counters[Counter.NOT_FOLLOWED]
            said = dict(profiler.stats.failed)["processes too many to follow"]
        finally:
            for child in children:
                os.kill(child, 9)
    assert kept < children
    assert counted == said == len(children - kept) >= 1
