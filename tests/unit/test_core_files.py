# SPDX-License-Identifier: Apache-2.0
"""Ruby in core files: small ones of our own, and cores of many versions where they lie beside us."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rubyunwind.elf.file import EM_X86_64
from rubyunwind.errors import UnsupportedRuby
from rubyunwind.process.core import CoreFile
from rubyunwind.process.image import CoreProcess
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.detect import RubyRuntime, find_ruby
from rubyunwind.ruby.filenames import version_in_name
from rubyunwind.ruby.stack_walk import walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.tls import thread_context

ROOT = Path(__file__).parent.parent.parent
OWN = ROOT / "tests" / "cores"
OTHERS = ROOT.parent / "shared" / "cores"

Location = tuple[str | None, int | None, str | None]


@contextmanager
def ruby_of(
    path: Path, sysroot: Path, *, context: int = 0, version: str | None = None
) -> Iterator[tuple[CoreProcess, RubyRuntime]]:
    with CoreProcess(CoreFile.open(path, sysroot)) as process:
        runtime = find_ruby(
            process.pid,
            process.mappings(),
            process.memory,
            open_elf=process.open,
            context=context,
            assume_version=version,
            search=True,
        )
        assert runtime is not None
        yield process, runtime


def frames(process: CoreProcess, runtime: RubyRuntime, context: int) -> list[Frame]:
    """Walk and name a stack, leaf first."""
    symbolizer = RubySymbolizer(process.memory, runtime)
    named: list[Frame] = []
    caller: Frame | None = None
    for frame in reversed(list(walk_stack(process.memory, runtime.layout, context))):
        if frame.kind == "cfunc":
            named.append(symbolizer.cfunc_frame(frame.method_entry, caller))
        else:
            caller = symbolizer.ruby_frame(frame.iseq_body, frame.pc, frame.method_entry)
            named.append(caller)
    return named[::-1]


def locations(found: list[Frame]) -> list[Location]:
    return [(frame.path, frame.line, frame.label) for frame in found]


# Cores of our own. The sysroot is an empty directory: nothing but the core is used.


@pytest.mark.parametrize("path", sorted(OWN.glob("*.gz")), ids=lambda path: path.stem)
def test_every_thread_has_the_stack_that_the_program_printed(path: Path, tmp_path: Path) -> None:
    printed = [json.loads(line) for line in path.with_suffix(".json").read_text().splitlines()]
    with ruby_of(path, tmp_path) as (process, runtime):
        assert runtime.version == "3.1.2"
        assert runtime.notes == ()
        assert runtime.tls is not None
        assert process.core.machine == EM_X86_64
        assert process.pid == printed[0]["pid"]
        pointers = {thread.tid: thread.thread_pointer for thread in process.core.threads}
        for stack in printed:
            context = thread_context(process.memory, runtime.tls, pointers[stack["tid"]])
            expected = [tuple(one) for one in stack["frames"]]
            assert locations(frames(process, runtime, context)) == expected


def test_there_are_own_cores_and_they_are_small() -> None:
    found = sorted(OWN.glob("*.gz"))
    assert len(found) >= 2
    assert all(path.stat().st_size < 300_000 for path in found)


def test_a_small_core_names_its_mappings_and_says_what_it_lacks(tmp_path: Path) -> None:
    with CoreFile.open(OWN / "ruby-3.1-blocks_and_bmethods.gz", tmp_path) as core:
        libruby = [m for m in core.mappings if m.path.endswith("/libruby-3.1.so.3.1.2")]
        permissions = [(m.readable, m.writable, m.executable) for m in libruby]
        read_only, code, data = (True, False, False), (True, False, True), (True, True, False)
        assert permissions == [read_only, code, read_only, read_only, data]
        assert (core.comm, core.arguments) == ("ruby", "/usr/bin/ruby")
        said = [sentence for sentence in core.missing if "libruby" in sentence]
        assert len(said) == 1
        assert said[0].startswith("code and constants (.rodata)")
        assert "No such file or directory" in said[0]
        assert any(mapping.path == "[vdso]" for mapping in core.mappings)


def test_the_small_core_of_a_small_core_is_the_same(tmp_path: Path) -> None:
    source, again = OWN / "ruby-3.1-two_spinning_threads.gz", tmp_path / "again.gz"
    subprocess.run(
        [sys.executable, ROOT / "support" / "small_core.py", source, again, "--sysroot", tmp_path],
        check=True,
        capture_output=True,
    )
    assert again.read_bytes() == source.read_bytes()


def test_an_address_that_is_no_context_is_refused(tmp_path: Path) -> None:
    path = OWN / "ruby-3.1-blocks_and_bmethods.gz"
    with ruby_of(path, tmp_path) as (process, runtime):
        context = runtime.running_context(process.memory)
        table = runtime.identifier_table
    for address, reason in (
        (table, f"no execution context at {table:#x}"),
        (0x10, "the address of the execution context: cannot read 8 bytes at 0x10"),
    ):
        refused = pytest.raises(UnsupportedRuby, match=reason)
        with refused, ruby_of(path, tmp_path, context=address):
            pass
    with ruby_of(path, tmp_path, context=context) as (process, runtime):
        assert runtime.running_context(process.memory) == context
    refused = pytest.raises(UnsupportedRuby, match=r"does not have the layout of 3\.4\.1")
    with refused, ruby_of(path, tmp_path, context=context, version="3.4.1"):
        pass


def test_the_version_may_be_told(tmp_path: Path) -> None:
    with ruby_of(OWN / "ruby-3.1-blocks_and_bmethods.gz", tmp_path, version="3.1.4") as (_, runtime):
        assert runtime.layout_version == "3.1.4"
        assert "the layout of 3.1.4 is assumed; the self-check agrees" in runtime.notes[0]


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/usr/lib/libruby-3.1.so.3.1.2", "3.1.2"),
        ("/opt/lib/libruby.so.3.3.10", "3.3.10"),
        ("/opt/3.1.2/libruby.so.3.1", ""),
        ("/usr/bin/ruby3.1", ""),
        ("/x.so.3.1.2/ruby", ""),
        ("/usr/lib/libfoo.so.3.1.2", ""),
    ],
)
def test_a_version_is_read_from_the_name_of_a_library(path: str, version: str) -> None:
    assert version_in_name(path) == version


# Cores of programs run by others, under gdb's default filter: no code, no constants. Lines were checked
# against the programs, ci/ruby-programs/*.rb.

INFINITE = "ci/ruby-programs/infinite.rb"
INFINITE_STACK: list[Location] = [
    (INFINITE, 2, "sleep"),
    (INFINITE, 2, "aaa"),
    (INFINITE, 6, "bbb"),
    (INFINITE, 10, "ccc"),
    (INFINITE, 14, "block in <main>"),
    (INFINITE, 13, "loop"),
    (INFINITE, 13, "<main>"),
]
CLASSES = "ci/ruby-programs/infinite_on_cpu_with_classes.rb"
ON_CPU = "ci/ruby-programs/infinite_on_cpu.rb"

FOREIGN: dict[str, list[Location]] = {
    "2.5.0": INFINITE_STACK,
    "2.7.2": INFINITE_STACK,
    "3.0.0": INFINITE_STACK,
    "3.1.0": INFINITE_STACK,
    "with-classes-3.3.0": [
        (CLASSES, 9, "sleep"),
        (CLASSES, 9, "aaa"),
        (CLASSES, 16, "bbb"),
        (CLASSES, 24, "ccc"),
        (CLASSES, 31, "block in looper"),
        ("<internal:kernel>", 187, "loop"),
        (CLASSES, 30, "looper"),
        (CLASSES, 35, "<main>"),
    ],
    "4.0.0": [
        (ON_CPU, 8, "Kernel#sleep"),
        (ON_CPU, 8, "Object#aaa"),
        (ON_CPU, 12, "Object#bbb"),
        (ON_CPU, 16, "Object#ccc"),
        (ON_CPU, 20, "block in <main>"),
        ("<internal:kernel>", 169, "Kernel#loop"),
        (ON_CPU, 19, "<main>"),
    ],
}
# A static program whose code was not dumped: nobody can find the context. It is what
# ruby_current_execution_context_ptr points to, which is at this address.
CONTEXTS = {"2.5.0": 0x55DD8C3B7758}


def foreign(version: str) -> Path:
    path = OTHERS / f"ruby-coredump-{version}.gz"
    if not path.exists():
        pytest.skip(f"no {path.name} in {OTHERS}")
    return path


@pytest.mark.parametrize("version", FOREIGN)
def test_cores_of_other_versions_walk_to_the_bottom(version: str, tmp_path: Path) -> None:
    path = foreign(version)
    with ruby_of(path, tmp_path, context=CONTEXTS.get(version, 0)) as (process, runtime):
        assert runtime.version == version.removeprefix("with-classes-")
        assert runtime.check.result == "good"
        found = frames(process, runtime, runtime.running_context(process.memory))
        assert locations(found) == FOREIGN[version]
        if version == "with-classes-3.3.0":
            names = [frame.name for frame in found]
            assert names == [
                "Kernel#sleep", "A#aaa", "B::Ab#bbb", "C::Cb#ccc", "block in Object#looper",
                "Kernel#loop", "Object#looper", "<main>",
            ]  # fmt: skip
        if runtime.tls is not None:
            # Its thread says the same as the main ractor does.
            pointers = [thread.thread_pointer for thread in process.core.threads]
            contexts = [thread_context(process.memory, runtime.tls, pointer) for pointer in pointers]
            assert runtime.running_context(process.memory) in contexts


def test_a_static_ruby_without_code_needs_its_context(tmp_path: Path) -> None:
    with CoreProcess(CoreFile.open(foreign("2.5.0"), tmp_path)) as process:
        arguments = (process.pid, process.mappings(), process.memory)
        assert find_ruby(*arguments, open_elf=process.open, search=True) is None
        runtime = find_ruby(
            *arguments, open_elf=process.open, context=CONTEXTS["2.5.0"], assume_version="2.5.1"
        )
        assert runtime is not None
        assert runtime.version == "2.5.1"
        assert runtime.notes[0].startswith(
            "Ruby 2.5.1: the layout of 2.5.1 is assumed; the self-check agrees"
        )
