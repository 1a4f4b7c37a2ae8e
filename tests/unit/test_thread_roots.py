# SPDX-License-Identifier: Apache-2.0
"""The last return address of a thread in a C library without unwind rows, from code made by hand."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from elf_images import (
    AARCH64,
    ALLOC,
    EH_FRAME,
    EXEC,
    SHT_DYNSYM,
    SHT_STRTAB,
    TEXT,
    X86_64,
    X86_CIE,
    EhFrame,
    Part,
    elf_image,
)
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.elf.deltas import extract_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.thread_roots import thread_roots

INVALID, STOP = (0, 0, 0, 0, 0), (0, 0, 0, 1, 0)
EXIT, PTHREAD_EXIT, OTHER = TEXT + 0x100, TEXT + 0x180, TEXT + 0x140
NAMES = {"__libc_start_main": TEXT + 0x80, "exit": EXIT, "pthread_exit": PTHREAD_EXIT, "abort": OTHER}


def library(
    code: bytes, *, machine: int = X86_64, names: dict[str, int] = NAMES, frames: bytes = b""
) -> ElfFile:
    strings, symbols = b"\0", bytes(24)
    for name, value in names.items():
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, value, 16)
        strings += name.encode() + b"\0"
    parts = [
        Part(".text", code.ljust(0x200, b"\0"), TEXT, flags=ALLOC | EXEC),
        Part(".dynsym", symbols, type=SHT_DYNSYM, flags=ALLOC, link=3, entry_size=24),
        Part(".dynstr", strings, type=SHT_STRTAB, flags=ALLOC),
        Part(".eh_frame", frames, EH_FRAME, flags=ALLOC),
    ]
    return ElfFile(elf_image(*parts, machine=machine), "libc.so")


def x86(call: str, move: str, target: int, at: int = 0x20) -> bytes:
    pair = bytes.fromhex(call + move) + b"\xe8"
    return bytes(at) + pair + struct.pack("<i", target - (TEXT + at + len(pair) + 4))


def arm(*words: int, target: int, at: int = 0x20) -> bytes:
    distance = (target - (TEXT + at + 4 * len(words))) >> 2
    return bytes(at) + struct.pack(f"<{len(words) + 1}I", *words, 0x94000000 | distance & 0x3FFFFFF)


@pytest.mark.parametrize(
    ("call", "move", "target"),
    [
        ("ffd3", "89c7", EXIT),  # call *%rbx; mov %eax,%edi
        ("41ffd4", "89c7", EXIT),  # call *%r12
        ("ff13", "4889c7", PTHREAD_EXIT),  # call *(%rbx); mov %rax,%rdi
        ("ff10", "4863f8", PTHREAD_EXIT),  # call *(%rax); movslq %eax,%rdi
        ("ff5308", "4889c7", PTHREAD_EXIT),  # call *8(%rbx)
        ("ff9300010000", "4889c7", PTHREAD_EXIT),
    ],
)
def test_a_call_by_pointer_whose_result_ends_the_thread_is_its_root(
    call: str, move: str, target: int
) -> None:
    code = x86(call, move, target)
    first = TEXT + 0x20 + (call[:2] == "41")
    assert thread_roots(library(code)) == [(first, TEXT + len(code))]


@pytest.mark.parametrize(
    "code",
    [
        x86("ffd3", "89c7", OTHER),
        x86("ffd3", "89c6", EXIT),
        x86("e800000000", "89c7", EXIT),
        b"\xff\xd3\x89\xc7\xe8",
        b"",
    ],
)
def test_other_code_is_none(code: bytes) -> None:
    assert thread_roots(library(code)) == []


@pytest.mark.parametrize(
    ("words", "target"),
    [((0xD63F0060,), EXIT), ((0xD63F0020, 0x93407C00), PTHREAD_EXIT), ((0xD63F03C0,), TEXT)],
)
def test_on_aarch64_the_result_needs_no_move(words: tuple[int, ...], target: int) -> None:
    names = {**NAMES, "exit": target} if target == TEXT else NAMES
    code = arm(*words, target=target)
    elf = library(code, machine=AARCH64, names=names)
    assert thread_roots(elf) == [(TEXT + 0x20, TEXT + len(code))]


def test_code_that_is_not_at_a_word_is_no_instruction() -> None:
    code = b"\0\0" + arm(0xD63F0060, target=EXIT)
    assert thread_roots(library(code, machine=AARCH64)) == []


def test_only_a_library_that_starts_programs_has_them() -> None:
    code = x86("ffd3", "89c7", EXIT)
    others = {name: value for name, value in NAMES.items() if name != "__libc_start_main"}
    assert thread_roots(library(code, names=others)) == []
    assert extract_stack_deltas(library(code, names=others)).count == 0


def test_rows_say_that_the_stack_ends_there() -> None:
    code = x86("ffd3", "89c7", EXIT)
    deltas = extract_stack_deltas(library(code))
    rows = [(at - TEXT, deltas.infos[row]) for at, row in zip(deltas.addresses(), deltas.rows(), strict=True)]
    assert rows == [(0x20, STOP), (len(code), INVALID)]


def test_rules_that_a_file_has_are_not_replaced() -> None:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE), TEXT + 0x10, 0x40, b"")
    code = x86("ffd3", "89c7", EXIT) + x86("ffd3", "89c7", EXIT, at=0x60)[0x29:]
    deltas = extract_stack_deltas(library(code, frames=bytes(frames.end().data)))
    rows = [(at - TEXT, deltas.infos[row]) for at, row in zip(deltas.addresses(), deltas.rows(), strict=True)]
    assert [at for at, _ in rows] == [0x10, 0x50, 0x60, 0x69]
    assert [info for _, info in rows[1:]] == [INVALID, STOP, INVALID]


def test_debians_musl_has_one_for_the_program_and_two_for_threads() -> None:
    path = Path("/usr/lib/x86_64-linux-musl/libc.so")
    if not path.exists():
        pytest.skip("musl-tools is not installed")
    with ElfFile.open(path) as elf:
        assert len(thread_roots(elf)) == 3


@given(st.binary(max_size=64), st.sampled_from([X86_64, AARCH64]))
def test_any_code_is_survived(code: bytes, machine: int) -> None:
    thread_roots(library(code, machine=machine))
