# SPDX-License-Identifier: Apache-2.0
"""Instruction sequences as people see them: path, label, and the label with the class in it.

`label` is what Thread::Backtrace::Location#label gives in the version at hand. Up to 3.3 that is the text
the compiler stored ("block in bar"); from 3.4 on Ruby puts the class before the method ("block in
Foo#bar") and names a rescue, ensure or eval after the method it is in.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.lines import LineTable
from rubyunwind.ruby.strings import BadObject, path_of, read_string, string_length

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["ENSURE", "RESCUE", "IseqBody", "is_same_iseq", "qualify_label", "read_iseq_body"]

# enum iseq_type (rb_iseq_type), vm_core.h: the same numbers in 2.5 to 4.0 (2.5 had one more at the end).
_METHOD = 1
_BLOCK = 2
_PLAIN = 8
RESCUE = 4
ENSURE = 5
_EVAL = 6
_LAST_TYPE = 9

# Labels that are literals in the interpreter's constants, by iseq type (TOP, CLASS, MAIN) and length:
# iseq.c and compile.c. Dumps leave constants out, since the file has them; the file may be gone.
_LITERAL_LABELS = {
    (0, 10): "<compiled>",
    (0, 16): "<top (required)>",
    (3, 15): "singleton class",
    (7, 6): "<main>",
}

_MAX_NESTING = 64


@dataclass(frozen=True, slots=True)
class IseqBody:
    """What a frame needs of one rb_iseq_constant_body. Addresses are of the target."""

    address: int
    kind: int
    iseq_encoded: int
    iseq_size: int
    path: str
    label: str
    lines: LineTable
    parent_iseq: int
    local_iseq: int
    fingerprint: bytes


def _word(data: bytes, offset: int, form: str = "<Q") -> int:
    return int(struct.unpack_from(form, data, offset)[0])


def _fingerprint(layout: Layout, body: bytes) -> bytes:
    start = layout.body_location
    return body[: layout.body_iseq_encoded + 8] + body[start : start + layout.location_label + 8]


def is_same_iseq(memory: Memory, layout: Layout, known: IseqBody) -> bool:
    """Whether the memory of `known` still is that iseq: a few short reads. Raises MemoryReadError.

    Its type, size, code address, path and labels are compared, and the texts of path and label: code that is
    loaded again and again finds all of its memory again, down to the strings.
    """
    data = memory.read(known.address, layout.body_location + layout.location_label + 8)
    if _fingerprint(layout, data) != known.fingerprint:
        return False
    try:
        location = layout.body_location
        label = _label(memory, layout, _word(data, location + layout.location_label), known.kind)
        path = path_of(memory, layout, _word(data, location + layout.location_pathobj))
        return (path, label) == (known.path, known.label)
    except BadObject:
        return False


def read_iseq_body(memory: Memory, layout: Layout, body: int) -> IseqBody:
    """Read the rb_iseq_constant_body at `body`.

    Raises MemoryReadError, or BadObject / BadLineTable when it is no iseq (any more).
    """
    succinct = layout.body_succ_index_table
    last = max(layout.body_insns_info_size, layout.body_local_iseq, succinct or 0)
    data = memory.read(body, last + 8)
    kind = _word(data, layout.body_type, "<I")
    # From 3.2 on other small members share this word's upper bytes in no release, so the whole counts.
    if kind > _LAST_TYPE:
        raise BadObject(f"the memory at {body:#x} is no instruction sequence (type {kind})")
    location = layout.body_location
    return IseqBody(
        address=body,
        kind=kind,
        iseq_encoded=_word(data, layout.body_iseq_encoded),
        iseq_size=_word(data, layout.body_iseq_size, "<I"),
        path=path_of(memory, layout, _word(data, location + layout.location_pathobj)),
        label=_label(memory, layout, _word(data, location + layout.location_label), kind),
        lines=LineTable(
            memory,
            layout,
            entries=_word(data, layout.body_insns_info),
            size=_word(data, layout.body_insns_info_size, "<I"),
            succinct=0 if succinct is None else _word(data, succinct),
        ),
        parent_iseq=_word(data, layout.body_parent_iseq),
        local_iseq=_word(data, layout.body_local_iseq),
        fingerprint=_fingerprint(layout, data),
    )


def _label(memory: Memory, layout: Layout, value: int, kind: int) -> str:
    try:
        return read_string(memory, layout, value, frozen=True)
    except MemoryReadError:
        known = _LITERAL_LABELS.get((kind, string_length(memory, layout, value)))
        if known is None:
            raise
        return known


def _body_of(memory: Memory, layout: Layout, iseq: int) -> IseqBody:
    return read_iseq_body(memory, layout, memory.u64(iseq + layout.iseq_body))


def qualify_label(memory: Memory, layout: Layout, body: IseqBody, prefix: str) -> str:
    """Return the label with the method's class in it: "block in Foo#bar" for the prefix "Foo#".

    Only code that belongs to a method has a class to name; class bodies and the top level keep their label.
    Raises as read_iseq_body does.
    """
    if layout.qualified_labels:
        return _computed_label(memory, layout, body, prefix)
    if not prefix or not body.local_iseq:
        return body.label
    local = _body_of(memory, layout, body.local_iseq)
    if local.kind != _METHOD or not body.label.endswith(local.label):
        return body.label
    return body.label[: len(body.label) - len(local.label)] + prefix + local.label


def _computed_label(memory: Memory, layout: Layout, body: IseqBody, prefix: str) -> str:
    """Return the label that 3.4 makes up of the method's: it counts the blocks in between by itself.

    The compiler's own text may have another number, as for the code of `END`. Code that runs once (`/o`) is
    a block, too, and none that counts.
    """
    for _ in range(_MAX_NESTING):
        if body.kind not in (RESCUE, ENSURE, _EVAL) or not body.parent_iseq:
            break
        body = _body_of(memory, layout, body.parent_iseq)
    local = body
    levels = 0
    if body.kind in (_BLOCK, _PLAIN) and body.parent_iseq and body.local_iseq:
        inner = body
        for _ in range(_MAX_NESTING):
            levels += inner.kind == _BLOCK
            if inner.parent_iseq in (0, body.local_iseq):
                break
            inner = _body_of(memory, layout, inner.parent_iseq)
        local = _body_of(memory, layout, body.local_iseq)
    label = prefix + local.label if local.kind == _METHOD else local.label
    if local is body:
        return label
    return f"block ({levels} levels) in {label}" if levels > 1 else f"block in {label}"


def readable_label(memory: Memory, layout: Layout, body: IseqBody, prefix: str) -> str:
    """Return what qualify_label gives, or the plain label where the method cannot be read."""
    try:
        return qualify_label(memory, layout, body, prefix)
    except RubyUnwindError:
        return body.label
