# SPDX-License-Identifier: Apache-2.0
"""Everything that runs is profiled: found when it is sampled, exact, gone from the tables when it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.abi import FollowFlag
from rubyunwind.process.identity import read_status

from .recorder import Record, hear, process, read_jsonl, ruby, say, until
from .spinning import PATIENCE, RUBY, locations, spinning

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299
# Uses some 50 ms of CPU time, so that it is sampled, and ends.
SHORT = "i=0; while [ $i -lt 40000 ]; do i=$((i+1)); done"
BY_PID = ("reported_pids", "pid_events", "followed_pids", "ruby_procs", "ruby_vms", "ruby_tls")
BY_ADDRESS = ("pid_page_to_mapping_info", "pid_mappings")


@contextmanager
def everything(**options: object) -> Iterator[Profiler]:
    with Profiler(all_processes=True, rate=RATE, **options) as profiler:  # type: ignore[arg-type]
        yield profiler


def gather_until(profiler: Profiler, enough: Callable[[list[Sample]], object], what: str) -> list[Sample]:
    samples: list[Sample] = []

    def met() -> object:
        samples.extend(profiler.poll(0.05))
        return enough(samples)

    until(met, what)
    return samples


def of(samples: Sequence[Sample], pid: int) -> list[Sample]:
    return [sample for sample in samples if sample.pid == pid]


def pids_in_maps(profiler: Profiler) -> set[int]:
    """Every pid that any map has an entry for."""
    maps = profiler.collection.maps
    found = {int.from_bytes(key, "little") for name in BY_PID for key in maps[name]}
    found |= {int.from_bytes(key[4:8], "big") for name in BY_ADDRESS if name in maps for key in maps[name]}
    return found - {0}


def files_in_maps(profiler: Profiler) -> set[int]:
    """Every file id that a map has an entry for."""
    maps = profiler.collection.maps
    names = [name for name in maps if name.startswith(("interpreter_", "exe_id_to_"))]
    found = {int.from_bytes(key, "little") for name in names for key in maps[name]}
    if "stack_delta_page_to_info" in maps:
        found |= {int.from_bytes(key[:8], "little") for key in maps["stack_delta_page_to_info"]}
    return found


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_rubies_that_are_started_later_are_found_and_exact(unwinder: str) -> None:
    with everything(unwinder=unwinder) as profiler, ExitStack() as stack:
        profiler.poll(0)
        rubies = [
            stack.enter_context(spinning(*program))
            for program in (("recursion.rb", "50"), ("one_line_methods.rb",), ("fork_without_exec.rb",))
        ]
        samples = gather_until(
            profiler,
            lambda found: all(len(of(found, one.pid)) >= 120 for one in rubies),
            "not all are sampled",
        )
    for one in rubies:
        last = of(samples, one.pid)[-60:]
        assert {locations(sample) for sample in last} == {one.stack}
        assert {sample.reason for sample in last} == {None}


def test_the_profiler_is_left_out_unless_it_is_asked_for() -> None:
    for asked in (False, True):
        with everything(include_self=asked) as profiler, process("sh", "-c", "while :; do :; done") as other:
            end = time.process_time() + 0.3
            samples = gather_until(
                profiler,
                lambda found, end=end, other=other: (  # type: ignore[misc]
                    time.process_time() > end and sum(range(100_000)) and len(of(found, other.pid)) > 50
                ),
                "the other is not sampled",
            )
        assert bool(of(samples, os.getpid())) == asked


def test_a_process_that_executes_another_program_and_one_that_forks_twice() -> None:
    script = f"""
      Process.daemon if ARGV[0] == "twice"
      $0 = "spinner"
      other = "def after_exec = (nil while true); after_exec"
      exec {RUBY!r}, "--disable-gems", "-e", other if ARGV[0] == "exec"
      def after_forks = (nil while true)
      after_forks
    """
    with everything() as profiler:
        for way, label in (("exec", "after_exec"), ("twice", "after_forks")):
            with process(RUBY, "--disable-gems", "-e", script, way):
                samples = gather_until(
                    profiler,
                    lambda found, label=label: (  # type: ignore[misc]
                        sum(any(f.label == label for f in s.frames) for s in found) >= 40
                    ),
                    f"no samples after {way}",
                )
                ours = [s for s in samples if any(frame.label == label for frame in s.frames)]
                (pid,) = {sample.pid for sample in ours}
                try:
                    last = of(samples, pid)[-20:]
                    assert [sample for sample in last if not sample.complete] == []
                finally:
                    os.kill(pid, signal.SIGKILL)


def test_a_library_that_is_loaded_late_is_unwound() -> None:
    script = """
        puts; $stdout.flush; $stdin.gets
        require "zlib"
        text = Random.bytes(1 << 20)
        Zlib::Deflate.deflate(text) while true
    """
    with everything() as profiler, ruby(script) as target:
        hear(target)
        say(target)
        samples = gather_until(
            profiler,
            lambda found: (
                sum(
                    any((f.module or "").rpartition("/")[2].startswith("libz.") for f in s.frames)
                    for s in found
                )
                >= 60
            ),
            "zlib is not seen",
        )
    last = of(samples, target.pid)[-40:]
    assert [sample.reason for sample in last if not sample.complete] == []


SPIN = "def spin_here = (nil while true)\nspin_here"


def in_memory(path: str) -> list[str]:
    """A command that executes a copy of a program which is in no file system."""
    code = (
        "import os, sys; fd = os.memfd_create('copy'); os.write(fd, open(sys.argv[1], 'rb').read()); "
        "os.execve(fd, ['ruby', *sys.argv[2:]], os.environ)"
    )
    return [sys.executable, "-c", code, path]


@pytest.mark.parametrize("way", ["deleted", "replaced", "memfd"])
def test_a_binary_that_is_no_longer_in_its_place_is_exact(way: str, tmp_path: Path) -> None:
    program = Path(RUBY).resolve()
    copy = tmp_path / "ruby"
    shutil.copy(program, copy)
    start = in_memory(str(copy)) if way == "memfd" else [str(copy)]
    with process(*start, "--disable-gems", script="puts; $stdout.flush; $stdin.gets\n" + SPIN) as target:
        hear(target)
        copy.unlink()
        if way == "replaced":
            shutil.copy("/bin/true", copy)
        with everything() as profiler:
            say(target)
            samples = gather_until(profiler, lambda found: len(of(found, target.pid)) >= 80, "no samples")
    last = of(samples, target.pid)[-40:]
    assert profiler.stats.no_room == 0
    assert [sample.reason for sample in last if not sample.complete] == []
    assert all(any(frame.label == "spin_here" for frame in sample.frames) for sample in last)
    roots = {sample.frames[-1] for sample in last}
    assert {root.name for root in roots} == {"_start"}


def copies(program: str, count: int, folder: Path) -> list[Path]:
    """Copies of a program that differ, so that each has tables of its own."""
    made = []
    for number in range(count):
        path = folder / f"copy{number}"
        path.write_bytes(Path(program).read_bytes() + bytes(64) + number.to_bytes(4, "little"))
        path.chmod(0o755)
        made.append(path)
    return made


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_of_processes_that_have_ended_nothing_is_left(unwinder: str, tmp_path: Path) -> None:
    with everything(unwinder=unwinder) as profiler, process("cat") as bystander:
        say(bystander, "ready")
        hear(bystander)
        profiler.poll(0.1)
        registry = profiler._tracker._code
        others = other_descriptors(profiler)
        copied: set[int] = set()
        pids = set()
        for path in copies("/bin/sh", 24, tmp_path):
            with subprocess.Popen([path, "-c", SHORT]) as short:
                pids.add(short.pid)
                while short.poll() is None:
                    profiler.poll(0.01)
            copied |= {file.file_id for file in registry.files._by_id.values() if file.path == str(path)}
        assert len(copied) >= 20  # they were registered, each with a file of its own
        pids |= {pid for pid in pids_in_maps(profiler) if not Path(f"/proc/{pid}").exists()}

        def clean() -> bool:
            profiler.poll(0.05)
            return not pids & pids_in_maps(profiler) and not any(file in registry.tables for file in copied)

        until(clean, "entries are left")
        assert not copied & files_in_maps(profiler)
        assert not any(registry.files.by_id(file) for file in copied)
        assert not pids & {process.pid for process in profiler._assembler._stacks if process is not None}
        assert other_descriptors(profiler) == others


def other_descriptors(profiler: Profiler) -> int:
    """How many descriptors this process has but for those of registered processes and files.

    With the first process, and until the last one has gone, the table of mounts is open, too.
    """
    code, processes = profiler._tracker._code, len(profiler._tracker.processes)
    of_files = sum(file.elf._close is not None for file in code.files._by_id.values())
    return len(os.listdir("/proc/self/fd")) - processes - bool(processes) - of_files  # noqa: PTH208


# Many of them leave time for the profiler.
SELDOM = """
    def spin_here(until_) = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < until_)
    loop do
      spin_here(Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) + 0.02)
      sleep 1
    end
"""


def test_rubies_of_more_builds_than_the_abi_thinks_of(tmp_path: Path) -> None:
    needed = subprocess.run(["ldd", RUBY], capture_output=True, text=True, check=True).stdout
    (library,) = {Path(word) for word in needed.split() if word.startswith("/") and "/libruby" in word}
    count = 36
    with everything() as profiler, ExitStack() as stack:
        started = []
        for number, copy in enumerate(copies(str(library), count, tmp_path)):
            folder = tmp_path / str(number)
            folder.mkdir()
            copy.rename(folder / library.name)
            started.append(
                stack.enter_context(
                    process("env", f"LD_LIBRARY_PATH={folder}", RUBY, "--disable-gems", script=SELDOM)
                )
            )
        found: set[int] = set()
        wanted = {one.pid for one in started}

        def all_found() -> bool:
            for sample in profiler.poll(0.05):
                if any(frame.label == "spin_here" for frame in sample.frames):
                    found.add(sample.pid)
            return found >= wanted

        until(all_found, "some are not found", patience=3 * PATIENCE)
        assert len(profiler.collection.maps["interpreter_offsets"]) >= count
        assert profiler.stats.no_room == 0


def test_kernel_threads_are_neither_sampled_nor_counted_again_and_again() -> None:
    with everything() as profiler, process("sh", "-c", "while :; do sync /proc/self/exe; done"):
        samples = gather_until(profiler, lambda found: len(found) >= 300, "nothing runs")
        followed = profiler.collection.maps["followed_pids"]
        never = {
            int.from_bytes(bytes(key), "little")
            for key, flags in followed.items()
            if int.from_bytes(bytes(flags), "little") & FollowFlag.NEVER
        }
    assert not [sample for sample in samples if read_kernel_thread(sample.pid)]
    # Those that were met are left out in the kernel from then on.
    assert [pid for pid in never if read_kernel_thread(pid)]


def read_kernel_thread(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and read_status(pid).kernel_thread


def test_a_pid_that_is_used_again_means_another_process() -> None:
    with everything() as profiler:
        last = Path("/proc/sys/kernel/ns_last_pid")
        for _ in range(20):
            with ruby("def first_one = (nil while true)\nputs; $stdout.flush\nfirst_one") as first:
                hear(first)
                pid = first.pid
                gather_until(profiler, lambda found, pid=pid: len(of(found, pid)) >= 20, "no samples")  # type: ignore[misc]
            last.write_text(str(pid - 1))
            with ruby("def second_one = (nil while true)\nputs; $stdout.flush\nsecond_one") as second:
                if second.pid != pid:  # somebody else was quicker
                    continue
                samples = gather_until(
                    profiler,
                    lambda found, pid=pid: (  # type: ignore[misc]
                        sum(any(f.label == "second_one" for f in s.frames) for s in of(found, pid)) >= 40
                    ),
                    "the second process is not recognized",
                )
            seen = [s for s in of(samples, pid) if any(frame.label == "second_one" for frame in s.frames)]
            since = seen[0].timestamp
            later = [s for s in of(samples, pid) if s.timestamp > since]
            assert not [s for s in later if any(frame.label == "first_one" for frame in s.frames)]
            return
    pytest.fail("no pid was used again")


def test_all_are_recorded_by_the_command(record: Record, tmp_path: Path) -> None:
    recorder = record("-a", "-r", RATE, "-d", 3, "-o", "all.jsonl")
    recorder.await_recording()
    with ruby(SPIN) as one, ruby(SPIN) as other:
        assert recorder.wait() == 0
    samples = read_jsonl((tmp_path / "all.jsonl").read_bytes())
    for started in (one, other):
        mine = [sample for sample in samples if sample["pid"] == started.pid]
        assert len(mine) >= 20
        named = [s for s in mine if any(frame.get("label") == "spin_here" for frame in s["frames"])]
        assert len(named) >= 0.5 * len(mine)
    assert recorder.process.pid not in {sample["pid"] for sample in samples}
    assert "no Ruby was found" not in recorder.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-a", "-p", 1), "one of these"),
        (("-a", "--", "true"), "one of these"),
        (("-a", "-S"), "leave -S out"),
    ],
)
def test_all_and_something_else_is_refused(
    record: Record, arguments: tuple[str | int, ...], said: str
) -> None:
    recorder = record(*arguments)
    assert recorder.wait() == 2
    assert said in recorder.err


def test_processes_that_are_too_many_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from rubyunwind.profiler import profiler as module
    from rubyunwind.profiler.limits import Limits

    monkeypatch.setattr(module, "limits_by_descriptors", lambda: Limits(processes=3, files=512))
    with everything() as profiler, ExitStack() as stack:
        spinners = [stack.enter_context(ruby(SPIN)).pid for _ in range(5)]
        samples = gather_until(
            profiler, lambda found: all(of(found, pid) for pid in spinners), "not all have their turn"
        )
        stats = profiler.stats
        assert len(profiler._tracker.processes) <= 3
    assert stats.evicted > 0
    assert samples
