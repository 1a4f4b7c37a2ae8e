# SPDX-License-Identifier: Apache-2.0
"""Mapped files whose server does not answer, or lies: they are given up, and nobody else notices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample, UserProfiler
from rubyunwind.process.deputy import deputies
from rubyunwind.profiler.snapshot import take_snapshot
from rubyunwind.report.sources import source_of

from .recorder import hear, process, ruby
from .silent_mount import SilentMount, silent_mount
from .spinning import RUBY
from .test_odd_files import MAPS, SPIN

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="there is no /dev/fuse to mount with"),
]

RATE = 299
# Far above what is waited for a server at once (a second), and far below for ever.
BOUND = 15


@pytest.fixture
def library() -> Path:
    """Return the library that Ruby is in."""
    needed = subprocess.run(["ldd", RUBY], capture_output=True, text=True, check=True).stdout
    found = [word for word in needed.split() if word.startswith("/") and "/libruby" in word]
    if not found:
        pytest.skip("this Ruby has no library of its own")
    return Path(found[0])


@pytest.fixture
def mount(library: Path, tmp_path: Path) -> Iterator[SilentMount]:
    """A mount with a copy of it. At its end nothing of ours is left of those that have waited for it."""
    deputies.__init__()  # type: ignore[misc] # what was waited for others is not counted here
    before = descriptors()
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(library, source)
    with silent_mount(source, tmp_path / "mount") as mounted:
        yield mounted
    end = time.monotonic() + BOUND
    while (left := deputies_of_ours()) and time.monotonic() < end:
        deputies.reap()
        time.sleep(0.05)
    assert not left
    assert descriptors() == before


def descriptors() -> set[str]:
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder's own
            found.add(f"{path.name} {path.readlink()}")
    return found


def deputies_of_ours() -> list[int]:
    """Return our children that run a deputy's program, or have: those that nobody has buried."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = []
    for child in children:
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if not command or b"deputy_program" in command:
            found.append(int(child))
    return found


def ruby_on(mount: SilentMount) -> tuple[str, ...]:
    return ("env", f"LD_LIBRARY_PATH={mount.at}", RUBY, "--disable-gems")


def spun_for(pid: int, seconds: float) -> None:
    """Wait until a process has used so much CPU time: the pages of its loop have been read by then."""
    end = time.monotonic() + BOUND
    while int(Path(f"/proc/{pid}/stat").read_text().split()[13]) < seconds * os.sysconf("SC_CLK_TCK"):
        assert time.monotonic() < end
        time.sleep(0.02)


def sample_both(odd: int, healthy: int, count: int = 100) -> tuple[Profiler, list[Sample]]:
    """Sample until `count` samples of each came, looking at how long each call takes."""
    samples: list[Sample] = []
    longest = 0.0

    def timed(call: object) -> object:
        nonlocal longest
        began = time.monotonic()
        result = call()  # type: ignore[operator]
        longest = max(longest, time.monotonic() - began)
        return result

    profiler = Profiler(rate=RATE, all_processes=False, pids=[odd, healthy])
    timed(profiler.__enter__)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and min(of(samples, odd), of(samples, healthy)) < count:
            samples += timed(lambda: profiler.poll(0.1))  # type: ignore[arg-type]
        samples += timed(profiler.stop)  # type: ignore[arg-type]
    finally:
        timed(profiler.close)
    assert longest < BOUND
    assert min(of(samples, odd), of(samples, healthy)) >= count
    return profiler, samples


def of(samples: list[Sample], pid: int) -> int:
    return sum(sample.pid == pid for sample in samples)


def is_exact(samples: list[Sample], pid: int) -> None:
    """The process has whole stacks, and those that Ruby has."""
    stacks = [sample for sample in samples if sample.pid == pid]
    assert [sample.reason for sample in stacks if not sample.complete] == []
    labels = {tuple(frame.label for frame in sample.frames if frame.kind == "ruby") for sample in stacks}
    assert labels == {("spin_here", "<main>")}


def test_a_server_that_answers_is_as_good_as_a_disk(mount: SilentMount) -> None:
    with process(*ruby_on(mount), script=SPIN) as served, ruby(SPIN) as healthy:
        hear(served), hear(healthy)
        profiler, samples = sample_both(served.pid, healthy.pid)
    is_exact(samples, served.pid)
    is_exact(samples, healthy.pid)
    assert profiler.stats.given_up == 0
    paths = {frame.module for sample in samples for frame in sample.frames if frame.module}
    assert str(mount.file) in paths


@pytest.mark.parametrize(
    "order", ["silent read", "silent stat", "silent open", "fail read", f"size {1 << 60}"]
)
def test_a_file_whose_server_does_not_answer_or_lies_is_given_up(order: str, mount: SilentMount) -> None:
    with process(*ruby_on(mount), script=SPIN) as odd, ruby(SPIN) as healthy:
        hear(odd), hear(healthy)
        spun_for(odd.pid, 0.5)
        path = str(mount.file)
        mount.tell(order)
        profiler, samples = sample_both(odd.pid, healthy.pid)
        is_exact(samples, healthy.pid)
        stacks = [sample for sample in samples if sample.pid == odd.pid]
        assert profiler.stats.given_up == 1
        (note,) = [note for note in profiler.notes if note.startswith(f"{path} is given up")]
        assert ("does not answer" in note) == order.startswith("silent")
        # Where it is, and that nothing more could be told.
        name = path.rpartition("/")[2]
        leaves = {sample.frames[0].name for sample in stacks if sample.frames}
        assert any(leaf.startswith(f"{name}+0x") and leaf.endswith("(not readable)") for leaf in leaves)
        assert "no unwind row" in {sample.reason for sample in stacks}
        assert not [sample for sample in stacks if sample.complete and sample.frames]
        mount.tell("answer")


@pytest.mark.parametrize("order", ["shrink 5000", "shrink 0", "change"])
def test_a_file_that_shrinks_or_is_another_at_each_look_kills_nobody(order: str, mount: SilentMount) -> None:
    with process(sys.executable, "-c", MAPS, str(mount.file)) as odd, ruby(SPIN) as healthy:
        hear(odd), hear(healthy)
        mount.tell(order)
        mount.tell("forget")
        profiler, samples = sample_both(odd.pid, healthy.pid)
        mount.tell("answer")
    is_exact(samples, healthy.pid)
    assert of(samples, odd.pid)
    assert profiler.stats.read == len(samples)


def test_memory_that_is_a_silent_file_is_not_waited_for(mount: SilentMount) -> None:
    """What is read of a process may be a page of such a file, too."""
    from rubyunwind.process.image import LiveProcess
    from rubyunwind.process.memory import MemoryReadError

    path = mount.file
    with process(sys.executable, "-c", MAPS, str(path)) as odd:
        hear(odd)
        with LiveProcess(odd.pid) as image:
            (mapping,) = [mapping for mapping in image.mappings() if mapping.path == str(path)]
            whole = image.memory.read(mapping.start, 64)
            assert whole == path.read_bytes()[:64]
            mount.tell("silent read")
            mount.tell("forget")
            began = time.monotonic()
            with pytest.raises(MemoryReadError, match="does not answer"):
                image.memory.read(mapping.start, 64)
            assert time.monotonic() - began < BOUND
            assert image.first_address() not in range(mapping.start, mapping.end)
        mount.tell("answer")


def test_sampling_from_user_space_does_not_wait_for_ever(mount: SilentMount) -> None:
    with process(*ruby_on(mount), script=SPIN) as odd, ruby(SPIN) as healthy:
        hear(odd), hear(healthy)
        spun_for(odd.pid, 0.5)
        mount.tell("silent read")
        began = time.monotonic()
        with UserProfiler([odd.pid, healthy.pid], rate=99) as profiler:
            samples: list[Sample] = []
            while of(samples, healthy.pid) < 50 and time.monotonic() - began < 60:
                samples += profiler.poll(0.1)
            samples += profiler.stop()
        is_exact(samples, healthy.pid)
        mount.tell("answer")


def test_a_snapshot_and_a_source_do_not_wait_for_ever(mount: SilentMount) -> None:
    path = mount.file
    with process(*ruby_on(mount), script=SPIN) as odd:
        hear(odd)
        mount.tell("silent read")
        began = time.monotonic()
        taken = take_snapshot(odd.pid)
        assert any("is given up" in note for note in taken.notes)
        assert source_of(str(path), 0).note == "cannot be read: its file system does not answer"
        assert time.monotonic() - began < BOUND
        mount.tell("answer")


def test_a_source_on_a_server_is_shown(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.rb").write_text("1\n2\n" * 100_000)
    with silent_mount(source, tmp_path / "mount") as mount:
        found = source_of(str(mount.at / "a.rb"), 0)
    assert found.lines == ("1", "2") * 100_000
