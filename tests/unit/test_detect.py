# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from elf_images import ALLOC, EXEC, PT_LOAD, SHT_DYNSYM, SHT_STRTAB, Part, elf_image
from ruby_memory import BASE, RubyMemory

from rubyunwind.errors import UnsupportedRuby
from rubyunwind.process.mappings import Mapping, parse_mappings, read_mappings
from rubyunwind.process.memory import LiveMemory
from rubyunwind.ruby.detect import (
    InterpreterRange,
    RubyRuntime,
    candidates,
    describe_runtime,
    find_ruby,
    is_ruby_name,
)
from rubyunwind.ruby.image import ImageSymbol, RubyImage
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.selfcheck import SelfCheck
from rubyunwind.ruby.vm_search import find_vm_pointer

MAPPING = Mapping(0x7F0000000000, 0x7F0000100000, True, False, True, 0, 1, 2, "/usr/lib/libruby.so.3.1.2")


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2",
        "/usr/lib/libruby-3.3.so.3.3.10",
        "/opt/ruby/lib/libruby.so.3.4.7",
        "/usr/lib/libruby.so",
        "/usr/lib/libruby2.7.so",
        "/usr/lib/libruby-2.7.so.2.7.10",
        "/usr/bin/ruby",
        "/usr/bin/ruby3.1",
        "/opt/bin/ruby-mri",
        "/opt/bin/ruby2.5",
    ],
)
def test_names_that_rubies_have(path: str) -> None:
    assert is_ruby_name(path)


@pytest.mark.parametrize(
    "path",
    ["/usr/lib/librubberband.so.2", "/usr/bin/jruby.jar", "/usr/bin/rubocop", "/usr/lib/libruby.a", ""],
)
def test_names_that_are_something_else(path: str) -> None:
    assert not is_ruby_name(path)


def test_libraries_come_before_programs_before_the_rest_and_files_once() -> None:
    lines = [
        (1, "r-xp", "/usr/bin/puma-x"),
        (2, "r-xp", "/usr/bin/ruby3.1"),
        (3, "r-xp", "/lib/libc.so.6"),
        (4, "r--p", "/lib/libruby-3.1.so.3.1.2"),
        (4, "r-xp", "/lib/libruby-3.1.so.3.1.2"),
        (4, "r-xp", "/lib/libruby-3.1.so.3.1.2"),
        (5, "r--p", "/usr/share/ruby"),
        (0, "r-xp", "[vdso]"),
    ]
    text = "\n".join(
        f"{0x1000 * n:x}-{0x1000 * n + 0x1000:x} {perms} 0 08:01 {inode} {path}"
        for n, (inode, perms, path) in enumerate(lines, 1)
    )
    found = candidates(parse_mappings(text.encode()))
    assert [mapping.path.rpartition("/")[2] for mapping in found] == [
        "libruby-3.1.so.3.1.2",
        "ruby3.1",
        "puma-x",
        "libc.so.6",
    ]
    assert found[0].executable


def fake_ruby(version: bytes, symbol: bytes = b"ruby_version") -> bytes:
    """A shared library that defines a version variable and nothing else."""
    names = b"\0" + symbol + b"\0"
    entry = struct.pack("<IBBHQQ", 1, 0x11, 0, 1, 0x100, len(version) + 1)
    image = elf_image(
        Part(".text", bytes(64), address=0x40, flags=ALLOC | EXEC),
        Part(".dynsym", bytes(24) + entry, type=SHT_DYNSYM, link=3, entry_size=24),
        Part(".dynstr", names, type=SHT_STRTAB),
        segments=[(PT_LOAD, 5, 0, 0, 0x1000, 0x1000)],
    )
    assert len(image) < 0x1000
    body = bytearray(image.ljust(0x1000, b"\0"))
    # Behind everything else, where nothing of the file is.
    address = 0xF00
    body[address : address + len(version) + 1] = version + b"\0"
    return bytes(body).replace(struct.pack("<QQ", 0x100, len(version) + 1), struct.pack("<QQ", address, 16))


@contextmanager
def mapped(path: Path, contents: bytes) -> Iterator[list[Mapping]]:
    """Map a file as code into this very process and yield that mapping."""
    path.write_bytes(contents)
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), len(contents), prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE),
    ):
        yield [mapping for mapping in read_mappings(os.getpid()) if mapping.path == str(path)]


def find_in(mappings: list[Mapping]) -> RubyRuntime | None:
    with LiveMemory(os.getpid()) as memory:
        return find_ruby(os.getpid(), mappings, memory)


@pytest.mark.parametrize(
    ("version", "nearest"),
    [(b"3.5.0dev", "3.4.11"), (b"4.1.0-preview1", "4.0.6"), (b"1.9.3", "2.5.0"), (b"9.9.9", "4.0.6")],
)
def test_a_version_without_a_layout_is_refused_by_name(tmp_path: Path, version: bytes, nearest: str) -> None:
    with mapped(tmp_path / "libruby.so.9.9.9", fake_ruby(version)) as mappings:
        assert mappings
        with pytest.raises(UnsupportedRuby) as caught:
            find_in(mappings)
    assert caught.value.found == version.decode()
    assert caught.value.nearest == nearest


def test_a_version_that_is_none_is_refused(tmp_path: Path) -> None:
    with (
        mapped(tmp_path / "libruby.so", fake_ruby(b"banana")) as mappings,
        pytest.raises(UnsupportedRuby, match="'banana', which is no version"),
    ):
        find_in(mappings)


def test_a_file_that_calls_something_else_ruby_version_does_not_hide_the_interpreter(tmp_path: Path) -> None:
    with (
        mapped(tmp_path / "libruby-tools.so", fake_ruby(b"\1\2\3")) as odd,
        mapped(tmp_path / "app", fake_ruby(b"3.1.2")) as good,
    ):
        runtime = find_in(odd + good)
    assert runtime is not None
    assert runtime.mapping.path.endswith("/app")


def test_an_interpreter_is_found_whatever_its_files_name(tmp_path: Path) -> None:
    with mapped(tmp_path / "puma-x", fake_ruby(b"3.4.99")) as mappings:
        runtime = find_in(mappings)
    assert runtime is not None
    assert runtime.version == "3.4.99"
    assert runtime.version_number == 0x30463
    assert runtime.layout_version == "3.4.11"
    assert runtime.tls is None
    assert runtime.interpreter_ranges == ()
    notes = " ".join(runtime.notes)
    assert "the layout of 3.4.11 is assumed" in notes
    assert "not checked yet" in notes
    assert "no Ruby frames" in notes


@pytest.mark.parametrize(
    "contents",
    [b"", b"\x7fELF", b"no ELF file" * 100, fake_ruby(b"3.1.2")[:300], fake_ruby(b"3.1.2", b"ruby_verzion")],
)
def test_files_that_only_have_the_name_are_no_ruby(tmp_path: Path, contents: bytes) -> None:
    with mapped(tmp_path / "libruby.so.3.1.2", contents.ljust(4096, b"\0")) as mappings:
        assert find_in(mappings) is None


def test_a_process_without_ruby_has_none() -> None:
    assert find_in(read_mappings(os.getpid())) is None


def image(memory: RubyMemory, **symbols: int) -> RubyImage:
    found = {name: ImageSymbol(value - BASE, 100) for name, value in symbols.items()}
    return RubyImage(path=MAPPING.path, bias=BASE, symbols=found)


def stack(memory: RubyMemory, *bodies: tuple[int, int], words: int = 256) -> int:
    """An execution context whose frames (leaf first) run the given iseqs; returns its address."""
    layout = memory.layout
    base = memory.place(bytes(8 * words))
    address = base + 8 * words - layout.cfp_size * (len(bodies) + 1)
    env = memory.words(0, 0, 0x11110003) + 16
    for index, (iseq, body) in enumerate(bodies):
        cfp = address + index * layout.cfp_size
        memory.poke(cfp + layout.cfp_pc, memory.u64(body + layout.body_iseq_encoded) + 8)
        memory.poke(cfp + layout.cfp_iseq, iseq)
        memory.poke(cfp + layout.cfp_ep, env)
    return memory.words(base, words, address)


def context_symbol(memory: RubyMemory, context: int) -> dict[str, int]:
    layout = memory.layout
    if layout.ractor_running_ec is None:
        return {layout.context_symbol: memory.words(context)}
    ractor = memory.place(bytes(layout.ractor_running_ec + 8))
    memory.poke(ractor + layout.ractor_running_ec, context)
    return {layout.context_symbol: memory.words(ractor)}


@pytest.mark.parametrize(
    "version", ["2.5.0", "2.6.0", "2.7.4", "3.0.0", "3.1.2", "3.2.0", "3.3.8", "3.4.1", "4.0.6"]
)
def test_every_version_is_described_and_checked(version: str) -> None:
    memory = RubyMemory(find_layout(version).layout)
    frames = [memory.iseq(name, lines=memory.one_line(line)) for line, name in enumerate(("c", "b", "a"), 1)]
    symbols = context_symbol(memory, stack(memory, *frames))
    symbols[memory.layout.interpreter_symbol] = memory.place(bytes(100))
    runtime = describe_runtime(image(memory, **symbols), version, MAPPING, [], memory)
    assert runtime.check.result == "good"
    assert runtime.check.frames == 3
    info = runtime.proc_info
    assert info.current_ctx_ptr == symbols[memory.layout.context_symbol]
    assert info.version == runtime.version_number
    assert info.size_of_control_frame_struct == memory.layout.cfp_size
    assert info.running_ec == (memory.layout.ractor_running_ec or 0)
    lower = symbols[memory.layout.interpreter_symbol] - BASE
    assert runtime.interpreter_ranges == (InterpreterRange(MAPPING.path, lower, lower + 100),)


def test_a_layout_that_does_not_fit_is_refused_with_the_reason() -> None:
    # A stack as 3.3 has it, in a process that says it were 3.1.
    memory = RubyMemory(find_layout("3.3.8").layout)
    frames = [memory.iseq("run", lines=memory.one_line(1)) for _ in range(5)]
    context = stack(memory, *frames)
    other = find_layout("3.1.2").layout
    assert other.ractor_running_ec is not None
    ractor = memory.place(bytes(other.ractor_running_ec + 8))
    memory.poke(ractor + other.ractor_running_ec, context)
    symbols = {"ruby_single_main_ractor": memory.words(ractor)}
    with pytest.raises(
        UnsupportedRuby, match=r"does not have the layout of 3\.1\.2: .*no frame of the stack"
    ):
        describe_runtime(image(memory, **symbols), "3.1.2", MAPPING, [], memory)
    # The right layout can be forced.
    memory.poke(ractor + (memory.layout.ractor_running_ec or 0), context)
    runtime = describe_runtime(image(memory, **symbols), "3.1.2", MAPPING, [], memory, assume_version="3.3.8")
    assert runtime.check.result == "good"
    assert "the layout of 3.3.8 is assumed; the self-check agrees" in runtime.notes[0]


def deep(version: str = "3.1.2") -> tuple[RubyMemory, RubyImage]:
    memory = RubyMemory(find_layout(version).layout)
    frames = [memory.iseq(name, lines=memory.one_line(1)) for name in ("c", "b", "a")]
    return memory, image(memory, **context_symbol(memory, stack(memory, *frames)))


def test_what_one_process_has_shown_of_a_file_holds_for_the_next() -> None:
    memory, found = deep()
    assert describe_runtime(found, "3.1.2", MAPPING, [], memory).check.frames == 3
    # As MappedFile gives it out: the same file, wherever it is mapped.
    again = describe_runtime(replace(found), "3.1.2", MAPPING, [], memory)
    assert again.check == SelfCheck("good", frames=1)
    # Another file, of the same contents: nothing was shown of it.
    other = replace(found, proven=set())
    assert describe_runtime(other, "3.1.2", MAPPING, [], memory).check.frames == 3


def test_a_proven_layout_does_not_excuse_a_stack_that_does_not_fit() -> None:
    memory, found = deep()
    describe_runtime(found, "3.1.2", MAPPING, [], memory)
    strange = RubyMemory(find_layout("3.3.8").layout)
    context = stack(strange, *(strange.iseq("run", lines=strange.one_line(1)) for _ in range(5)))
    layout = memory.layout
    assert layout.ractor_running_ec is not None
    ractor = strange.place(bytes(layout.ractor_running_ec + 8))
    strange.poke(ractor + layout.ractor_running_ec, context)
    symbols = image(strange, ruby_single_main_ractor=strange.words(ractor)).symbols
    with pytest.raises(UnsupportedRuby, match=r"does not have the layout of 3\.1\.2"):
        describe_runtime(replace(found, symbols=symbols), "3.1.2", MAPPING, [], strange)


def test_a_layout_that_is_assumed_is_checked_in_each_process() -> None:
    memory, found = deep()
    for _ in range(2):
        runtime = describe_runtime(found, "3.1.2", MAPPING, [], memory, assume_version="3.1.2")
        assert runtime.check.frames == 3
    assert not found.proven


def test_compiled_code_in_the_first_frame_is_no_reason_to_doubt_a_proven_layout() -> None:
    memory, found = deep()
    describe_runtime(found, "3.1.2", MAPPING, [], memory)
    runtime = describe_runtime(found, "3.1.2", MAPPING, [], memory)
    context = runtime.running_context(memory)
    memory.poke(memory.u64(context + memory.layout.ec_cfp) + memory.layout.cfp_pc, 0x1234)
    runtime = describe_runtime(found, "3.1.2", MAPPING, [], memory)
    assert runtime.check == SelfCheck("good", frames=3)


def test_an_interpreter_that_has_not_started_is_not_refused() -> None:
    memory = RubyMemory(find_layout("3.1.2").layout)
    symbols = {"ruby_single_main_ractor": memory.words(0)}
    runtime = describe_runtime(image(memory, **symbols), "3.1.2", MAPPING, [], memory)
    assert runtime.check.result == "early"
    assert runtime.running_context(memory) == 0


def test_the_vm_still_knows_the_main_ractor_when_there_are_more() -> None:
    memory = RubyMemory(find_layout("3.1.2").layout)
    frames = [memory.iseq("run", lines=memory.one_line(1))]
    context = stack(memory, *frames)
    symbols = context_symbol(memory, context)
    ractor = memory.u64(symbols["ruby_single_main_ractor"])
    memory.poke(symbols["ruby_single_main_ractor"], 0)
    vm = memory.place(bytes(64))
    assert memory.layout.vm_main_ractor is not None
    memory.poke(vm + memory.layout.vm_main_ractor, ractor)
    symbols["ruby_current_vm_ptr"] = memory.words(vm)
    runtime = describe_runtime(image(memory, **symbols), "3.1.2", MAPPING, [], memory)
    assert runtime.running_context(memory) == context
    assert runtime.check.result == "good"


def test_a_stripped_symbol_table_is_found_by_its_shape() -> None:
    memory = RubyMemory(find_layout("3.1.2").layout)
    memory.words(0x5DEECE66D, 77, 4096, 3, 512)
    table, _ = memory.identifiers(["each"])
    data = ((0, len(memory.block)),)
    found = RubyImage(path="", bias=BASE, data=data)
    assert describe_runtime(found, "3.1.2", MAPPING, [], memory).identifier_table == table


def vm(memory: RubyMemory, context: int) -> int:
    """A VM, its main ractor and its main thread, which point to each other; returns the VM."""
    layout = memory.layout
    assert layout.vm_main_ractor is not None
    assert layout.ractor_running_ec is not None
    machine, thread = memory.place(bytes(64)), memory.place(bytes(128))
    ractor = memory.place(bytes(layout.ractor_running_ec + 8))
    memory.poke(machine + layout.vm_main_ractor, ractor)
    memory.poke(machine + layout.vm_main_thread, thread)
    memory.poke(thread + layout.thread_vm - 8, ractor)
    memory.poke(thread + layout.thread_vm, machine)
    memory.poke(thread + layout.thread_ec, context)
    memory.poke(context + layout.ec_thread_ptr, thread)
    memory.poke(ractor + layout.ractor_running_ec, context)
    return machine


@pytest.mark.parametrize("version", ["3.0.0", "3.1.2", "3.2.0", "3.3.8", "3.4.1", "4.0.6"])
def test_a_hidden_vm_is_found_by_what_points_to_what(version: str) -> None:
    memory = RubyMemory(find_layout(version).layout)
    context = stack(memory, memory.iseq("run", lines=memory.one_line(1)))
    memory.place(bytes(128))  # the context's other members
    machine = vm(memory, context)
    data = memory.words(1, 0x10, context, memory.place(bytes(64)), machine, 7)
    found = RubyImage(path="", bias=BASE, writable=((data - BASE, 48),))
    runtime = describe_runtime(found, version, MAPPING, [], memory, search=True)
    assert runtime.image.address("ruby_current_vm_ptr") == data + 32
    assert runtime.running_context(memory) == context
    assert runtime.check.result == "good"
    assert not any("no execution context" in note for note in runtime.notes)
    # Nobody looks for it unasked.
    assert describe_runtime(found, version, MAPPING, [], memory).check.result == "early"


def test_data_without_a_vm_has_none_and_unreadable_pages_do_not_stop_the_search() -> None:
    memory = RubyMemory(find_layout("3.3.8").layout)
    pointer = memory.words(0)
    context = stack(memory, memory.iseq("run", lines=memory.one_line(1)), words=1024)
    memory.place(bytes(128))
    machine = vm(memory, context)
    other = memory.words(1, context, memory.u64(context), machine + 8)
    assert find_vm_pointer(memory, memory.layout, other, 32) == 0
    memory.poke(pointer, machine)
    assert find_vm_pointer(memory, memory.layout, BASE - 8192, 16384) == pointer
    assert find_vm_pointer(memory, find_layout("2.7.2").layout, BASE - 8192, 16384) == 0


def test_a_context_may_be_told_or_the_variable_that_points_to_it() -> None:
    memory = RubyMemory(find_layout("2.5.0").layout)
    context = stack(memory, memory.iseq("run", lines=memory.one_line(1)))
    for address in (context, memory.words(context)):
        runtime = describe_runtime(image(memory), "2.5.0", MAPPING, [], memory, context=address)
        assert runtime.running_context(memory) == context
        assert not any("no execution context" in note for note in runtime.notes)
    empty = memory.words(0, 0, 0)
    with pytest.raises(UnsupportedRuby, match=f"no execution context at {empty:#x}"):
        describe_runtime(image(memory), "2.5.0", MAPPING, [], memory, context=empty)
