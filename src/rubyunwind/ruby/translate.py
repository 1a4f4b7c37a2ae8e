# SPDX-License-Identifier: Apache-2.0
"""From an address in Ruby's byte code to the path, line and label that Ruby prints for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.errors import AttachError, RubyUnwindError
from rubyunwind.ruby.labels import read_iseq_body, readable_label
from rubyunwind.ruby.lines import BadLineTable, position_of

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.detect import RubyRuntime

__all__ = ["CodeLine", "line_of"]


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A place in Ruby code. `line` is 0 where the code has no lines; `label` names no class."""

    path: str
    line: int
    label: str


def line_of(
    memory: Memory, runtime: RubyRuntime, iseq_body: int, *, pc: int | None = None, offset: int | None = None
) -> CodeLine:
    """Return where a byte-code address is in the source. Give `pc` or `offset`.

    `iseq_body` is the address of a rb_iseq_constant_body: `file_id` of a Ruby frame in a trace. `pc` is an
    address as control frames and traces have it: behind the instruction that runs. `offset` counts VALUEs
    from the start of the code to an instruction, as RubyVM::InstructionSequence#disasm prints it.
    Raises AttachError when there is no such code (any more), ValueError when the arguments are not one of
    the two.
    """
    if (pc is None) == (offset is None):
        raise ValueError("give a pc or an offset, one of them")
    try:
        body = read_iseq_body(memory, runtime.layout, iseq_body)
    except RubyUnwindError as error:
        raise AttachError(
            f"there is no instruction sequence's body at {iseq_body:#x} ({error}); the code may have been "
            "freed, or the address is that of the iseq itself"
        ) from None
    try:
        if pc is not None:
            offset = position_of(pc, body.iseq_encoded, body.iseq_size)
        assert offset is not None
        if not 0 <= offset < max(body.iseq_size, 1):
            raise BadLineTable(f"offset {offset} is outside of its {body.iseq_size} words")
        line = body.lines.line(offset)
    except RubyUnwindError as error:
        raise AttachError(f"{body.label!a} of {body.path!a}: {error}") from None
    return CodeLine(body.path, line, readable_label(memory, runtime.layout, body, ""))
