# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruby_memory import RubyMemory

from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.strings import (
    MAX_STRING,
    BadObject,
    array_element,
    path_of,
    read_string,
    read_string_bytes,
)

VERSIONS = ["2.5.0", "2.7.4", "3.1.2", "3.2.0", "3.4.1", "4.0.6"]


def memory_of(version: str) -> RubyMemory:
    return RubyMemory(find_layout(version).layout)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("heap", [False, True])
@given(raw=st.binary(max_size=23))
def test_bytes_of_embedded_and_heap_strings_come_back(version: str, heap: bool, raw: bytes) -> None:
    memory = memory_of(version)
    assert read_string_bytes(memory, memory.layout, memory.string(raw, heap=heap)) == raw


def test_a_nul_does_not_end_a_name() -> None:
    memory = memory_of("3.1.2")
    assert read_string(memory, memory.layout, memory.string("a\0b")) == "a\0b"


@given(raw=st.binary(max_size=200))
def test_bytes_that_are_no_utf8_survive_as_surrogates(raw: bytes) -> None:
    memory = memory_of("3.1.2")
    text = read_string(memory, memory.layout, memory.string(raw))
    assert text.encode("utf-8", "surrogateescape") == raw


def test_long_embedded_strings_of_variable_width_allocation_are_whole() -> None:
    memory = memory_of("3.3.8")
    text = "x" * 300
    assert read_string(memory, memory.layout, memory.string(text, heap=False)) == text


def test_a_string_of_absurd_length_is_cut_not_read() -> None:
    memory = memory_of("3.1.2")
    characters = memory.place(b"y" * (MAX_STRING + 100))
    value = memory.words(0x5 | 1 << 13, 0, 1 << 40, characters, 0)
    assert read_string(memory, memory.layout, value) == "y" * MAX_STRING


def test_a_name_that_is_cut_inside_a_character_loses_no_byte() -> None:
    memory = memory_of("3.1.2")
    raw = b"x" + "é".encode() * MAX_STRING
    value = memory.words(0x5 | 1 << 13, 0, len(raw), memory.place(raw), 0)
    text = read_string(memory, memory.layout, value)
    assert text.startswith("xéé")
    assert text.endswith("é\udcc3")
    assert text.encode("utf-8", "surrogateescape") == raw[:MAX_STRING]


def test_a_negative_length_is_refused() -> None:
    memory = memory_of("3.1.2")
    value = memory.words(0x5 | 1 << 13, 0, (1 << 64) - 1, memory.place(b"y"), 0)
    with pytest.raises(BadObject, match="length -1"):
        read_string(memory, memory.layout, value)


@pytest.mark.parametrize("value", [0, 1, 4, 8, 20, 0x7F0000000001])
def test_immediate_values_are_no_strings(value: int) -> None:
    memory = memory_of("3.1.2")
    with pytest.raises(BadObject, match="no heap object"):
        read_string(memory, memory.layout, value)


def test_another_type_is_refused_by_name_of_the_type() -> None:
    memory = memory_of("3.1.2")
    with pytest.raises(BadObject, match=r"no String \(type 0x7\)"):
        read_string(memory, memory.layout, memory.array(8))


def test_unmapped_memory_is_a_read_error_with_the_address() -> None:
    memory = memory_of("3.1.2")
    with pytest.raises(MemoryReadError) as caught:
        read_string(memory, memory.layout, 0x1000)
    assert caught.value.address == 0x1000


@pytest.mark.parametrize("heap", [False, True])
def test_a_path_is_a_string_or_the_first_of_two(heap: bool) -> None:
    memory = memory_of("3.1.2")
    given_path, real_path = memory.string("lib/a.rb"), memory.string("/srv/app/lib/a.rb")
    assert path_of(memory, memory.layout, given_path) == "lib/a.rb"
    assert path_of(memory, memory.layout, memory.array(given_path, real_path, heap=heap)) == "lib/a.rb"
    # Evaluated code has no real path.
    assert path_of(memory, memory.layout, memory.array(given_path, 8, heap=heap)) == "lib/a.rb"


def test_an_element_past_a_heap_array_is_refused() -> None:
    memory = memory_of("3.1.2")
    with pytest.raises(BadObject, match="2 elements"):
        array_element(memory, memory.array(8, 8, heap=True), 2)


def test_an_array_in_place_of_its_elements_does_not_loop() -> None:
    memory = memory_of("3.1.2")
    value = memory.array(8)
    memory.write(value + 16, struct.pack("<Q", value))
    with pytest.raises(BadObject, match="no String"):
        path_of(memory, memory.layout, value)
