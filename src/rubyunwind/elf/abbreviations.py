# SPDX-License-Identifier: Apache-2.0
"""How DWARF's entries are laid out: tables of abbreviations, and the forms of attributes (DWARF 5, 7.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Abbreviation", "Attribute", "Shape", "Value", "read_table", "uleb"]

Value = int | bytes

AT_SIBLING = 0x01

_REF_ADDR, _REF4 = 0x10, 0x13
_STRING, _SDATA, _IMPLICIT = 0x08, 0x0D, 0x21
_OFFSETS = {
    0x0E,
    0x17,
    0x1D,
    0x1F,
    0x1F20,
    0x1F21,
}  # strp, sec_offset, strp_sup, line_strp, GNU_ref_alt, _strp_alt
_SIZES = {
    0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16,  # data1, 2, 4, 8, 16
    0x11: 1, 0x12: 2, _REF4: 4, 0x14: 8,  # ref1, 2, 4, 8
    0x1C: 4, 0x20: 8, 0x24: 8,  # ref_sup4, ref_sig8, ref_sup8
    0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4,  # strx1 to 4
    0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4,  # addrx1 to 4
    0x0C: 1, 0x19: 0, _IMPLICIT: 0,  # flag, flag_present, implicit_const
}  # fmt: skip
_LEB = {
    _SDATA,
    0x0F,
    0x15,
    0x1A,
    0x1B,
    0x22,
    0x23,
}  # sdata, udata, ref_udata, strx, addrx, loclistx, rnglistx
_BLOCKS = {
    0x0A: 1,
    0x03: 2,
    0x04: 4,
    0x09: 0,
    0x18: 0,
}  # block1, 2, 4; block, exprloc: their size is a LEB128


class Attribute(NamedTuple):
    """What an entry says, in which form; `constant` is the value of one that is the same in all entries."""

    name: int
    form: int
    constant: int


@dataclass(frozen=True, slots=True)
class Abbreviation:
    """How entries of one kind are laid out.

    `size` is that of their attributes in bytes, -1 if it varies; `sibling` where in them the place of the
    next entry is (four bytes), -1 if there is none or its place varies.
    """

    tag: int
    has_children: bool
    attributes: tuple[Attribute, ...]
    size: int
    sibling: int


class Shape(NamedTuple):
    """The sizes that differ between units, in bytes."""

    version: int
    offset: int
    address: int

    def size(self, form: int) -> int:
        """Return the size of an attribute in that form, -1 if it varies."""
        if form in _OFFSETS:
            return self.offset
        if form == 0x01:  # addr
            return self.address
        if form == _REF_ADDR:
            return self.address if self.version < 3 else self.offset
        return _SIZES.get(form, -1)

    def value(self, data: bytes, at: int, attribute: Attribute) -> tuple[Value, int]:
        """Return the attribute at `at`, a number or the bytes of a block or string, and where it ends."""
        form = attribute.form
        if form == _IMPLICIT:
            return attribute.constant, at
        size = self.size(form)
        if size >= 0:
            return (int.from_bytes(data[at : at + size], "little") if size else 1), at + size
        if form in _LEB:
            number, end = uleb(data, at)
            if form == _SDATA and data[end - 1] & 0x40:
                number -= 1 << 7 * (end - at)
            return number, end
        if form == _STRING:
            end = data.index(b"\0", at)
            return data[at:end], end + 1
        if form not in _BLOCKS:
            raise DecodeError(f"its debug information has an attribute of the unknown form {form:#x}")
        head = _BLOCKS[form]
        length, at = (int.from_bytes(data[at : at + head], "little"), at + head) if head else uleb(data, at)
        return data[at : at + length], at + length


def uleb(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned LEB128 number and where it ends. IndexError when the data ends before."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise DecodeError("its debug information has a number of more than ten bytes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at


def read_table(data: bytes, at: int, shape: Shape, spend: Callable[[], None]) -> dict[int, Abbreviation]:
    """Return the table that begins at `at`, by code; `spend` is called for each entry of it."""
    table: dict[int, Abbreviation] = {}
    while True:
        code, at = uleb(data, at)
        if not code:
            return table
        spend()
        tag, at = uleb(data, at)
        has_children = data[at] == 1
        at += 1
        attributes = []
        size, sibling = 0, -1
        while True:
            name, at = uleb(data, at)
            form, at = uleb(data, at)
            constant = 0
            if form == _IMPLICIT:
                start = at
                constant, at = uleb(data, at)
                if data[at - 1] & 0x40:
                    constant -= 1 << 7 * (at - start)
            elif not name and not form:
                break
            if name == AT_SIBLING and form == _REF4:
                sibling = size
            attributes.append(Attribute(name, form, constant))
            one = shape.size(form)
            size = size + one if size >= 0 <= one else -1
        table[code] = Abbreviation(tag, has_children, tuple(attributes), size, sibling)
