# SPDX-License-Identifier: Apache-2.0
"""How a C struct becomes a Python value: `Struct`, the base of every mirror, and its members.

Offsets and sizes come from the cffi types of the extension, which come from support/ebpf/types.h. Nothing
about a layout is written twice. All targets are little endian; so is every number, unless a mirror says so.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from rubyunwind._native import ffi
from rubyunwind.abi import enums
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Stand in for typing.dataclass_transform, which Python 3.10 has not."""
        return lambda decorated: decorated


__all__ = ["ZERO", "Member", "Struct", "snake_case"]

ZERO: Any = None  # the default that a mirror declares for a field that is a struct
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def snake_case(name: str) -> str:
    """Give the Python name of a C field: fileID is file_id, perlUnwindState is perl_unwind_state."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


class Member:
    """One field of a struct: a read-only descriptor that decodes from the owner's bytes.

    `offset` and `size` are in bytes. `read(raw)` takes the whole struct; `write(raw, value)` raises
    TypeError, ValueError or OverflowError for a value that does not fit.
    """

    __slots__ = ("gaps", "name", "offset", "owner", "read", "size", "store", "type_name")

    def __init__(self, owner: str, name: str, offset: int, size: int, type_name: str) -> None:
        self.owner = owner
        self.name = name
        self.offset = offset
        self.size = size
        self.type_name = type_name
        self.read: Callable[[Any], Any]
        self.store: Callable[[Any], bytes]
        self.gaps: tuple[tuple[int, int], ...] = ()

    def __get__(self, instance: Struct | None, owner: type) -> Any:
        return self if instance is None else self.read(instance._raw)

    def __set__(self, instance: Struct, value: object) -> None:
        raise AttributeError(f"{self.owner}.{self.name} is read-only; use replace({self.name}=...)")

    def __repr__(self) -> str:
        return f"<{self.owner}.{self.name}: {self.type_name} at {self.offset}, {self.size} bytes>"

    def overlaps(self, other: Member) -> bool:
        """Whether the two share bytes, as members of a union do."""
        return self.offset < other.offset + other.size and other.offset < self.offset + self.size

    def write(self, raw: bytearray, value: Any) -> None:
        """Put `value` into `raw`, the bytes of a whole struct; what it leaves free becomes zero."""
        data = self.store(value)
        if len(data) > self.size:
            raise ValueError(f"{self.owner}.{self.name} has {self.size} bytes, {len(data)} do not fit")
        raw[self.offset : self.offset + self.size] = data.ljust(self.size, b"\0")

    def as_number(self, code: str, values: Callable[[int], Any] | None) -> None:
        """Decode one number with the struct format `code`; `values` turns it into an enum member."""
        packer, offset = struct.Struct(code), self.offset
        low, high = (
            (-(1 << 8 * self.size - 1), 1 << 8 * self.size - 1) if code.islower() else (0, 1 << 8 * self.size)
        )

        def read(raw: Any) -> Any:
            (number,) = packer.unpack_from(raw, offset)
            return number if values is None else values(number)

        def store(value: Any) -> bytes:
            if not hasattr(value, "__index__"):
                raise TypeError(f"{self.owner}.{self.name} is a number ({self.type_name}), not {value!r}")
            if not low <= value < high:
                raise OverflowError(f"{self.owner}.{self.name}: {value} does not fit {low}..{high - 1}")
            return packer.pack(value)

        self.read, self.store = read, store

    def as_bytes(self) -> None:
        """Decode as raw bytes."""
        start, end = self.offset, self.offset + self.size
        self.read = lambda raw: bytes(raw[start:end])
        self.store = self._to_bytes

    def as_text(self) -> None:
        """Decode as a string that ends at the first NUL or fills the array."""
        start, end = self.offset, self.offset + self.size

        def store(value: Any) -> bytes:
            data = (
                value.encode("utf-8", "surrogateescape") if isinstance(value, str) else self._to_bytes(value)
            )
            if b"\0" in data.rstrip(b"\0"):
                raise ValueError(f"{self.owner}.{self.name}: {value!r} has a NUL inside")
            return data

        self.read = lambda raw: bytes(raw[start:end]).partition(b"\0")[0].decode("utf-8", "surrogateescape")
        self.store = store

    def as_array(self, element: Member, count: int) -> None:
        """Decode as a tuple of what `element` (a member at offset 0) decodes."""
        start, step = self.offset, element.size

        def store(value: Any) -> bytes:
            items = list(value)
            if len(items) > count:
                raise ValueError(f"{self.owner}.{self.name} has {count} elements, {len(items)} were given")
            return b"".join(element.store(item).ljust(step, b"\0") for item in items)

        self.read = lambda raw: tuple(
            element.read(raw[start + i * step : start + (i + 1) * step]) for i in range(count)
        )
        self.store = store
        self.gaps = tuple((i * step + gap, length) for i in range(count) for gap, length in element.gaps)

    def as_struct(self, mirror: type[Struct]) -> None:
        """Decode as another mirror."""
        start, end = self.offset, self.offset + self.size

        def store(value: Any) -> bytes:
            if not isinstance(value, mirror):
                raise TypeError(f"{self.owner}.{self.name} is a {mirror.__name__}, not {value!r}")
            return bytes(value)

        self.read = lambda raw: mirror.from_bytes(raw[start:end])
        self.store = store
        self.gaps = mirror._gaps

    def _to_bytes(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise TypeError(f"{self.owner}.{self.name} takes bytes ({self.type_name}), not {value!r}")


_mirrors: dict[str, type[Struct]] = {}  # C name -> mirror


def _members(
    cls: type[Struct],
    ctype: Any,
    big_endian: Iterable[str],
    values: Mapping[str, Callable[[int], Any]],
    base: int = 0,
) -> Iterable[Member]:
    """Yield the members of the cffi struct or union `ctype` in order; `base` is added to each offset."""
    for c_name, field in ctype.fields:
        kind = field.type.kind
        if kind in ("struct", "union") and "$" in field.type.cname:  # has no name in C: its fields are ours
            yield from _members(cls, field.type, big_endian, values, base + field.offset)
            continue
        name = snake_case(c_name)
        member = Member(cls.__name__, name, base + field.offset, ffi.sizeof(field.type), field.type.cname)
        _decode(member, field.type, ">" if name in big_endian else "<", values.get(name))
        yield member


def _decode(member: Member, ctype: Any, order: str, values: Callable[[int], Any] | None) -> None:
    """Choose how `member` of the cffi type `ctype` is decoded."""
    name = ctype.cname.removeprefix("struct ").removeprefix("union ").removeprefix("enum ")
    if ctype.kind in ("struct", "union"):
        mirror = _mirrors.get(name)
        if mirror is None:
            member.as_bytes()  # scratch space: nobody outside the BPF programs reads it
        else:
            member.as_struct(mirror)
    elif ctype.kind == "array" and ctype.item.cname == "char":
        member.as_text()
    elif ctype.kind == "array" and ctype.item.cname == "uint8_t":
        member.as_bytes()
    elif ctype.kind == "array":
        element = Member(member.owner, member.name, 0, ffi.sizeof(ctype.item), ctype.item.cname)
        _decode(element, ctype.item, order, values)
        member.as_array(element, ctype.length)
    elif ctype.cname == "_Bool":
        member.as_number("B", bool)
    else:  # an integer, an enum, or a pointer of the process or kernel that wrote it
        code = _CODES[member.size]
        if ctype.cname.startswith("int"):
            code = code.lower()
        member.as_number(order + code, values or (getattr(enums, name) if ctype.kind == "enum" else None))


def _gaps(members: list[Member], size: int) -> tuple[tuple[int, int], ...]:
    """Find the padding: (offset, length) of bytes that belong to no member, nested structs included."""
    gaps, end = [], 0
    for start, stop in sorted([*((m.offset, m.offset + m.size) for m in members), (size, size)]):
        if start > end:
            gaps.append((end, start - end))
        end = max(end, stop)
    for member in members:
        if not any(member is not other and member.overlaps(other) for other in members):
            gaps += [(member.offset + offset, length) for offset, length in member.gaps]
    return tuple(sorted(gaps))


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Struct:
    """Base of the mirrors: an immutable value over exactly the bytes that C has.

    A subclass is named after its C struct and declares its fields with types, for readers and type checkers;
    every default stands for zero, as in C. Fields are given by keyword and read as attributes. Equality and
    hash do not look at padding. `size` is sizeof; `members` maps field names to their Member (offset, size).
    """

    __slots__ = ("_raw",)

    size: ClassVar[int] = 0
    members: ClassVar[Mapping[str, Member]] = MappingProxyType({})
    _gaps: ClassVar[tuple[tuple[int, int], ...]] = ()
    _has_union: ClassVar[bool] = False
    _raw: bytes | memoryview

    def __init_subclass__(
        cls, *, big_endian: Iterable[str] = (), values: Mapping[str, Callable[[int], Any]] | None = None
    ) -> None:
        """Read the layout. `big_endian` names such fields; `values` types what are plain numbers in C."""
        super().__init_subclass__()
        ctype = ffi.typeof(cls.__name__)
        members = list(_members(cls, ctype, big_endian, values or {}))
        cls.size = ffi.sizeof(ctype)
        cls.members = MappingProxyType({member.name: member for member in members})
        cls._gaps = _gaps(members, cls.size)
        cls._has_union = any(one.overlaps(other) for one, other in combinations(members, 2))
        for member in members:
            if not isinstance(
                vars(cls).get(member.name), property
            ):  # a mirror may decode a field its own way
                setattr(cls, member.name, member)
        _mirrors[cls.__name__] = cls

    def __init__(self, **fields: Any) -> None:
        raw = bytearray(self.size)
        self._write(raw, fields)
        self._raw = bytes(raw)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """Decode one struct, padding included; DecodeError unless `data` has exactly `size` bytes."""
        raw = bytes(data) if isinstance(data, (bytes, bytearray)) else bytes(memoryview(data))
        if len(raw) != cls.size:
            raise DecodeError(f"a {cls.__name__} is {cls.size} bytes, these are {len(raw)}; pass exactly one")
        self = cls.__new__(cls)
        self._raw = raw
        return self

    def replace(self, **fields: Any) -> Self:
        """Return a copy with these fields changed."""
        raw = bytearray(self._raw)
        self._write(raw, fields)
        return type(self).from_bytes(raw)

    @classmethod
    def _write(cls, raw: bytearray, fields: Mapping[str, Any]) -> None:
        """Write `fields` into `raw`; refuses unknown names and members of a union given together."""
        taken: list[Member] = []
        for name, value in fields.items():
            member = cls.members.get(name)
            if member is None:
                raise TypeError(f"{cls.__name__} has no field {name!r}; it has {', '.join(cls.members)}")
            for other in taken:
                if member.overlaps(other):
                    raise TypeError(
                        f"{cls.__name__}: {other.name} and {name} share their bytes, give one of them"
                    )
            if cls._has_union:
                taken.append(member)
            member.write(raw, value)

    def _canonical(self) -> bytes:
        """Return the bytes with zero for padding: what equality and hash compare."""
        if not self._gaps:
            return bytes(self._raw)
        raw = bytearray(self._raw)
        for offset, length in self._gaps:
            raw[offset : offset + length] = bytes(length)
        return bytes(raw)

    def __bytes__(self) -> bytes:
        return bytes(self._raw)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._canonical() == other._canonical()

    def __hash__(self) -> int:
        return hash((type(self), self._canonical()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_bytes, (bytes(self),))

    def __repr__(self) -> str:
        shown, end = [], -1
        for name, member in self.members.items():
            if member.offset >= end or member.size == 0:  # of a union, the first member
                shown.append(f"{name}={getattr(self, name)!r}")
                end = member.offset + member.size
        return f"{type(self).__name__}({', '.join(shown)})"
