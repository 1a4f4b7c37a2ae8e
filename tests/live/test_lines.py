# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind lines` on a program that spins, with the addresses that its traces have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rubyunwind.abi import FrameMarker, decode_trace
from rubyunwind.bpf.hosted import HostedCollection, HostMemory, HostTask
from rubyunwind.process.core import CoreFile
from rubyunwind.process.image import CoreProcess, LiveProcess
from rubyunwind.profiler.context_reader import ContextReader
from rubyunwind.ruby.detect import RubyRuntime, find_ruby
from rubyunwind.ruby.translate import line_of

from .recorder import hear, process
from .spinning import RUBY, spinning

pytestmark = pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby is installed")

CORES = Path(__file__).parent.parent / "cores"


def lines(*arguments: str | int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "rubyunwind.cli.main", "lines", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def code_of(image: LiveProcess) -> tuple[RubyRuntime, list[tuple[int, int]]]:
    """Return the Ruby of a process that spins and its Ruby frames: (body, pc)."""
    runtime = find_ruby(image.pid, image.mappings(), image.memory)
    assert runtime is not None
    with HostedCollection() as collection:
        memory = HostMemory.of_process(image.memory)
        reader = ContextReader(collection, memory, runtime.proc_info, image.pid)
        record = reader.read(runtime.running_context(image.memory), image.pid, "ruby", 1)
    assert record is not None
    frames = decode_trace(record).frames
    return runtime, [(f.file_id, f.addr_or_line) for f in frames if f.kind == FrameMarker.RUBY]


def test_the_places_of_a_trace_are_the_programs_own() -> None:
    with spinning("blocks_and_bmethods.rb") as program, LiveProcess(program.pid) as image:
        runtime, code = code_of(image)
        found = [line_of(image.memory, runtime, body, pc=pc) for body, pc in code]
    # Labels name no class here, and a C function has no byte code.
    expected = [place for place in program.stack if (place[0], place[1]) in {(f.path, f.line) for f in found}]
    assert [(f.path, f.line) for f in found[:1]] == [program.stack[0][:2]]
    assert {(f.path, f.line) for f in found} == {place[:2] for place in expected}
    assert found[-1].label == "<main>"


def test_the_command_prints_path_line_and_label() -> None:
    with spinning("recursion.rb", "3") as program, LiveProcess(program.pid) as image:
        _, code = code_of(image)
        body, pc = code[0]
        plain = lines("-p", program.pid, f"{body:#x}", f"{pc:x}")
        start = lines("-p", program.pid, "--offset", 0, "--json", f"{body:x}")
        outside = lines("-p", program.pid, f"{body:#x}", f"{pc + (1 << 20):#x}")
        elsewhere = lines("-p", program.pid, f"{pc:#x}", f"{pc:#x}")
    path, line, label = program.stack[0]
    assert (plain.returncode, plain.stdout, plain.stderr) == (0, f"{path}:{line} {label}\n", "")
    first = json.loads(start.stdout)
    assert (first["path"], first["label"]) == (path, label)
    assert first["line"] < line
    assert (outside.returncode, outside.stdout) == (1, "")
    assert outside.stderr.startswith(f"rubyunwind: 'down' of {path!r}: pc {pc + (1 << 20):#x} is outside")
    assert (elsewhere.returncode, elsewhere.stdout) == (1, "")
    assert f"no instruction sequence's body at {pc:#x}" in elsewhere.stderr


def test_a_core_file_has_lines_too() -> None:
    core = next(iter(sorted(CORES.glob("ruby-*-two_spinning_threads.gz"))))
    with CoreProcess(CoreFile.open(core)) as image, HostedCollection() as collection:
        runtime = find_ruby(image.pid, image.mappings(), image.memory, open_elf=image.open)
        assert runtime is not None
        collection.maps["ruby_procs"][image.pid.to_bytes(4, "little")] = bytes(runtime.proc_info)
        task, memory = HostTask(image.pid, image.pid), HostMemory(memory=image.memory)
        record = collection.run_context(runtime.running_context(image.memory), task, memory)
    assert record is not None
    leaf = next(frame for frame in decode_trace(record).frames if frame.kind == FrameMarker.RUBY)
    run = lines("--core", core, f"{leaf.file_id:#x}", f"{leaf.addr_or_line:#x}")
    assert run.stderr == ""
    place, _, label = run.stdout.strip().partition(" ")
    assert place.rpartition(":")[0].endswith("two_spinning_threads.rb")
    assert label in ("first_spinner", "block in second_spinner")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("1000", "1000"), "one of them"),
        (("-p", 1, "--core", "x", "1000", "1000"), "one of them"),
        (("-p", 1, "1000"), "give a PC or --offset, one of them"),
        (("-p", 1, "--offset", 1, "1000", "1000"), "give a PC or --offset, one of them"),
        (("-p", 1, "here", "1000"), "'here' is no hexadecimal address"),
        (("-p", 1, "1000", "10000000000000000"), "is no hexadecimal address"),
    ],
)
def test_words_that_make_no_sense_are_a_usage_error(arguments: tuple[str | int, ...], text: str) -> None:
    run = lines(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert text in run.stderr


def test_a_process_without_ruby_and_one_that_is_gone_are_refused() -> None:
    with process("sh", "-c", "echo ready; read line") as target:
        hear(target)
        none = lines("-p", target.pid, "1000", "1000")
    assert (none.returncode, none.stdout) == (1, "")
    assert none.stderr == (
        f"rubyunwind: no Ruby was found in process {target.pid}: there is no byte code in it\n"
    )
    gone = lines("-p", target.pid, "1000", "1000")
    assert gone.returncode == 1
    assert "no such process" in gone.stderr


def test_a_file_that_is_no_core_is_refused() -> None:
    run = lines("--core", os.fsdecode(RUBY), "1000", "1000")
    assert run.returncode == 1
    assert run.stderr.startswith("rubyunwind: ")
    assert "Traceback" not in run.stderr
