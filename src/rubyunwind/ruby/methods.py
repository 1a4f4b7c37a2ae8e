# SPDX-License-Identifier: Apache-2.0
"""Method entries: what a control frame's environment points to."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.ruby.strings import T_IMEMO, BadObject, object_type

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["MethodEntry", "read_method_entry", "resolve_method_entry"]

# internal/imemo.h: IMEMO types sit above FL_USHIFT (12) in the flags.
_IMEMO_SHIFT = 12
_IMEMO_MASK = 0xF
_IMEMO_SVAR = 2
_IMEMO_MENT = 6
# struct vm_svar (internal/vm.h or imemo.h): flags, cref_or_me.
_SVAR_CREF_OR_ME = 8
_HEADER = struct.Struct("<2Q")
_WORD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method entry (imemo_ment): the class that owns it and the id it was defined with."""

    address: int
    owner: int
    definition: int
    original_id: int


def resolve_method_entry(memory: Memory, address: int) -> int:
    """Return the method entry behind ep[-2] of a frame, or 0.

    The slot holds a method entry, a cref (class bodies, the top level), an svar that stands in front of
    either ($~ or $_ is in use there), or false. Raises MemoryReadError.
    """
    for _ in range(2):
        if address & 7 or address < 4096:
            return 0
        flags, second = _HEADER.unpack(memory.read(address, _HEADER.size))
        if object_type(flags) != T_IMEMO:
            return 0
        kind = flags >> _IMEMO_SHIFT & _IMEMO_MASK
        if kind == _IMEMO_MENT:
            return address
        if kind != _IMEMO_SVAR:
            return 0
        address = int(second)
    return 0


def read_method_entry(memory: Memory, layout: Layout, address: int) -> MethodEntry:
    """Read the method entry that ep[-2] leads to.

    Raises BadObject when it leads to none, MemoryReadError when it cannot be read.
    """
    found = resolve_method_entry(memory, address)
    if not found:
        raise BadObject(f"no method entry at {address:#x}")
    first, second = sorted((layout.ment_def, layout.ment_owner))
    data = memory.read(found + first, second + 8 - first)
    (definition,) = _WORD.unpack_from(data, layout.ment_def - first)
    (owner,) = _WORD.unpack_from(data, layout.ment_owner - first)
    return MethodEntry(
        address=found,
        owner=owner,
        definition=definition,
        original_id=memory.u64(definition + layout.def_original_id),
    )
