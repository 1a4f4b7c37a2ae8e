# SPDX-License-Identifier: Apache-2.0
"""Ruby itself is the oracle: programs print their own stack, then spin at that very point and are read."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rubyunwind.abi import RubyTLSKind
from rubyunwind.process.identity import check_attachable
from rubyunwind.process.mappings import read_mappings
from rubyunwind.process.memory import LiveMemory
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.detect import RubyRuntime, find_ruby
from rubyunwind.ruby.procinfo import running_context
from rubyunwind.ruby.stack_walk import ControlFrame, walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.tls import thread_context

from .ptrace_stop import stopped_threads
from .recorder import until

PROGRAMS = Path(__file__).parent.parent / "ruby"
RUBY = shutil.which("ruby")
SECONDS_TO_SETTLE = 10

pytestmark = pytest.mark.skipif(RUBY is None, reason="no ruby in PATH")

Triple = list[Any]


class Program:
    """A Ruby program that has printed `stacks` (one per thread) and spins."""

    def __init__(self, process: subprocess.Popen[bytes], stacks: list[dict[str, Any]]) -> None:
        self.pid = process.pid
        self.process = process
        self.stacks = stacks
        self.memory = LiveMemory(process.pid)
        runtime = find_ruby(process.pid, read_mappings(process.pid), self.memory)
        assert runtime is not None
        self.runtime: RubyRuntime = runtime
        self.symbolizer = RubySymbolizer(self.memory, runtime)

    def frames(self, context: int) -> list[Frame]:
        """Walk and name the stack of a stopped thread, leaf first."""
        named: list[Frame] = []
        caller: Frame | None = None
        for frame in reversed(list(walk_stack(self.memory, self.runtime.layout, context))):
            caller = self._name(frame, caller, named)
        return named[::-1]

    def _name(self, frame: ControlFrame, caller: Frame | None, named: list[Frame]) -> Frame | None:
        if frame.kind == "cfunc":
            named.append(self.symbolizer.cfunc_frame(frame.method_entry, caller))
            return caller
        named.append(self.symbolizer.ruby_frame(frame.iseq_body, frame.pc, frame.method_entry))
        return named[-1]

    def thread_stacks(self) -> dict[int, list[Triple]]:
        """Return the stack of every thread that has one, by thread id, as Ruby prints it."""
        assert self.runtime.tls is not None
        stacks = {}
        with stopped_threads(self.pid) as pointers:
            for tid, pointer in pointers.items():
                context = thread_context(self.memory, self.runtime.tls, pointer)
                if context:
                    stacks[tid] = [[f.path, f.line, f.label] for f in self.frames(context)]
        return stacks

    def expected(self) -> dict[int, list[Triple]]:
        return {stack["tid"] or self.pid: stack["frames"] for stack in self.stacks}

    def settle(self) -> None:
        """Wait until every thread has left the code that printed, and spins."""
        expected = self.expected()
        until = time.monotonic() + SECONDS_TO_SETTLE
        while time.monotonic() < until:
            found = self.thread_stacks()
            if all(found.get(tid) == frames for tid, frames in expected.items()):
                return
            time.sleep(0.01)


Start = Callable[..., Program]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[tuple[subprocess.Popen[bytes], list[Program]]] = []

    def run(name: str, *options: str, threads: int = 1) -> Program:
        process = subprocess.Popen(
            [RUBY or "ruby", "--disable-gems", *options, str(PROGRAMS / name)],
            stdout=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        started.append((process, []))
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(threads)]
        assert all(lines), f"{name} ended before it printed its stack"
        program = Program(process, [json.loads(line) for line in lines])
        started[-1][1].append(program)
        program.settle()
        return program

    yield run
    for process, programs in started:
        for program in programs:
            program.memory.close()
        process.kill()
        process.communicate()


SINGLE_THREADED = [
    "blocks_and_bmethods.rb",
    "eval_with_file_and_line.rb",
    "fiber_in_enumerator.rb",
    "method_of_several_hundred_lines.rb",
    "names_with_odd_characters.rb",
    "recursion_100_deep.rb",
    "rescue_and_ensure.rb",
]


@pytest.mark.parametrize("name", SINGLE_THREADED)
def test_path_line_and_label_of_every_frame_are_rubys_own(start: Start, name: str) -> None:
    program = start(name)
    for _ in range(5):
        assert program.thread_stacks() == program.expected()


def test_every_thread_has_its_own_stack_and_a_sleeper_keeps_his(start: Start) -> None:
    program = start("two_spinning_threads.rb", threads=2)
    expected = program.expected()

    def waiting() -> list[str]:
        """What the others do: the sleeper, and the main thread once it has had the lock again."""
        stacks = program.thread_stacks()
        assert {tid: stacks[tid] for tid in expected} == expected
        return sorted(frames[0][2] for tid, frames in stacks.items() if tid not in expected)

    until(lambda: waiting() == ["join", "sleep"], "the main thread does not join")
    for _ in range(5):
        assert waiting() == ["join", "sleep"]


def test_the_main_ractor_leads_to_the_thread_that_runs(start: Start) -> None:
    program = start("recursion_100_deep.rb")
    with stopped_threads(program.pid):
        context = program.runtime.running_context(program.memory)
        frames = program.frames(context)
    assert [[f.path, f.line, f.label] for f in frames] == program.stacks[0]["frames"]


def test_kinds_are_told_apart_and_nothing_is_unknown(start: Start) -> None:
    program = start("blocks_and_bmethods.rb")
    with stopped_threads(program.pid):
        frames = program.frames(program.runtime.running_context(program.memory))
    kinds = {frame.kind for frame in frames}
    assert kinds == {"ruby", "cfunc"}
    assert {"each_pair", "sort_by", "catch", "each"} <= {f.label for f in frames if f.kind == "cfunc"}


def test_everything_the_bpf_side_needs_is_found(start: Start) -> None:
    program = start("recursion_100_deep.rb")
    runtime = program.runtime
    version = subprocess.check_output([RUBY or "ruby", "--disable-gems", "-e", "print RUBY_VERSION"])
    assert runtime.version == version.decode()
    assert runtime.check.result == "good"
    assert runtime.notes == ()
    assert runtime.tls is not None
    assert runtime.tls.kind in (RubyTLSKind.DTV, RubyTLSKind.STATIC)
    (mapped,) = {m.path for m in read_mappings(program.pid) if m.path == runtime.mapping.path}
    interpreter = runtime.interpreter_ranges[0]
    assert interpreter.path == mapped
    assert interpreter.lower < interpreter.upper
    address = runtime.proc_info.current_ctx_ptr
    assert running_context(program.memory, runtime.layout, address) != 0


def test_names_survive_garbage_collection_and_compaction(start: Start) -> None:
    program = start("after_compaction.rb")
    assert program.thread_stacks() == program.expected()


def test_a_program_under_yjit_is_walked(start: Start) -> None:
    probe = subprocess.run(
        [RUBY or "ruby", "--disable-gems", "--yjit", "-e", ""], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("this Ruby has no YJIT")
    program = start("blocks_and_bmethods.rb", "--yjit", "--yjit-call-threshold=1")
    # Compiled code saves a frame's pc at calls only, so the leaf's line may lag behind; labels do not.
    found = program.thread_stacks()[program.pid]
    expected = program.stacks[0]["frames"]
    assert [frame[2] for frame in found] == [frame[2] for frame in expected]
    assert found[1:] == expected[1:]


def test_frames_of_a_process_that_ended_are_unknown_with_the_reason(start: Start) -> None:
    program = start("recursion_100_deep.rb")
    before = check_attachable(program.pid)
    assert before.is_alive()
    program.process.kill()
    program.process.wait()
    assert not before.is_alive()
    frame = program.symbolizer.ruby_frame(0x7F0000001000, 0x7F0000002000, 0)
    assert frame.kind == "unknown"
    assert "cannot read" in str(frame.label)
