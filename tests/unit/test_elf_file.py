# SPDX-License-Identifier: Apache-2.0
"""The ELF reader on real files, on images in memory, and on files that lie."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import zlib
from pathlib import Path

import pytest
from elf_images import ALLOC, EXEC, PT_LOAD, Part, elf_image
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.elf.deltas import extract_stack_deltas
from rubyunwind.elf.file import MAX_READ, ElfFile
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError

SHF_COMPRESSED = 0x800


def test_the_running_python_has_the_parts_every_program_has() -> None:
    with ElfFile.open(os.path.realpath(sys.executable)) as elf:
        text = elf.section(".text")
        assert text is not None
        assert text.executable
        assert elf.read_virtual(text.address, 64) == elf.read(text.offset, 64) == elf.data(text)[:64]
        assert any(start <= text.address < end for start, end, _ in elf.executable_spans)
        assert elf.section(".nosuch") is None


def test_load_bias_agrees_with_the_mappings_of_this_process() -> None:
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    mapped = [line for line in lines if len(line) == 6 and "x" in line[1] and "/libc.so" in line[5]]
    if not mapped:
        pytest.skip("this Python does not use a libc.so")
    start, offset, path = int(mapped[0][0].split("-")[0], 16), int(mapped[0][2], 16), mapped[0][5]
    first = min(int(line[0].split("-")[0], 16) for line in lines if line[5:] == [path])
    with ElfFile.open(path) as elf:
        # A shared library's first segment has address 0, so its first mapping is the bias.
        assert elf.load_bias(start, offset) == first
        with pytest.raises(DecodeError, match="no loaded segment"):
            elf.load_bias(start, 1 << 40)


def test_the_vdso_reads_from_memory_like_a_file() -> None:
    areas = [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]")]
    if not areas:
        pytest.skip("this kernel maps no vdso")
    start, end = (int(part, 16) for part in areas[0].split()[0].split("-"))
    with Path("/proc/self/mem").open("rb") as memory:
        memory.seek(start)
        image = memory.read(end - start)
    elf = ElfFile(image, "[vdso]")
    assert elf.load_bias(start, 0) == start
    deltas = extract_stack_deltas(elf)
    assert deltas.count > 4
    symbols = SymbolTable(elf)
    name = "__vdso_clock_gettime" if elf.machine == 62 else "__kernel_clock_gettime"
    symbol = symbols.find(name)
    assert symbol is not None
    found = symbols.lookup(symbol.value)
    assert found is not None
    assert found[1] == 0
    # The same rows without section headers, as a loader would see the image.
    headless = bytearray(image)
    headless[40:48] = bytes(8)
    bare = ElfFile(bytes(headless))
    assert bare.sections == ()
    assert extract_stack_deltas(bare).to_bytes() == deltas.to_bytes()
    assert build_id(bare) == build_id(elf)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no ELF file: 0 bytes"),
        (b"#!/bin/sh\n".ljust(200), "begin 23212f62"),
        (b"\x7fELF", "no ELF file: 4 bytes"),
        (b"\x7fELF\1\1\1".ljust(64, b"\0"), "32-bit little-endian"),
        (b"\x7fELF\2\2\1".ljust(64, b"\0"), "64-bit big-endian"),
        (elf_image(machine=40), "machine 40; only x86_64"),
    ],
)
def test_other_files_are_refused_with_what_they_are(data: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        ElfFile(data, "thing")


def test_only_regular_files_are_read_and_the_descriptor_is_closed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, Path("/dev/null")):
        with pytest.raises(DecodeError, match="no regular file"):
            ElfFile.open(path)
    (tmp_path / "text").write_text("no ELF")
    fd = os.open(tmp_path / "text", os.O_RDONLY)
    with pytest.raises(DecodeError, match="text is no ELF file"):
        ElfFile.from_fd(fd, "text")
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_reading_after_close_is_an_error_and_closing_twice_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(elf_image())
    elf = ElfFile.open(tmp_path / "file")
    elf.close()
    elf.close()
    with pytest.raises(DecodeError, match="closed"):
        elf.read(0, 4)


def test_a_file_that_shrinks_while_it_is_read_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(elf_image(Part(".text", bytes(100000), 0x1000, flags=ALLOC | EXEC)))
    with ElfFile.open(path) as elf:
        text = elf.section(".text")
        assert text is not None
        os.truncate(path, 1000)
        with pytest.raises(DecodeError, match="shrank"):
            elf.data(text)


def test_reads_outside_the_file_and_huge_reads_are_refused(tmp_path: Path) -> None:
    elf = ElfFile(elf_image())
    for offset, length in ((elf.size, 1), (0, elf.size + 1), (-1, 1), (0, -1), (1 << 63, 1 << 63)):
        with pytest.raises(DecodeError, match="reach past its end"):
            elf.read(offset, length)
    sparse = tmp_path / "sparse"
    sparse.write_bytes(elf_image())
    os.truncate(sparse, MAX_READ * 4)
    with ElfFile.open(sparse) as large, pytest.raises(DecodeError, match="the bound is"):
        large.read(0, MAX_READ + 1)


def test_memory_behind_the_file_part_of_a_segment_is_zero() -> None:
    image = elf_image(Part(".data", b"abcdefgh"), segments=[(PT_LOAD, 6, 64 + 56, 0x1000, 8, 0x100)])
    elf = ElfFile(image)
    assert elf.read_virtual(0x1004, 8) == b"efgh\0\0\0\0"
    assert elf.read_virtual(0x1010, 4) == bytes(4)
    for address, length in ((0xFFF, 4), (0x10FF, 2), (0x1000, -1)):
        with pytest.raises(DecodeError, match="in no loaded segment"):
            elf.read_virtual(address, length)


def test_of_two_segments_in_one_page_of_the_file_the_executable_one_is_meant() -> None:
    image = elf_image(
        Part(".text", bytes(0x3000)),
        segments=[(PT_LOAD, 4, 0, 0x400000, 0x1234, 0x1234), (PT_LOAD, 5, 0x1240, 0x402240, 0x1000, 0x1000)],
    )
    elf = ElfFile(image)
    assert elf.load_bias(0x7F0000002000, 0x1000, page_size=4096) == 0x7F0000002000 - 0x402000
    assert (
        elf.load_bias(0x7F0000001000, 0x1000, executable=False, page_size=4096) == 0x7F0000001000 - 0x401000
    )


def test_tables_that_do_not_fit_the_file_count_as_missing() -> None:
    image = elf_image(Part(".text", bytes(16), flags=EXEC), segments=[(PT_LOAD, 5, 0, 0, 64, 64)])
    for where, form, value in (
        (40, "<Q", 1 << 62),
        (40, "<Q", len(image) - 8),
        (58, "<H", 8),
        (60, "<H", 9999),
    ):
        damaged = bytearray(image)
        struct.pack_into(form, damaged, where, value)
        assert ElfFile(bytes(damaged)).sections == ()
    for where, form, value in ((32, "<Q", 1 << 62), (54, "<H", 8), (56, "<H", 9999)):
        damaged = bytearray(image)
        struct.pack_into(form, damaged, where, value)
        assert ElfFile(bytes(damaged)).segments == ()


def test_a_span_is_not_longer_than_the_file() -> None:
    image = elf_image(Part(".x", bytes(64)), segments=[(PT_LOAD, 5, 64, 0x1000, 1 << 40, 1 << 50)])
    elf = ElfFile(image)
    assert elf.executable_spans == ((0x1000, 0x1000 + elf.size - 64, 64),)


def test_compressed_sections_are_unpacked_within_bounds() -> None:
    plain = b"unwind rules " * 100

    def image(size: int, data: bytes = zlib.compress(plain), kind: int = 1) -> ElfFile:
        head = struct.pack("<IIQQ", kind, 0, size, 1)
        return ElfFile(elf_image(Part(".debug_frame", head + data, flags=SHF_COMPRESSED)))

    def unpacked(elf: ElfFile) -> bytes:
        section = elf.section(".debug_frame")
        assert section is not None
        return elf.data(section)

    assert unpacked(image(len(plain))) == plain
    for elf, message in (
        (image(len(plain) + 1), "has 1300 of 1301"),
        (image(1 << 40), "bytes is read"),
        (image(len(plain), kind=2), "method 2"),
        (image(len(plain), b"no zlib data"), "compressed section"),
    ):
        with pytest.raises(DecodeError, match=message):
            unpacked(elf)


@settings(max_examples=300)
@given(st.dictionaries(st.integers(0, 63), st.integers(0, 255), max_size=4), st.integers(0, 400))
def test_any_header_gives_answers_or_a_decode_error(changes: dict[int, int], cut: int) -> None:
    image = bytearray(
        elf_image(
            Part(".note", struct.pack("<III4s8s", 4, 8, 3, b"GNU\0", b"identity"), type=7),
            Part(".dynsym", bytes(48), type=11, link=3, entry_size=24),
            Part(".dynstr", b"\0name\0", type=3),
            segments=[(PT_LOAD, 5, 0, 0, 256, 256)],
        )
    )
    for position, value in changes.items():
        image[position] = value
    with contextlib.suppress(DecodeError):
        elf = ElfFile(bytes(image[: len(image) - cut]))
        build_id(elf)
        file_id(elf)
        SymbolTable(elf).lookup(0x10)
        SymbolTable(elf).find("name")
        elf.read_virtual(0, 16)
        elf.load_bias(0, 0)
