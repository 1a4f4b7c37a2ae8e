# SPDX-License-Identifier: Apache-2.0
"""Core files of real programs, by gcore and by the kernel, give the very stack that the program printed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rubyunwind.process.core import CoreFile
from rubyunwind.process.image import CoreProcess, LiveProcess
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.detect import find_ruby
from rubyunwind.ruby.stack_walk import walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.tls import thread_context

from .ptrace_stop import stopped_threads

PROGRAMS = Path(__file__).parent.parent / "ruby"
RUBY = shutil.which("ruby")
GCORE = shutil.which("gcore")
SECONDS_TO_SETTLE = 10
SECONDS_TO_DUMP = 60

pytestmark = pytest.mark.skipif(RUBY is None, reason="no ruby in PATH")

Locations = list[list[object]]
Stacks = dict[int, Locations]


class Program:
    """A program that printed its stacks and spins there. The kernel writes its core file into `folder`."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        self.process = subprocess.Popen(
            ["prlimit", f"--core={limit}", RUBY or "ruby", "--disable-gems", str(PROGRAMS / name)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert self.process.stdout is not None
        said = [json.loads(self.process.stdout.readline()) for _ in range(threads)]
        self.pid = self.process.pid
        self.stacks: Stacks = {one["tid"] or self.pid: one["frames"] for one in said}
        self._settle()

    def _settle(self) -> None:
        """Wait until every thread has left the code that printed, and spins."""
        until = time.monotonic() + SECONDS_TO_SETTLE
        with LiveProcess(self.pid) as process:
            while time.monotonic() < until:
                with stopped_threads(self.pid) as pointers:
                    found = stacks_of(process, pointers)
                if all(found.get(tid) == frames for tid, frames in self.stacks.items()):
                    return
                time.sleep(0.01)
        pytest.fail(f"it did not settle: {found}")


def stacks_of(process: CoreProcess | LiveProcess, pointers: dict[int, int]) -> Stacks:
    """Walk and name the stack of each thread that has one."""
    runtime = find_ruby(process.pid, process.mappings(), process.memory, open_elf=process.open, search=True)
    assert runtime is not None
    assert runtime.tls is not None
    symbolizer = RubySymbolizer(process.memory, runtime)
    stacks: Stacks = {}
    for tid, pointer in pointers.items():
        context = thread_context(process.memory, runtime.tls, pointer)
        if not context:
            continue
        named: list[Frame] = []
        caller: Frame | None = None
        for frame in reversed(list(walk_stack(process.memory, runtime.layout, context))):
            if frame.kind == "cfunc":
                named.append(symbolizer.cfunc_frame(frame.method_entry, caller))
            else:
                caller = symbolizer.ruby_frame(frame.iseq_body, frame.pc, frame.method_entry)
                named.append(caller)
        stacks[tid] = [[frame.path, frame.line, frame.label] for frame in named[::-1]]
    return stacks


def stacks_in(path: Path, sysroot: Path | None = None) -> tuple[CoreFile, Stacks]:
    with CoreProcess(CoreFile.open(path, sysroot)) as process:
        pointers = {thread.tid: thread.thread_pointer for thread in process.core.threads}
        return process.core, stacks_of(process, pointers)


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def run(name: str, threads: int = 1) -> Program:
        programs.append(Program(name, tmp_path, threads))
        return programs[-1]

    yield run
    for program in programs:
        program.process.kill()
        program.process.communicate()


def gcore(pid: int, folder: Path) -> Path:
    subprocess.run(
        [GCORE or "gcore", "-o", str(folder / "dump"), str(pid)],
        check=True,
        capture_output=True,
        timeout=SECONDS_TO_DUMP,
    )
    return folder / f"dump.{pid}"


def kernels_core(program: Program, folder: Path) -> Path:
    """Let the kernel dump the program, where it writes plain files."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern or "%" in pattern:
        pytest.skip(f"core_pattern is {pattern!r}, no plain file in the current directory")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("the hard limit on core files is 0")
    os.kill(program.pid, signal.SIGABRT)
    assert program.process.wait(SECONDS_TO_DUMP) == -signal.SIGABRT
    (path,) = folder.glob("core*")
    return path


@pytest.mark.skipif(GCORE is None, reason="no gcore (Debian: apt install gdb)")
@pytest.mark.parametrize(
    ("name", "threads"),
    [("blocks_and_bmethods.rb", 1), ("two_spinning_threads.rb", 2), ("names_with_odd_characters.rb", 1)],
)
def test_gcore_gives_the_stack_that_was_printed(
    start: Start, tmp_path: Path, name: str, threads: int
) -> None:
    program = start(name, threads)
    core, found = stacks_in(gcore(program.pid, tmp_path))
    assert core.pid == program.pid
    assert {tid: found[tid] for tid in program.stacks} == program.stacks


@pytest.mark.skipif(GCORE is None, reason="no gcore (Debian: apt install gdb)")
def test_without_the_files_the_core_alone_is_enough(start: Start, tmp_path: Path) -> None:
    program = start("blocks_and_bmethods.rb")
    empty = tmp_path / "empty"
    empty.mkdir()
    path = gcore(program.pid, tmp_path)
    assert stacks_in(path, empty)[1] == program.stacks
    with CoreFile.open(path, empty) as core:
        assert any("libruby" in sentence for sentence in core.missing)
    with CoreFile.open(path) as core:
        assert not any("libruby" in sentence for sentence in core.missing)


@pytest.mark.parametrize(("name", "threads"), [("blocks_and_bmethods.rb", 1), ("two_spinning_threads.rb", 2)])
def test_a_core_of_the_kernel_gives_the_stack_that_was_printed(
    start: Start, tmp_path: Path, name: str, threads: int
) -> None:
    program = start(name, threads)
    core, found = stacks_in(kernels_core(program, tmp_path))
    assert (core.pid, core.comm) == (program.pid, "ruby")
    assert core.signal_info is not None
    assert core.signal_info.signal == signal.SIGABRT
    assert {tid: found[tid] for tid in program.stacks} == program.stacks


def test_a_core_of_a_process_without_ruby_has_none(tmp_path: Path) -> None:
    if GCORE is None:
        pytest.skip("no gcore (Debian: apt install gdb)")
    process = subprocess.Popen(["sleep", "60"])
    try:
        path = gcore(process.pid, tmp_path)
    finally:
        process.kill()
        process.wait()
    with CoreProcess(CoreFile.open(path)) as dead:
        assert find_ruby(dead.pid, dead.mappings(), dead.memory, open_elf=dead.open, search=True) is None
        assert [thread.tid for thread in dead.core.threads] == [process.pid]
