# SPDX-License-Identifier: Apache-2.0
"""What a stripped Ruby hides, from the code of a made-up one and of real ones whose names are the oracle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stripped_ruby import LOOP, MAIN_RACTOR, MODULE, OTHER_MODULE, VM, opened, stripped_ruby

from rubyunwind.elf.dynamic import DynamicSection
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.symbols import STT_TLS, SymbolTable
from rubyunwind.errors import DecodeError
from rubyunwind.ruby.filenames import version_in_name
from rubyunwind.ruby.hidden import Collector, HiddenPlaces, Pointer, ThreadVariable, find_hidden
from rubyunwind.ruby.layouts import find_layout, parse_version


def find(elf: ElfFile) -> HiddenPlaces:
    return find_hidden(elf, SymbolTable(elf), context=True, loop=True)


def test_all_is_found_in_a_file_without_its_names() -> None:
    places = find(opened())
    assert places.context == (ThreadVariable("module", 0, MODULE), ThreadVariable("module", 16, OTHER_MODULE))
    assert places.thread_ptr == 0x30
    assert places.vm == Pointer(VM)
    assert places.collector == Collector(objspace=0x518, flags=16, bit=5)
    assert places.main_ractor == Pointer(MAIN_RACTOR)
    assert places.running_thread == 392 - 8
    assert places.loop == (LOOP, 8)
    assert places.reasons == ()


def test_nothing_is_looked_for_that_has_a_name() -> None:
    elf = opened()
    places = find_hidden(elf, SymbolTable(elf), context=False, loop=False)
    assert (places.context, places.loop) == ((), None)
    assert places.vm == Pointer(VM)


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        ("rb_thread_current", None, "rb_thread_current does not return"),
        ("rb_thread_current", "31c0c3", "rb_thread_current does not return"),
        ("rb_thread_current", "488d0500000000 488b00 488b4030 488b4010 c3", "does not read a thread-local"),
        ("rb_iseq_eval", None, "no rb_iseq_eval is exported"),
        ("rb_iseq_eval_main", "c3", "have 0 functions in common"),
        # A loop that calls nothing is none, and one that a block does not lead to.
        ("rb_iseq_eval", "53 e8{setup_main} 5b e9{loop}", "have 2 functions in common"),
        ("rb_funcallv", "e9{setup}", "have 0 functions in common"),
        ("rb_during_gc", None, "rb_during_gc is not exported"),
        ("rb_during_gc", "31c0c3", "rb_during_gc is not exported or cannot be read"),
        ("rb_during_gc", "8b07c3", "rb_during_gc is not exported or cannot be read"),
        ("rb_during_gc", "488d05{vm} 8b00 c3", "reads it in a way that is not known"),
    ],
)
def test_code_that_says_something_else_is_refused_with_the_reason(
    function: str, code: str | None, reason: str
) -> None:
    changes = {function: code}
    if function == "rb_iseq_eval" and code is not None:
        changes["rb_yield_values2"] = changes["rb_funcallv"] = "e8{setup_main} e9{loop}"
    places = find(opened(**changes))
    assert any(reason in text for text in places.reasons), places.reasons


def test_one_witness_alone_is_not_believed() -> None:
    places = find(opened(rb_errinfo=None, rb_lastline_get=None))
    assert places.context == ()
    assert places.reasons == ("ruby_current_ec: no other function reads what rb_thread_current reads",)


def test_a_vm_behind_a_pointer_is_seen_as_such() -> None:
    code = "488b05{vm} 488b00 488b8050040000 0fb64010 c0e805 83e001 c3"
    places = find(opened(rb_during_gc=code))
    assert places.vm == Pointer(VM, indirect=True)
    assert places.collector == Collector(objspace=0x450, flags=16, bit=5)


def test_a_loop_behind_calls_through_a_table_is_found() -> None:
    assert find(opened(rb_yield_values2="ff15{pointer} c3")).loop == (LOOP, 8)
    assert find(opened(rb_yield_values2="ff15{vm} c3")).loop is None


def test_a_flag_that_is_tested_where_it_lies_is_found() -> None:
    places = find(opened(rb_during_gc="488d05{vm} 488b00 488b8018050000 f6401520 0f95c0 c3"))
    assert places.collector == Collector(objspace=0x518, flags=20, bit=8 + 5)


def test_a_main_ractor_that_is_read_otherwise_is_not_found() -> None:
    assert find(opened(rb_thread_main="488b07c3")).main_ractor is None
    assert find(opened(rb_thread_main=None)).main_ractor is None


def test_code_that_is_not_there_is_said_once_for_each_name() -> None:
    image = bytearray(stripped_ruby())
    image[64 + 32 : 64 + 40] = (0x800).to_bytes(8, "little")  # p_filesz of what can be executed
    reasons = find(ElfFile(bytes(image), "libruby.so")).reasons
    assert [text.partition(":")[2] for text in reasons] == [" the file's code is not there"] * 3


def test_a_file_is_looked_through_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "libruby.so"
    path.write_bytes(stripped_ruby())
    with ElfFile.open(path) as elf:
        first = find(elf)
    with ElfFile.open(path) as elf:
        assert find(elf) is first
    path.write_bytes(stripped_ruby(rb_during_gc=None))
    os.utime(path, ns=(1, 1))
    with ElfFile.open(path) as elf:
        assert find(elf).vm is None


def test_a_file_that_is_closed_meanwhile_has_nothing_found() -> None:
    elf = opened(rb_errinfo="31c0c3")  # not looked through before
    symbols = SymbolTable(elf)
    symbols.find("rb_errinfo")
    elf.close()
    places = find_hidden(elf, symbols, context=True, loop=True)
    assert (places.context, places.loop, places.vm) == ((), None, None)
    assert places.reasons


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 0x8FFF), st.integers(0, 255)), min_size=1, max_size=40))
def test_damaged_files_end_and_do_not_raise(changes: list[tuple[int, int]]) -> None:
    image = bytearray(stripped_ruby())
    for at, value in changes:
        image[at] = value
    try:
        elf = ElfFile(bytes(image), "libruby.so")
    except DecodeError:
        return
    places = find(elf)
    assert len(places.context) <= 6


def test_functions_full_of_calls_end() -> None:
    # Every byte of a large one is a call to the next: all of them are looked at but once, and not for ever.
    calls = "e8e8e8e8" * 60
    places = find(opened(rb_iseq_eval=calls, rb_iseq_eval_main=calls, rb_yield_values2=calls))
    assert places.loop is None


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=200))
def test_any_code_in_all_functions_ends(code: bytes) -> None:
    names = (
        "rb_thread_current",
        "rb_errinfo",
        "rb_during_gc",
        "rb_thread_main",
        "rb_iseq_eval",
        "rb_funcallv",
    )
    find(opened(**dict.fromkeys(names, code.hex())))


# Real files: the installed Ruby's, and those of the directory that the live tests take theirs from.
_RUBIES = Path(os.environ.get("RUBYUNWIND_RUBIES", "~/.cache/rubyunwind/rubies")).expanduser()
REAL = sorted(
    {
        path.resolve()
        for root in (Path("/"), *_RUBIES.glob("*"))
        for path in (root / "usr/lib").glob("*-linux-gnu/libruby*.so.*.*.*")
    }
)


@pytest.mark.skipif(not REAL, reason="no libruby is installed, and no other Ruby was fetched")
@pytest.mark.parametrize("path", REAL, ids=lambda path: f"{path.parent.name[:7]}-{path.name}")
def test_real_files_tell_what_their_names_and_layouts_say(path: Path) -> None:
    """Builds that export a name are the oracle for it; their code is read as if they did not."""
    version = parse_version(version_in_name(str(path)))
    with ElfFile.open(path) as elf:
        symbols = SymbolTable(elf)
        layout = find_layout(".".join(map(str, version)), aarch64=elf.machine == 183).layout
        places = find_hidden(elf, symbols, context=version >= (3, 0), loop=True)
        assert places.reasons == ()
        assert places.collector is not None
        assert places.collector.objspace == layout.vm_objspace
        assert places.collector.bit == 5
        if layout.objspace_flags is not None:
            assert places.collector.flags == layout.objspace_flags
        loop = symbols.find("rb_vm_exec")
        assert places.loop is not None
        assert loop is None or places.loop == (loop.value, loop.size)
        if version >= (3, 0):
            assert places.thread_ptr == layout.ec_thread_ptr
            assert places.running_thread == layout.ractor_running_ec
        _compare_variables(elf, symbols, places)


def _compare_variables(elf: ElfFile, symbols: SymbolTable, places: HiddenPlaces) -> None:
    dynamic = DynamicSection(elf)
    # GLOB_DAT, DTPMOD64 and TLSDESC of both machines.
    named = {entry.offset: entry.symbol for entry in dynamic.relocations((6, 16, 36, 1025, 1028, 1031))}
    for name, pointer in (
        ("ruby_current_vm_ptr", places.vm),
        ("ruby_single_main_ractor", places.main_ractor),
    ):
        if symbols.find(name) is not None:
            assert pointer is not None
            assert dynamic.symbol_name(named[pointer.address]) == name
    context = symbols.find("ruby_current_ec")
    if context is not None:
        assert context.type == STT_TLS
        assert [dynamic.symbol_name(named[way.slot]) for way in places.context] == ["ruby_current_ec"]
