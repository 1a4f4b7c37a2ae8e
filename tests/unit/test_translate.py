# SPDX-License-Identifier: Apache-2.0
"""From byte code to path, line and label."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from ruby_memory import BASE, RubyMemory

from rubyunwind.errors import AttachError
from rubyunwind.ruby.detect import RubyRuntime
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.translate import CodeLine, line_of


def process(version: str = "2.5.0") -> tuple[RubyMemory, RubyRuntime]:
    layout = find_layout(version).layout
    return RubyMemory(layout), cast("RubyRuntime", SimpleNamespace(layout=layout))


def two_lines(memory: RubyMemory) -> int:
    """Return a body of ten words in 2.5's layout: line 3 from its start, line 4 from word 5 on."""
    layout = memory.layout
    entries = bytearray(2 * layout.insn_entry_size)
    for index, (position, line) in enumerate(((0, 3), (5, 4))):
        start = index * layout.insn_entry_size
        entries[start : start + 4] = position.to_bytes(4, "little")
        entries[start + layout.insn_entry_line : start + layout.insn_entry_line + 4] = line.to_bytes(
            4, "little"
        )
    return memory.iseq("run", "/app.rb", lines=(memory.place(bytes(entries)), 2, 0))[1]


@pytest.mark.parametrize(("offset", "line"), [(0, 3), (4, 3), (5, 4), (9, 4)])
def test_an_offset_is_that_of_an_instruction(offset: int, line: int) -> None:
    memory, runtime = process()
    assert line_of(memory, runtime, two_lines(memory), offset=offset) == CodeLine("/app.rb", line, "run")


@pytest.mark.parametrize(("words", "line"), [(0, 3), (5, 3), (6, 4), (10, 4)])
def test_a_pc_is_behind_the_instruction_that_runs(words: int, line: int) -> None:
    memory, runtime = process()
    body = two_lines(memory)
    code = memory.u64(body + memory.layout.body_iseq_encoded)
    assert line_of(memory, runtime, body, pc=code + 8 * words).line == line


@pytest.mark.parametrize("offset", [-1, 10, 1 << 40])
def test_an_offset_outside_of_the_code_is_refused(offset: int) -> None:
    memory, runtime = process()
    text = f"'run' of '/app.rb': offset {offset} is outside of its 10 words"
    with pytest.raises(AttachError, match=re.escape(text)):
        line_of(memory, runtime, two_lines(memory), offset=offset)


@pytest.mark.parametrize("pc", [0, BASE, (1 << 64) - 1])
def test_a_pc_outside_of_the_code_is_refused(pc: int) -> None:
    memory, runtime = process()
    with pytest.raises(AttachError, match="is outside of the 10 instruction words"):
        line_of(memory, runtime, two_lines(memory), pc=pc)


def test_what_is_no_code_is_refused() -> None:
    memory, runtime = process()
    text = memory.string("only a string")
    for address in (0, text, BASE - 8, (1 << 64) - 8):
        with pytest.raises(AttachError, match=f"no instruction sequence's body at {address:#x}"):
            line_of(memory, runtime, address, offset=0)


def test_one_of_pc_and_offset_is_needed() -> None:
    memory, runtime = process()
    for arguments in ({}, {"pc": 1, "offset": 1}):
        with pytest.raises(ValueError, match="one of them"):
            line_of(memory, runtime, BASE, **arguments)
