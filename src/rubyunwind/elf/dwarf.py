# SPDX-License-Identifier: Apache-2.0
"""The structs of C that a file's DWARF (versions 2 to 5) describes: how large they are, where members lie.

Nothing else of it is looked at; what does not matter is stepped over. The file is the profiled process's to
make up: what is read of it is bounded, and whatever does not fit raises DecodeError.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rubyunwind.elf.abbreviations import Abbreviation, Shape, Value, read_table, uleb
from rubyunwind.elf.file import SHF_COMPRESSED, SHT_NOBITS
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rubyunwind.elf.file import ElfFile

__all__ = ["MOST_STEPS", "DebugInfo", "Struct", "Unit"]

MOST_STEPS = 400_000
"""Entries and abbreviations that are looked at in one file: half a second. A libruby takes some 30,000."""

# DWARF 5, 7.5: tags, attributes, forms, kinds of units.
_MEMBER, _STRUCT, _TYPEDEF, _UNION, _CONST, _VOLATILE, _PARTIAL = 0x0D, 0x13, 0x16, 0x17, 0x26, 0x35, 0x3C
_NAME, _BYTE_SIZE, _LOCATION, _DECLARATION, _TYPE = 0x03, 0x0B, 0x38, 0x3C, 0x49
_BIT_OFFSET, _STR_OFFSETS_BASE = 0x6B, 0x72
_KEPT = {_NAME, _BYTE_SIZE, _LOCATION, _DECLARATION, _TYPE, _BIT_OFFSET, _STR_OFFSETS_BASE}
_STRP, _LINE_STRP = 0x0E, 0x1F
_STRX = {0x1A, 0x25, 0x26, 0x27, 0x28}
_REF_ADDR = 0x10
_REFERENCES = {_REF_ADDR, 0x11, 0x12, 0x13, 0x14, 0x15}  # ref1, ref2, ref4, ref8, ref_udata
_PLUS_CONSTANT = 0x23  # DW_OP_plus_uconst, as DWARF 2 has the place of a member
_UNIT_HEADS = {2: 8, 4: 8, 5: 8, 6: 8}  # what type units, skeletons and split ones have behind the head
_LONGEST_NAME = 4096
_DEEPEST = 16  # structs without a name in each other, and typedefs of typedefs


@dataclass(slots=True, eq=False)
class Unit:
    """A unit of .debug_info: where it lies there, where its first entry does in it, and its abbreviations."""

    offset: int
    size: int
    first: int
    shape: Shape
    abbreviations: int
    data: bytes = b""
    table: dict[int, Abbreviation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Struct:
    """An entry, of a struct most of the time: its place in the unit, its attributes with their forms."""

    unit: Unit
    tag: int
    has_children: bool
    behind: int
    attributes: dict[int, tuple[int, Value]]

    def number(self, attribute: int) -> int | None:
        """Return the value of an attribute that is a number."""
        value = self.attributes.get(attribute, (0, b""))[1]
        return value if isinstance(value, int) else None


class _Section:
    """A section's bytes, read as they are wanted; as a whole where it is compressed."""

    def __init__(self, elf: ElfFile, name: str) -> None:
        self._elf, self._name = elf, name
        self._offset = self.size = 0
        self._whole: bytes | None = None
        section = elf.section(name)
        if section is None or section.type == SHT_NOBITS:
            return
        self._offset, self.size = section.offset, section.size
        if section.flags & SHF_COMPRESSED:
            self._whole = elf.data(section)
            self.size = len(self._whole)

    def read(self, at: int, length: int) -> bytes:
        """Return as many bytes; DecodeError when the section has not as many."""
        if not 0 <= at <= at + length <= self.size:
            raise DecodeError(
                f"{length} bytes at {at:#x} of {self._name} reach past its end ({self.size} bytes)"
            )
        if self._whole is not None:
            return self._whole[at : at + length]
        return self._elf.read(self._offset + at, length)

    def text(self, at: int) -> bytes:
        """Return the string at `at`; a longer one than names are is cut."""
        for length in (128, _LONGEST_NAME):
            piece, end, _ = self.read(at, max(0, min(length, self.size - at))).partition(b"\0")
            if end:
                break
        return piece


class DebugInfo:
    """The debug information of a file, which has to stay open. All methods raise DecodeError."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._info = _Section(elf, ".debug_info")
        self._abbreviations = b""
        self._sections: dict[str, _Section] = {}
        self._steps = 0
        self.units = list(self._units())
        self._starts = [unit.offset for unit in self.units]

    def source(self, unit: Unit) -> tuple[bytes, bool]:
        """Return the name of a unit's source file, b"" if it has none, and whether other units share it."""
        try:
            root = self._root(unit)
            return self._name(root), root.tag == _PARTIAL
        except (IndexError, ValueError) as error:
            raise _damaged(error) from None
        finally:
            unit.data, unit.table = b"", {}  # most are not looked into

    def structs(self, unit: Unit, names: Collection[bytes]) -> dict[bytes, Struct]:
        """Return the structs of a unit that are defined there under one of the names."""
        found: dict[bytes, Struct] = {}
        try:
            for entry in self._children(self._root(unit), {_STRUCT}):
                if _DECLARATION in entry.attributes or _NAME not in entry.attributes:
                    continue
                name = self._name(entry)
                if name in names:
                    found.setdefault(name, entry)
        except (IndexError, ValueError) as error:
            raise _damaged(error) from None
        return found

    def size(self, struct: Struct) -> int | None:
        """Return the size of a struct in bytes, None if that is not told."""
        return struct.number(_BYTE_SIZE)

    def offset(self, struct: Struct, path: str) -> int | None:
        """Return where a member lies, in bytes; a dot leads into a struct inside. None: there is none."""
        try:
            return self._offset(struct, path, _DEEPEST)
        except (IndexError, ValueError) as error:
            raise _damaged(error) from None

    def _offset(self, struct: Struct, path: str, deepest: int) -> int | None:
        if not deepest:
            raise DecodeError(f"more than {_DEEPEST} structs lie in each other")
        first, _, rest = path.partition(".")
        for member in self._children(struct, {_MEMBER}):
            name = self._name(member)
            if name and name != first.encode():
                continue
            # Members of a struct without a name count as those of the struct around it.
            inside = path if not name else rest
            if not inside:
                return self._place(member)
            inner = self._struct_of(member)
            found = self._offset(inner, inside, deepest - 1) if inner is not None else None
            if found is not None:
                return self._place(member) + found
            if name:
                return None
        return None

    def _place(self, member: Struct) -> int:
        """Return where a member begins; all of a union do at 0, and say nothing."""
        place = member.attributes.get(_LOCATION, (0, 0))[1]
        if isinstance(place, int):
            return place or (member.number(_BIT_OFFSET) or 0) // 8
        if place[:1] != bytes([_PLUS_CONSTANT]):
            raise DecodeError(f"the place of a member is an expression that nobody reads: {place[:16].hex()}")
        return uleb(place, 1)[0]

    def _struct_of(self, member: Struct) -> Struct | None:
        """Return the struct or union that a member is, behind typedefs and qualifiers."""
        entry = member
        for _ in range(_DEEPEST):
            form, value = entry.attributes.get(_TYPE, (0, b""))
            if form not in _REFERENCES or not isinstance(value, int):
                return None
            entry = self._at(value if form == _REF_ADDR else entry.unit.offset + value)
            if entry.tag in (_STRUCT, _UNION):
                return entry
            if entry.tag not in (_TYPEDEF, _CONST, _VOLATILE):
                return None
        raise DecodeError(f"more than {_DEEPEST} types stand for each other")

    def _at(self, offset: int) -> Struct:
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            raise DecodeError(f"no unit is at {offset:#x} of .debug_info")
        unit = self.units[index]
        return self._entry(unit, offset - unit.offset)

    def _units(self) -> Iterator[Unit]:
        at = 0
        while at < self._info.size:
            self._spend()
            head = self._info.read(at, min(40, self._info.size - at))
            try:
                length, start, wide = struct.unpack_from("<I", head)[0], 4, 4
                if length == 0xFFFFFFFF:
                    length, start, wide = struct.unpack_from("<Q", head, 4)[0], 12, 8
                version = struct.unpack_from("<H", head, start)[0]
                kind, address = head[start + 2], head[start + 3]
                where = start + 4
                if version < 5:
                    kind, address, where = 0, head[start + 2 + wide], start + 2
                abbreviations = int.from_bytes(head[where : where + wide], "little")
            except (struct.error, IndexError) as error:
                raise _damaged(error) from None
            first = where + wide + (version < 5) + _UNIT_HEADS.get(kind, 0) + (wide if kind in (2, 6) else 0)
            size = start + length
            if not first <= size <= self._info.size - at:
                raise DecodeError(f"the unit at {at:#x} of .debug_info has {size} bytes, which are not there")
            if 2 <= version <= 5:
                yield Unit(at, size, first, Shape(version, wide, address), abbreviations)
            at += size

    def _load(self, unit: Unit) -> None:
        if not unit.data:
            unit.data = self._info.read(unit.offset, unit.size)
            if not self._abbreviations:
                section = _Section(self._elf, ".debug_abbrev")
                self._abbreviations = section.read(0, section.size)
            unit.table = read_table(self._abbreviations, unit.abbreviations, unit.shape, self._spend)

    def _root(self, unit: Unit) -> Struct:
        return self._entry(unit, unit.first)

    def _entry(self, unit: Unit, at: int) -> Struct:
        self._load(unit)
        code, at = uleb(unit.data, at)
        return self._read(unit, at, self._abbreviation(unit, code))

    def _abbreviation(self, unit: Unit, code: int) -> Abbreviation:
        found = unit.table.get(code)
        if found is None:
            raise DecodeError(f"the unit at {unit.offset:#x} of .debug_info has no abbreviation {code}")
        return found

    def _read(self, unit: Unit, at: int, abbreviation: Abbreviation) -> Struct:
        self._spend()
        attributes = {}
        for attribute in abbreviation.attributes:
            value, at = unit.shape.value(unit.data, at, attribute)
            if attribute.name in _KEPT:
                attributes[attribute.name] = attribute.form, value
        return Struct(unit, abbreviation.tag, abbreviation.has_children, at, attributes)

    def _children(self, parent: Struct, tags: Collection[int]) -> Iterator[Struct]:
        """Yield the entries with one of the tags that lie right in `parent`."""
        if not parent.has_children:
            return
        unit, data = parent.unit, parent.unit.data
        at, depth = parent.behind, 0
        while True:
            self._spend()
            code, at = uleb(data, at)
            if not code:
                depth -= 1
                if depth < 0:
                    return
                continue
            abbreviation = self._abbreviation(unit, code)
            start = at
            if not depth and abbreviation.tag in tags:
                entry = self._read(unit, at, abbreviation)
                at = entry.behind
                yield entry
            elif abbreviation.size >= 0:
                at += abbreviation.size
            else:
                for attribute in abbreviation.attributes:
                    _, at = unit.shape.value(data, at, attribute)
            if not abbreviation.has_children:
                continue
            if abbreviation.sibling < 0:
                depth += 1
                continue
            behind = at
            place = start + abbreviation.sibling
            at = int.from_bytes(data[place : place + 4], "little")
            if at <= behind:
                raise DecodeError(
                    f"an entry at {unit.offset + start:#x} of .debug_info is followed by an earlier one"
                )

    def _name(self, entry: Struct) -> bytes:
        form, value = entry.attributes.get(_NAME, (0, b""))
        if isinstance(value, bytes):
            return value
        if form in _STRX:
            shape = entry.unit.shape
            base = self._root(entry.unit).number(_STR_OFFSETS_BASE)
            base = 2 * shape.offset if base is None else base
            raw = self._section(".debug_str_offsets").read(base + value * shape.offset, shape.offset)
            form, value = _STRP, int.from_bytes(raw, "little")
        if form not in (_STRP, _LINE_STRP):
            return b""  # in a file that is not at hand
        return self._section(".debug_str" if form == _STRP else ".debug_line_str").text(value)

    def _section(self, name: str) -> _Section:
        found = self._sections.get(name)
        if found is None:
            found = self._sections[name] = _Section(self._elf, name)
        return found

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise DecodeError(
                f"its debug information has more than {MOST_STEPS} entries before Ruby's structs"
            )


def _damaged(error: Exception) -> DecodeError:
    return DecodeError(f"its debug information is damaged: {error}")
