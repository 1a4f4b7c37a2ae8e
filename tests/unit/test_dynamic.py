# SPDX-License-Identifier: Apache-2.0
"""The dynamic section of a made-up library, and of what is none."""

from __future__ import annotations

import struct

import pytest
from elf_images import Part, elf_image
from stripped_ruby import DYNAMIC, MODULE, NAMES, OTHER_MODULE, RELOCATIONS, opened, stripped_ruby

from rubyunwind.elf.dynamic import DT_RELA, DT_STRTAB, DynamicSection, RelocationEntry
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.functions import function_entries, function_size
from rubyunwind.errors import DecodeError


def test_relocations_of_the_kinds_that_are_wanted() -> None:
    section = DynamicSection(opened())
    assert section.entries[DT_RELA] == RELOCATIONS
    assert list(section.relocations((16,))) == [
        RelocationEntry(MODULE, 16, 0, 0),
        RelocationEntry(OTHER_MODULE, 16, 0, 0),
    ]
    assert list(section.relocations((7, 36))) == []


def test_symbols_by_their_index() -> None:
    section = DynamicSection(opened())
    assert section.symbol_name(0) == ""
    assert section.symbol_name(1) == "rb_thread_current"
    assert section.symbol_value(1) == 0x1000
    assert section.symbol_value(0) == 0


def test_a_program_without_one_has_nothing_in_it() -> None:
    section = DynamicSection(ElfFile(elf_image(Part(".text", bytes(64))), "static"))
    assert section.entries == {}
    assert list(section.relocations((16,))) == []


def test_places_outside_of_the_file_are_refused() -> None:
    image = bytearray(stripped_ruby())
    at = image.index(struct.pack("<2Q", DT_STRTAB, NAMES), DYNAMIC)
    image[at + 8 : at + 16] = struct.pack("<Q", 1 << 40)
    section = DynamicSection(ElfFile(bytes(image), "libruby.so"))
    with pytest.raises(DecodeError, match="the name of symbol 1 is in no loaded segment"):
        section.symbol_name(1)
    with pytest.raises(DecodeError):
        section.symbol_value(1 << 30)


def test_the_size_of_a_function_is_in_its_unwind_entry() -> None:
    elf = opened()
    entries = function_entries(elf)
    assert function_size(elf, 0x2000, entries[0x2000]) == 8
    # An entry of another function, and what is none.
    assert function_size(elf, 0x2000, entries[0x2100]) == 0
    assert function_size(elf, 0x2000, 1 << 40) == 0
