# SPDX-License-Identifier: Apache-2.0
"""Where functions begin, from .eh_frame_hdr tables made by hand."""

from __future__ import annotations

import struct

import pytest
from elf_images import ALLOC, EH_FRAME, EXEC, SHT_PROGBITS, TEXT, X86_CIE, EhFrame, Part, elf_image
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.functions import function_entries, function_starts, start_of
from rubyunwind.errors import DecodeError

HDR = 0x90000
ENCODINGS = (1, 0x1B, 0x03, 0x3B)


def header(starts: list[int], *, encodings: tuple[int, ...] = ENCODINGS, count: int | None = None) -> bytes:
    head = struct.pack("<BBBBiI", *encodings, -0x10000, len(starts) if count is None else count)
    return head + b"".join(struct.pack("<ii", start - HDR, -4) for start in starts)


def starts_in(data: bytes, name: str = ".eh_frame_hdr", kind: int = SHT_PROGBITS) -> list[int]:
    return function_starts(ElfFile(elf_image(Part(name, data, HDR, type=kind, flags=ALLOC))))


def test_functions_before_and_behind_the_table_are_found() -> None:
    assert starts_in(header([0x1000, 0x1010, 0x8FFFF, 0xA0000])) == [0x1000, 0x1010, 0x8FFFF, 0xA0000]


def test_they_come_in_order_whatever_the_linker_did() -> None:
    assert starts_in(header([0x3000, 0x1000, 0x2000])) == [0x1000, 0x2000, 0x3000]


def test_a_file_without_the_table_has_none() -> None:
    assert starts_in(header([0x1000]), name=".other") == []
    assert starts_in(b"") == []
    assert starts_in(header([])) == []


@pytest.mark.parametrize(
    "encodings",
    [(2, 0x1B, 0x03, 0x3B), (1, 0x00, 0x03, 0x3B), (1, 0x1B, 0xFF, 0x3B), (1, 0x1B, 0x03, 0xFF)],
)
def test_another_version_or_encoding_is_not_guessed_at(encodings: tuple[int, ...]) -> None:
    assert starts_in(header([0x1000], encodings=encodings)) == []


@pytest.mark.parametrize("count", [3, 0xFFFFFFFF])
def test_a_count_beyond_the_section_is_cut_to_what_is_there(count: int) -> None:
    assert starts_in(header([0x1000, 0x2000], count=count)) == [0x1000, 0x2000]


def without_table(*starts: int, form: bytes = b"\x1b", where: str = ".eh_frame") -> dict[int, int]:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, data=form)
    for start in starts:
        frames.fde(cie, start, 0x20, b"")
    text = Part(".text", bytes(0x100), TEXT, flags=ALLOC | EXEC)
    return function_entries(
        ElfFile(elf_image(text, Part(where, bytes(frames.end().data), EH_FRAME, flags=ALLOC)))
    )


def test_without_the_table_the_entries_themselves_are_read() -> None:
    found = without_table(TEXT + 0x40, TEXT, TEXT + 0x80)
    assert sorted(found) == [TEXT, TEXT + 0x40, TEXT + 0x80]
    assert found[TEXT] > found[TEXT + 0x40] > EH_FRAME
    assert without_table(TEXT, where=".other") == {}


def test_an_entry_that_leads_to_no_code_is_none() -> None:
    assert list(without_table(TEXT, TEXT + 0x1000)) == [TEXT]


def test_half_an_entry_at_the_end_is_left_out() -> None:
    assert starts_in(header([0x1000, 0x2000])[:-3]) == [0x1000]


def test_a_section_that_is_not_in_the_file_is_none() -> None:
    image = bytearray(elf_image(Part(".eh_frame_hdr", header([0x1000]), HDR, flags=ALLOC)))
    shoff = struct.unpack_from("<Q", image, 40)[0]
    struct.pack_into("<Q", image, shoff + 64 + 32, 1 << 40)  # sh_size of the first section
    assert function_starts(ElfFile(bytes(image))) == []


def test_a_closed_file_is_an_error() -> None:
    elf = ElfFile(elf_image(Part(".eh_frame_hdr", header([0x1000]), HDR)))
    elf.close()
    with pytest.raises(DecodeError, match="closed"):
        function_starts(elf)


@given(st.binary(max_size=64))
def test_any_entries_are_survived(data: bytes) -> None:
    text = Part(".text", bytes(0x100), TEXT, flags=ALLOC | EXEC)
    function_entries(ElfFile(elf_image(text, Part(".eh_frame", data, EH_FRAME))))


@given(st.binary(max_size=64))
def test_any_bytes_give_a_list(data: bytes) -> None:
    found = starts_in(struct.pack("<BBBB", *ENCODINGS) + data)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("address", "start"),
    [(0xFFF, None), (0x1000, 0x1000), (0x1FFF, 0x1000), (0x2000, 0x2000), (1 << 60, 0x2000)],
)
def test_the_start_at_or_before_an_address_is_its_functions(address: int, start: int | None) -> None:
    assert start_of([0x1000, 0x2000], address) == start


def test_no_starts_no_function() -> None:
    assert start_of([], 0x1000) is None
