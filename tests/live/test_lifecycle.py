# SPDX-License-Identifier: Apache-2.0
"""What processes do while they are recorded: end, map libraries, fork, execute, start threads."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rubyunwind import Profile, Profiler, Sample, record

from .recorder import hear, process, ruby, say
from .spinning import PATIENCE, RUBY

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299
# Spins for an amount of CPU time of this process, so that the number of samples is known on a busy machine.
BURN = "def burn(s) = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < s)\n"


def poll_until(profiler: Profiler, enough: Callable[[list[Sample]], object]) -> list[Sample]:
    """Gather samples until they are enough. Fails if that takes too long."""
    samples: list[Sample] = []
    end = time.monotonic() + PATIENCE
    while not enough(samples):
        samples += profiler.poll(0.1)
        assert time.monotonic() < end, f"not enough in {len(samples)} samples; {profiler.stats}"
    return samples


def poll_to_the_end(profiler: Profiler) -> list[Sample]:
    samples = poll_until(profiler, lambda _: not profiler.running)
    return samples + profiler.stop()


def ruby_labels(sample: Sample) -> list[str | None]:
    return [frame.label for frame in sample.frames if frame.kind in ("ruby", "cfunc")]


def has(sample: Sample, label: str) -> bool:
    return label in ruby_labels(sample)


def unnamed(samples: Sequence[Sample]) -> list[str]:
    return [frame.name for sample in samples for frame in sample.frames if frame.kind in ("unknown", "error")]


def test_a_target_that_is_killed_ends_the_recording_and_its_samples_keep_their_names() -> None:
    with ruby("def spin = (nil while true)\nputs; $stdout.flush; spin") as target:
        hear(target)
        with Profiler([target.pid], rate=RATE) as profiler:
            before = poll_until(profiler, lambda samples: len(samples) >= 20)
            target.kill()
            after = poll_to_the_end(profiler)
            totals = profiler.stats
    assert totals.read == len(before) + len(after)
    assert totals.lost == 0
    samples = before + after
    assert unnamed(samples) == []
    assert sum(has(sample, "spin") for sample in samples) >= 0.95 * len(samples)


@pytest.mark.parametrize("command", [["true"], [RUBY, "-e", "1"], [RUBY, "-e", "exit 3"]], ids=" ".join)
def test_a_command_that_ends_at_once_gives_its_status_and_what_was_seen(command: list[str]) -> None:
    profile = record(command=command, rate=RATE)
    assert profile.exit_status == (3 if "exit 3" in command else 0)
    assert profile.totals.read == len(profile.samples)
    assert profile.totals.lost == 0


def test_a_c_extension_that_is_loaded_while_recorded_is_unwound() -> None:
    script = """
        puts; $stdout.flush; $stdin.gets
        require "zlib"
        text = Random.new(1).bytes(300_000)
        def squeeze(text) = Zlib::Deflate.deflate(text)
        loop { squeeze(text) }
    """
    with ruby(script) as target:
        hear(target)
        with Profiler([target.pid], rate=RATE) as profiler:
            say(target)

            def whole_inside(samples: list[Sample]) -> list[Sample]:
                return [s for s in samples if s.complete and "/libz.so" in (s.frames[0].module or "")]

            samples = poll_until(profiler, lambda samples: len(whole_inside(samples)) >= 50)
    for sample in whole_inside(samples):
        modules = [Path(frame.module).name for frame in sample.frames if frame.module]
        assert "zlib.so" in modules  # the extension, which calls the library
        assert ruby_labels(sample)[:2] == ["deflate", "squeeze"]
    # Until its rows are registered a library cannot be unwound: that is short.
    cut = [s for s in samples if not s.complete]
    assert len(cut) <= len(samples) / 5, {s.reason for s in cut}


def by_pid(profile: Profile) -> dict[int, list[Sample]]:
    found: dict[int, list[Sample]] = defaultdict(list)
    for sample in profile.samples:
        found[sample.pid].append(sample)
    return found


def test_children_of_a_command_have_stacks_of_their_own(tmp_path: Path) -> None:
    script = (
        BURN
        + """
        3.times do |n|
          eval "def work_#{n} = burn(0.25)"
          fork do
            File.write("#{ARGV[0]}/#{n}", $$.to_s)
            send("work_#{n}")
          end
        end
        Process.waitall
    """
    )
    profile = record(command=[RUBY, "--disable-gems", "-e", script, str(tmp_path)], rate=RATE)
    samples = by_pid(profile)
    assert profile.exit_status == 0
    for n in range(3):
        child = samples[int((tmp_path / str(n)).read_text())]
        own, others = f"work_{n}", {f"work_{other}" for other in range(3) if other != n}
        at_work = [sample for sample in child if has(sample, "burn")]
        assert len(at_work) >= 20  # of 75
        assert not [sample for sample in child if others & set(ruby_labels(sample))]
        assert all(has(sample, own) for sample in at_work if sample.complete)
        assert sum(sample.complete for sample in at_work) >= 0.8 * len(at_work)


FORKS = (
    BURN
    + """
    def parent = burn(1e9)
    def child = burn(1e9)
    puts; $stdout.flush; $stdin.gets
    fork { child }
    parent
"""
)


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("children", [True, False], ids=["followed", "not-followed"])
def test_children_of_a_process_that_was_attached_to(children: bool) -> None:
    with ruby(FORKS) as target:
        hear(target)
        child = 0
        try:
            with Profiler([target.pid], rate=RATE, children=children) as profiler:
                say(target)
                samples = poll_until(profiler, lambda found: sum(s.pid == target.pid for s in found) >= 50)
                child = child_of(target.pid)
                if children:
                    samples += poll_until(profiler, lambda found: sum(s.pid == child for s in found) >= 50)
                else:
                    samples += poll_until(profiler, lambda found: len(found) >= 50)
        finally:
            if child:
                os.kill(child, 9)
    assert {sample.pid for sample in samples} == ({target.pid, child} if children else {target.pid})
    for sample in samples:
        assert not has(sample, "parent" if sample.pid == child else "child")
    if children:
        assert sum(has(s, "child") and s.complete for s in samples if s.pid == child) >= 40


AFTER = BURN + "def after_exec = burn(0.4)\nafter_exec"
BEFORE = BURN + "def before_exec = burn(0.2)\nbefore_exec\n"
EXEC = f'exec("{RUBY}", "--disable-gems", "-e", {json.dumps(AFTER)})'


@pytest.mark.parametrize(
    "command",
    [
        [RUBY, "--disable-gems", "-e", BEFORE + EXEC],
        [RUBY, "--disable-gems", "-e", BEFORE + f"Thread.new {{ {EXEC} }}.join"],
        ["sh", "-c", 'exec "$@"', "sh", RUBY, "--disable-gems", "-e", AFTER],
    ],
    ids=["ruby-to-ruby", "from-a-thread", "shell-to-ruby"],
)
def test_after_exec_the_new_program_is_unwound_and_the_old_one_is_gone(command: list[str]) -> None:
    profile = record(command=command, rate=RATE)
    assert profile.exit_status == 0
    assert len({sample.pid for sample in profile.samples}) == 1
    new = [sample for sample in profile.samples if has(sample, "after_exec")]
    old = [sample for sample in profile.samples if has(sample, "before_exec")]
    assert len(new) >= 50  # of 120
    assert sum(sample.complete for sample in new) >= 0.9 * len(new)
    assert not [sample for sample in new if has(sample, "before_exec")]
    assert unnamed(new) == []
    if command[0] == RUBY:
        assert len(old) >= 20  # of 60
        assert max(s.timestamp for s in old) < min(s.timestamp for s in new)


def test_after_exec_of_a_process_that_was_attached_to() -> None:
    with ruby(f"puts; $stdout.flush; $stdin.gets\n{BEFORE}{EXEC}") as target:
        hear(target)
        with Profiler([target.pid], rate=RATE) as profiler:
            say(target)
            samples = poll_to_the_end(profiler)
    new = [sample for sample in samples if has(sample, "after_exec")]
    assert sum(has(sample, "before_exec") for sample in samples) >= 20
    assert len(new) >= 50
    assert sum(sample.complete for sample in new) >= 0.9 * len(new)
    assert not [sample for sample in new if has(sample, "before_exec")]


def test_a_process_that_uses_no_cpu_gives_no_samples() -> None:
    with process("cat") as target, Profiler([target.pid], rate=RATE) as profiler:
        say(target, "ready")
        hear(target)
        poll_until(profiler, lambda samples: True)
        profiler.poll(0.1)
        idle = profiler.poll(0.1) + profiler.stop()
        assert idle == []
        assert profiler.running


THREADS = """
    def start
      (0...5).map do |n|
        eval "def thread_#{n} = (nil while true)"
        Thread.new { $stdout.puts "#{Thread.current.native_thread_id} thread_#{n}"; send("thread_#{n}") }
      end
    end
"""


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_threads_started_before_and_after_the_attach_show_their_own_stacks(early: bool) -> None:
    order = "start; puts; $stdin.gets" if early else "puts; $stdin.gets; start"
    with ruby(f"$stdout.sync = true\n{THREADS}\n{order}; sleep") as target:
        said = [hear(target) for _ in range(6 if early else 1)]
        with Profiler([target.pid], rate=RATE) as profiler:
            say(target)
            said += [] if early else [hear(target) for _ in range(5)]
            wanted = {int(tid): name for tid, name in map(str.split, filter(None, said))}

            def all_seen(samples: list[Sample]) -> bool:
                return all(
                    sum(s.tid == tid and has(s, name) for s in samples) >= 10 for tid, name in wanted.items()
                )

            samples = poll_until(profiler, all_seen)
    assert len(wanted) == 5
    for sample in samples:
        of_others = {name for tid, name in wanted.items() if tid != sample.tid}
        assert not of_others & set(ruby_labels(sample)), (sample.tid, wanted)
