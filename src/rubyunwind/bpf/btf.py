# SPDX-License-Identifier: Apache-2.0
"""Reads BTF, the type information in eBPF objects: layouts, enums, and the map definitions in `.maps`.

Pure: bytes in, values out, no libbpf. Format: Documentation/bpf/btf.rst and include/uapi/linux/btf.h.
Every inconsistency is a DecodeError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rubyunwind.errors import DecodeError

__all__ = ["Btf", "Layout", "MapDefinition"]

_MAGIC = 0xEB9F
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header, type and string (offset, length)
_TYPE = struct.Struct("<III")  # name, info (vlen 0..15, kind 24..28, kind_flag 31), size or type
_U32 = struct.Struct("<I")
# enum of include/uapi/linux/btf.h
INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT = range(1, 12)
FUNC, FUNC_PROTO, VAR, DATASEC, FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = range(12, 20)
_FIXED = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}  # bytes behind the common head
_EACH = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, DATASEC: 12, ENUM64: 12}  # bytes per vlen entry
_TRANSPARENT = frozenset({TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG})
_POINTER_SIZE = 8  # -target bpf, whatever the machine
_MAX_MEMBERS = 1 << 16  # of all structs together, those of unnamed ones counted wherever they appear
_MAX_DEPTH = 32  # of modifiers, arrays and nested map definitions; the kernel's limit is the same


@dataclass(frozen=True, slots=True)
class Layout:
    """A struct or union: size in bytes, and byte offset of each named member."""

    name: str
    size: int
    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MapDefinition:
    """One variable of `.maps`, numbers as the source gives them (0: not given). Sizes are bytes.

    `inner` is the template of a map of maps; `has_programs` says that `values` holds programs.
    """

    name: str
    type: int = 0
    key_size: int = 0
    value_size: int = 0
    max_entries: int = 0
    flags: int = 0
    pinning: int = 0
    inner: MapDefinition | None = None
    has_programs: bool = False


@dataclass(frozen=True, slots=True)
class _Type:
    kind: int
    name: int
    vlen: int
    flag: bool
    ref: int  # size or type id
    body: int  # offset of what follows the head, in the whole section


@dataclass(slots=True)
class Btf:
    """The content of a `.BTF` section."""

    data: bytes
    _strings: bytes = b""
    _types: list[_Type] = field(default_factory=list)
    _room: int = 0  # members that layouts() may still give

    @classmethod
    def parse(cls, data: bytes) -> Btf:
        """Index the types of a `.BTF` section. Raises DecodeError for anything but little-endian BTF v1."""
        if len(data) < _HEADER.size:
            raise DecodeError(f"BTF of {len(data)} bytes is shorter than its header ({_HEADER.size} bytes)")
        magic, version, _, head, type_at, type_len, string_at, string_len = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise DecodeError(f"BTF begins with {magic:#06x}, expected {_MAGIC:#06x} (little endian)")
        if version != 1:
            raise DecodeError(f"BTF version {version} is unknown, expected 1")
        for what, start, length in (("types", type_at, type_len), ("strings", string_at, string_len)):
            if head + start + length > len(data):
                raise DecodeError(
                    f"BTF {what} end at byte {head + start + length}, the section has {len(data)}"
                )
        strings = data[head + string_at : head + string_at + string_len]
        btf = cls(data, strings, [_Type(0, 0, 0, False, 0, 0)])  # id 0 is void
        at, end = head + type_at, head + type_at + type_len
        while at < end:
            if at + _TYPE.size > end:
                raise DecodeError(f"BTF type {len(btf._types)} is cut short")
            name, info, ref = _TYPE.unpack_from(data, at)
            kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
            if not INT <= kind <= ENUM64:
                raise DecodeError(f"BTF type {len(btf._types)} has unknown kind {kind}")
            at += _TYPE.size
            btf._types.append(_Type(kind, name, vlen, bool(info >> 31), ref, at))
            at += _FIXED.get(kind, 0) + _EACH.get(kind, 0) * vlen
            if at > end:
                raise DecodeError(f"BTF type {len(btf._types) - 1} is cut short")
        return btf

    def layouts(self) -> dict[str, Layout]:
        """Return every named struct and union by name, and typedefs of unnamed ones under their own name.

        Members inside an unnamed struct or union appear under their own names, as C sees them.
        """
        found: dict[str, Layout] = {}
        self._room = _MAX_MEMBERS
        for item in self._types:
            if item.kind in (STRUCT, UNION) and item.name:
                name = self._name(item.name)
                found[name] = Layout(name, item.ref, dict(self._members(item, 0, 0)))
        for item in self._types:
            if item.kind == TYPEDEF:
                target, name = self._resolve(item.ref), self._name(item.name)
                if target.kind in (STRUCT, UNION) and name not in found:
                    found[name] = Layout(name, target.ref, dict(self._members(target, 0, 0)))
        return found

    def enums(self) -> dict[str, dict[str, int]]:
        """Return the constants of every enum by its name; those of unnamed enums are together under ""."""
        found: dict[str, dict[str, int]] = {}
        for item in self._types:
            if item.kind == ENUM:
                shape = struct.Struct("<Ii" if item.flag else "<II")
                values = {self._name(n): v for n, v in self._entries(item, shape)}
            elif item.kind == ENUM64:
                shape = struct.Struct("<Iq" if item.flag else "<IQ")
                values = {self._name(n): v for n, v in self._entries(item, shape)}
            else:
                continue
            found.setdefault(self._name(item.name), {}).update(values)
        return found

    def map_definitions(self) -> list[MapDefinition]:
        """Return what the `.maps` section declares, in its order."""
        for item in self._types:
            if item.kind == DATASEC and self._name(item.name) == ".maps":
                variables = [self._type(ref) for ref, _, _ in self._entries(item, _TYPE)]
                return [self._map(self._name(v.name), v.ref, 0) for v in variables if v.kind == VAR]
        return []

    def size_of(self, type_id: int) -> int:
        """Size in bytes of a value of type `type_id`."""
        count = 1
        for _ in range(_MAX_DEPTH):
            item = self._resolve(type_id)
            if item.kind == PTR:
                return count * _POINTER_SIZE
            if item.kind == ARRAY:
                element, _, length = _TYPE.unpack_from(self.data, item.body)
                count *= length
                type_id = element
            elif item.kind in (INT, STRUCT, UNION, ENUM, ENUM64, FLOAT):
                return count * item.ref
            else:
                raise DecodeError(f"BTF type {type_id} (kind {item.kind}) has no size")
        raise DecodeError(f"BTF type {type_id} is an array nested deeper than {_MAX_DEPTH}")

    # ---- reading ----

    def _name(self, offset: int) -> str:
        end = self._strings.find(b"\0", offset) if offset < len(self._strings) else -1
        if end < 0:
            raise DecodeError(f"BTF name at {offset} lies outside {len(self._strings)} bytes of strings")
        return self._strings[offset:end].decode(errors="surrogateescape")

    def _type(self, type_id: int) -> _Type:
        if type_id >= len(self._types):
            raise DecodeError(f"BTF names type {type_id}, the last one is {len(self._types) - 1}")
        return self._types[type_id]

    def _resolve(self, type_id: int) -> _Type:
        """Follow typedefs and qualifiers."""
        for _ in range(_MAX_DEPTH):
            item = self._type(type_id)
            if item.kind not in _TRANSPARENT:
                return item
            type_id = item.ref
        raise DecodeError(f"BTF type {type_id} is a chain of more than {_MAX_DEPTH} typedefs")

    def _entries(self, item: _Type, shape: struct.Struct) -> Iterator[tuple[int, ...]]:
        return struct.iter_unpack(shape.format, self.data[item.body : item.body + shape.size * item.vlen])

    def _members(self, item: _Type, base: int, depth: int) -> Iterator[tuple[str, int]]:
        if depth > _MAX_DEPTH:
            raise DecodeError("BTF struct contains itself")
        for name, type_id, place in self._entries(item, _TYPE):
            self._room -= 1
            if self._room < 0:  # a few structs that hold each other twice make as many as one likes
                raise DecodeError(f"BTF structs have more than {_MAX_MEMBERS} members")
            # With kind_flag the upper 8 bits are a bit field's width.
            offset = base + (place & 0xFFFFFF if item.flag else place) // 8
            if name:
                yield self._name(name), offset
            else:
                inner = self._resolve(type_id)
                if inner.kind in (STRUCT, UNION):
                    yield from self._members(inner, offset, depth + 1)

    # ---- map definitions: __uint(x, n) is int (*x)[n], __type(x, t) is t *x, __array(x, t) is t *x[] ----

    def _map(self, name: str, type_id: int, depth: int) -> MapDefinition:
        item = self._resolve(type_id)
        if item.kind != STRUCT or depth > 1:
            raise DecodeError(f"map {name} is no struct definition of the .maps kind (BTF kind {item.kind})")
        numbers: dict[str, int] = {}
        inner: MapDefinition | None = None
        has_programs = False
        for label, member, _ in self._entries(item, _TYPE):
            attribute = self._name(label)
            if attribute in ("type", "key_size", "value_size", "max_entries", "map_flags", "pinning"):
                numbers[attribute] = self._number(name, attribute, member)
            elif attribute in ("key", "value"):
                target = self._target(name, attribute, member)
                if self._resolve(target).kind == FWD:
                    # What clang 14 writes for the element type of an inner map template.
                    raise DecodeError(
                        f"map {name}: the type of its {attribute} is only declared; "
                        f"the source must give {attribute}_size"
                    )
                size = self.size_of(target)
                if size > 0xFFFFFFFF:
                    raise DecodeError(f"map {name}: {attribute} would have {size} bytes")
                numbers[attribute + "_size"] = size
            elif attribute == "values":
                array = self._resolve(member)
                if array.kind != ARRAY:
                    raise DecodeError(f"map {name}: values is no array (BTF kind {array.kind})")
                element, _, _ = _TYPE.unpack_from(self.data, array.body)
                target = self._target(name, attribute, element)
                has_programs = self._resolve(target).kind == FUNC_PROTO
                if not has_programs:
                    inner = self._map(f"{name}.inner", target, depth + 1)
        return MapDefinition(
            name,
            numbers.get("type", 0),
            numbers.get("key_size", 0),
            numbers.get("value_size", 0),
            numbers.get("max_entries", 0),
            numbers.get("map_flags", 0),
            numbers.get("pinning", 0),
            inner,
            has_programs,
        )

    def _target(self, name: str, attribute: str, type_id: int) -> int:
        pointer = self._resolve(type_id)
        if pointer.kind != PTR:
            raise DecodeError(f"map {name}: {attribute} is no pointer (BTF kind {pointer.kind})")
        return pointer.ref

    def _number(self, name: str, attribute: str, type_id: int) -> int:
        array = self._resolve(self._target(name, attribute, type_id))
        if array.kind != ARRAY:
            raise DecodeError(f"map {name}: {attribute} is no number (BTF kind {array.kind})")
        return int(_U32.unpack_from(self.data, array.body + 8)[0])
