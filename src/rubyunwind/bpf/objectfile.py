# SPDX-License-Identifier: Apache-2.0
"""Reads the ELF file that clang -target bpf writes: sections, functions, licence.

Only what a `CollectionSpec` shows; relocation is libbpf's work. Pure, with bounds checked: whatever does not
hold together is a DecodeError that says what was found.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rubyunwind.errors import DecodeError

__all__ = ["Function", "ObjectFile", "Section"]

# elf.h: e_ident of a 64-bit little-endian file, e_machine, e_type, section types and flags.
_IDENT = b"\x7fELF\x02\x01\x01"
EM_BPF, ET_REL = 247, 1
SHT_PROGBITS, SHT_SYMTAB, SHT_NOBITS, SHT_REL = 1, 2, 8, 9
SHF_EXECINSTR = 4
STT_FUNC = 2
STB_GLOBAL = 1
# Elf64_Ehdr after e_ident, Elf64_Shdr, Elf64_Sym, Elf64_Rel.
_EHDR = struct.Struct("<HHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_REL = struct.Struct("<QQ")
INSTRUCTION_SIZE = 8  # struct bpf_insn


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its name, sh_type, sh_flags and bytes (none for SHT_NOBITS, whose `size` counts)."""

    name: str
    type: int
    flags: int
    size: int
    link: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Function:
    """A function symbol: the program or subprogram `instructions` of section `section`."""

    name: str
    section: str
    instructions: bytes
    is_global: bool


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """The sections of one object, in file order (index 0 is the null section)."""

    sections: tuple[Section, ...]

    @classmethod
    def parse(cls, data: bytes) -> ObjectFile:
        """Read the section table. Raises DecodeError if `data` is no whole eBPF object."""
        if not data.startswith(_IDENT):
            raise DecodeError(
                f"no eBPF object: it begins with {data[:7].hex(' ') or 'nothing'}, expected "
                f"{_IDENT.hex(' ')} (64-bit little-endian ELF)"
            )
        if len(data) < 16 + _EHDR.size:
            raise DecodeError(
                f"eBPF object cut short: {len(data)} bytes, the ELF header alone has {16 + _EHDR.size}"
            )
        kind, machine, _, _, _, table, _, _, _, _, each, count, names = _EHDR.unpack_from(data, 16)
        if machine != EM_BPF or kind != ET_REL:
            raise DecodeError(
                f"no eBPF object: ELF machine {machine} and type {kind}, expected {EM_BPF} and {ET_REL}"
            )
        if each != _SHDR.size or not count:
            raise DecodeError(
                f"eBPF object with {count} sections in entries of {each} bytes, expected {_SHDR.size}"
            )
        if table + each * count > len(data):
            raise DecodeError(
                f"eBPF object cut short: its section table ends at byte {table + each * count}, "
                f"it has {len(data)}"
            )
        view = memoryview(data)
        heads = [_SHDR.unpack_from(data, table + index * each) for index in range(count)]
        if names >= count:
            raise DecodeError(f"eBPF object: section names are in section {names} of {count}")
        strings = bytes(_contents(view, heads[names], "section names"))
        return cls(
            tuple(
                Section(
                    _string(strings, head[0]),
                    head[1],
                    head[2],
                    head[5],
                    head[6],
                    _contents(view, head, f"section {index}"),
                )
                for index, head in enumerate(heads)
            )
        )

    def find(self, name: str) -> Section | None:
        """Return the first section called `name`."""
        return next((section for section in self.sections if section.name == name), None)

    def license(self) -> str:
        """Return the text of the `license` section, "" if there is none."""
        section = self.find("license")
        return bytes(section.data).split(b"\0")[0].decode(errors="replace") if section else ""

    def functions(self) -> list[Function]:
        """Return the functions of executable sections, in the order of the symbol table."""
        found: list[Function] = []
        for table in self.sections:
            if table.type != SHT_SYMTAB:
                continue
            if table.link >= len(self.sections) or len(table.data) % _SYM.size:
                raise DecodeError(
                    f"eBPF object: symbol table of {len(table.data)} bytes, names in {table.link}"
                )
            strings = bytes(self.sections[table.link].data)
            for name, info, _, index, value, size in _SYM.iter_unpack(table.data):
                if info & 0xF != STT_FUNC or index >= len(self.sections):
                    continue
                section = self.sections[index]
                if not section.flags & SHF_EXECINSTR:
                    continue
                label = _string(strings, name)
                if value + size > len(section.data) or size % INSTRUCTION_SIZE or not size:
                    raise DecodeError(
                        f"eBPF object: function {label} spans bytes {value}..{value + size} of section "
                        f"{section.name}, which has {len(section.data)}"
                    )
                body = bytes(section.data[value : value + size])
                found.append(Function(label, section.name, body, info >> 4 == STB_GLOBAL))
        return found

    def referenced(self) -> frozenset[str]:
        """Return the names of the symbols, maps among them, that instructions refer to."""
        code = {section.name for section in self.sections if section.flags & SHF_EXECINSTR}
        found: set[str] = set()
        for section in self.sections:
            if section.type != SHT_REL or section.name.removeprefix(".rel") not in code:
                continue
            symbols = self.sections[section.link] if section.link < len(self.sections) else None
            if symbols is None or symbols.type != SHT_SYMTAB or symbols.link >= len(self.sections):
                raise DecodeError(f"eBPF object: {section.name} has no symbol table")
            strings = bytes(self.sections[symbols.link].data)
            for at in range(0, len(section.data) - _REL.size + 1, _REL.size):
                index = _REL.unpack_from(section.data, at)[1] >> 32
                if (index + 1) * _SYM.size > len(symbols.data):
                    raise DecodeError(f"eBPF object: {section.name} names symbol {index}, which is not there")
                found.add(_string(strings, _SYM.unpack_from(symbols.data, index * _SYM.size)[0]))
        return frozenset(found)


def _contents(view: memoryview, head: tuple[int, ...], what: str) -> memoryview:
    kind, offset, size = head[1], head[4], head[5]
    if kind in (0, SHT_NOBITS):
        return view[:0]
    if offset + size > len(view):
        raise DecodeError(
            f"eBPF object cut short: {what} ends at byte {offset + size}, the file has {len(view)}"
        )
    return view[offset : offset + size]


def _string(strings: bytes, offset: int) -> str:
    end = strings.find(b"\0", offset) if offset < len(strings) else -1
    if end < 0:
        raise DecodeError(f"eBPF object: name at {offset} lies outside {len(strings)} bytes of names")
    return strings[offset:end].decode(errors="surrogateescape")
