# SPDX-License-Identifier: Apache-2.0
"""What the kernel side is told of a VM: where its collections show, and how a context's owner is checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruby_memory import RubyMemory

from rubyunwind.elf.file import ElfFile
from rubyunwind.process.mappings import Mapping
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.vm_info import make_vm_info, pthread_offset

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def test_the_flags_of_the_object_space_are_found_through_the_vm() -> None:
    layout = find_layout("3.1.2").layout
    memory = RubyMemory(layout)
    space = memory.words(*[0] * 8)
    vm = memory.place(bytes(layout.vm_objspace) + space.to_bytes(8, "little"))
    pointer = memory.words(vm)
    info = make_vm_info(memory, layout, pointer, 0, 0)
    assert layout.objspace_flags == 16
    assert info.gc_flags == space + 16
    assert (info.ec_thread, info.thread_ractor, info.thread_pthread) == (48, 24, 0)


def test_before_ractors_the_vm_is_found_through_the_running_context_too() -> None:
    layout = find_layout("2.7.4").layout
    memory = RubyMemory(layout)
    space = memory.words(*[0] * 8)
    vm = memory.place(bytes(layout.vm_objspace) + space.to_bytes(8, "little"))
    thread = memory.place(bytes(layout.thread_vm) + vm.to_bytes(8, "little"))
    context = memory.place(bytes(layout.ec_thread_ptr) + thread.to_bytes(8, "little"))
    info = make_vm_info(memory, layout, 0, memory.words(context), -1776)
    assert info.gc_flags == space + 16
    assert (info.ec_thread, info.thread_ractor, info.thread_pthread) == (56, 0, 72)
    assert info.pthread_offset == -1776


def test_a_vm_that_is_not_there_yet_leaves_its_flags_unknown() -> None:
    layout = find_layout("3.1.2").layout
    memory = RubyMemory(layout)
    nowhere = memory.words(0)
    broken = memory.words(memory.place(bytes(layout.vm_objspace + 8)))
    odd = memory.words(memory.place(bytes(layout.vm_objspace) + (0x1234567).to_bytes(8, "little")))
    for pointer in (0, nowhere, broken, odd, 0x10):
        assert make_vm_info(memory, layout, pointer, 0, 0).gc_flags == 0


def test_an_owner_that_cannot_be_told_is_not_checked() -> None:
    layout = find_layout("2.7.4").layout
    info = make_vm_info(RubyMemory(layout), layout, 0, 0, None)
    assert (info.thread_pthread, info.pthread_offset) == (0, 0)


def _mapping(path: str) -> Mapping:
    return Mapping(0x1000, 0x2000, True, False, False, 0, 0, 1, path)


def test_on_x86_64_a_pthread_is_its_thread_pointer() -> None:
    assert pthread_offset(False, [], ElfFile.open) == 0  # type: ignore[arg-type]


@pytest.mark.skipif(not LIBC.exists(), reason="no glibc of Debian's here")
def test_elsewhere_glibc_says_how_long_its_struct_pthread_is() -> None:
    found = pthread_offset(True, [_mapping("/x/libc.so.6")], lambda _: ElfFile.open(LIBC))
    assert found is not None
    assert -8192 < found < -512
    assert found % 8 == 0


def test_a_c_library_that_says_nothing_leaves_it_unknown() -> None:
    def refuse(_: Mapping) -> ElfFile:
        raise OSError("gone")

    assert pthread_offset(True, [_mapping("/x/libc.so.6")], refuse) is None
    assert pthread_offset(True, [_mapping("/x/ld-musl-aarch64.so.1")], refuse) is None
