# SPDX-License-Identifier: Apache-2.0
"""DWARF made by hand, which says of Ruby's structs what a test wants."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from elf_images import Part

from rubyunwind.ruby.layouts.debug_info import _MEMBERS

_SIZE = 0x2000  # of structs of which nobody asks
# Codes of the abbreviations below.
_UNIT, _STRUCT, _MEMBER, _NAMELESS, _TYPEDEF, _PLAIN, _FUNCTION = range(1, 8)
_ABBREVIATIONS = (
    (_UNIT, 0x11, True, ((0x03, 0x0E),)),  # compile_unit: name strp
    (_STRUCT, 0x13, True, ((0x03, 0x0E), (0x0B, 0x06), (0x01, 0x13))),  # name strp, size data4, sibling ref4
    (_MEMBER, 0x0D, False, ((0x03, 0x08), (0x49, 0x13), (0x38, 0x0F))),  # name string, type ref4, place udata
    (_NAMELESS, 0x13, True, ((0x0B, 0x05),)),  # structure_type: size data2
    (_TYPEDEF, 0x16, False, ((0x49, 0x13),)),  # typedef: type ref4
    (_PLAIN, 0x0D, False, ((0x03, 0x08), (0x38, 0x05))),  # member: name string, place data2
    (_FUNCTION, 0x2E, False, ((0x03, 0x0E), (0x40, 0x18))),  # subprogram: name strp, frame_base exprloc
)  # fmt: skip


def debug_parts(offsets: Mapping[str, int], *, version: int = 5, source: str = "vm.c") -> list[Part]:
    """Return the sections that say of Layout's members what `offsets` has."""
    structs: dict[str, dict[str, int]] = {}
    for name, offset in offsets.items():
        owner, path = _MEMBERS[name][0]
        structs.setdefault(owner, {})[path] = offset
    names = bytearray(b"\0")
    head = struct.pack("<HBBI", 5, 1, 8, 0) if version == 5 else struct.pack("<HIB", version, 0, 8)
    info = bytearray(4) + head

    def string(text: str) -> bytes:
        names.extend(text.encode() + b"\0")
        return struct.pack("<I", len(names) - len(text) - 1)

    info += bytes([_UNIT]) + string(f"/build/{source}")
    info += bytes([_FUNCTION]) + string("rb_vm_exec") + b"\1\x9c"
    for owner, members in structs.items():
        inside: dict[str, dict[str, int]] = {}
        for path, offset in members.items():
            first, _, rest = path.partition(".")
            if rest:
                inside.setdefault(first, {})[rest] = offset
        types = {first: _nested(info, rest) for first, rest in inside.items()}
        info += bytes([_STRUCT]) + string(owner) + struct.pack("<I", members.get("", _SIZE))
        sibling = len(info)
        info += bytes(4)
        for path, offset in members.items():
            if path and "." not in path:
                info += bytes([_PLAIN]) + path.encode() + b"\0" + struct.pack("<H", offset)
        _members(info, types)
        info[sibling : sibling + 4] = struct.pack("<I", len(info))
    info += b"\0"
    info[:4] = struct.pack("<I", len(info) - 4)
    table = b"".join(
        bytes([code, tag, children]) + bytes(byte for pair in attributes for byte in pair) + b"\0\0"
        for code, tag, children, attributes in _ABBREVIATIONS
    )
    return [
        Part(".debug_info", bytes(info)),
        Part(".debug_abbrev", table + b"\0"),
        Part(".debug_str", bytes(names)),
    ]


def _nested(info: bytearray, members: Mapping[str, int]) -> int:
    """Add a struct without a name, and a typedef of it; return where that is."""
    inside: dict[str, dict[str, int]] = {}
    for path, offset in members.items():
        first, _, rest = path.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = offset
    types = {first: _nested(info, rest) for first, rest in inside.items()}
    at = len(info)
    info += bytes([_NAMELESS]) + struct.pack("<H", _SIZE)
    for path, offset in members.items():
        if "." not in path:
            info += bytes([_PLAIN]) + path.encode() + b"\0" + struct.pack("<H", offset)
    _members(info, types)
    typedef = len(info)
    info += bytes([_TYPEDEF]) + struct.pack("<I", at)
    return typedef


def _members(info: bytearray, types: Mapping[str, int]) -> None:
    for name, where in types.items():
        info += bytes([_MEMBER]) + name.encode() + b"\0" + struct.pack("<IB", where, 0)
    info += b"\0"
