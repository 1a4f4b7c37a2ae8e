# SPDX-License-Identifier: Apache-2.0
"""What is needed of the ELF file that holds Ruby: some symbols, TLS segment and relocations, data."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping as Dictionary

    from rubyunwind.elf.file import ElfFile
    from rubyunwind.process.mappings import Mapping

__all__ = ["ImageSymbol", "Relocation", "RubyImage", "TLSSegment", "may_define_ruby", "read_image"]

VERSION_SYMBOL = "ruby_version"

_WANTED = (
    VERSION_SYMBOL,
    "ruby_current_ec",
    "ruby_current_vm_ptr",
    "ruby_single_main_ractor",
    "ruby_current_execution_context_ptr",
    "rb_vm_exec",
    "ruby_exec_node",
    "ruby_global_symbols",
    "global_symbols",
)
# Parts of the interpreter that GCC moved out of line (cold paths) have symbols of their own.
_COLD = ("rb_vm_exec.cold", "ruby_exec_node.cold")

# elf.h
_ET_EXEC = 2
_EM_AARCH64 = 183
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_TLS = 1, 2, 3, 7
_PF_W = 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_DT_FLAGS_1 = 0x6FFFFFFB
_DF_1_PIE = 0x08000000
_RELA = struct.Struct("<QQq")
_SYMBOL_SIZE = 24
# DTPMOD64, TPOFF64 and TLSDESC of x86_64 and aarch64.
_TLS_RELOCATIONS = {62: (16, 18, 36), _EM_AARCH64: (1028, 1030, 1031)}

# Elf64_Ehdr.e_phoff; Elf64_Phdr and p_align in it.
_E_PHOFF = 32
_PHDR_SIZE, _P_ALIGN = 56, 48

_MAX_TABLE = 64 << 20


@dataclass(frozen=True, slots=True)
class ImageSymbol:
    """A defined symbol: ELF virtual address (offset in the TLS block for thread-local ones) and size."""

    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """A thread-local relocation: ELF address of its slot, r_type, symbol name ("" if none), addend."""

    offset: int
    kind: int
    symbol: str
    addend: int


@dataclass(frozen=True, slots=True)
class TLSSegment:
    """PT_TLS: address, size in memory and alignment."""

    address: int
    size: int
    alignment: int


@dataclass(frozen=True, slots=True)
class RubyImage:
    """The file that holds the interpreter, as it lies in one process. Addresses are ELF virtual addresses.

    Adding `bias` gives the address in the process. `is_program` tells a program (also a position
    independent one) from a shared library. `data` are the ranges (address, size) of initialized data,
    `writable` those of all data, initialized or not.
    """

    path: str
    bias: int
    aarch64: bool = False
    is_program: bool = False
    version: str = ""
    symbols: Dictionary[str, ImageSymbol] = field(default_factory=dict)
    tls_segment: TLSSegment | None = None
    tls_relocations: tuple[Relocation, ...] = ()
    data: tuple[tuple[int, int], ...] = ()
    writable: tuple[tuple[int, int], ...] = ()

    def symbol(self, name: str) -> ImageSymbol | None:
        """Return a symbol among those that matter, or None."""
        return self.symbols.get(name)

    def address(self, name: str) -> int:
        """Return where a symbol lies in the process, or 0 when the file does not have it."""
        found = self.symbols.get(name)
        return found.value + self.bias if found is not None else 0

    def interpreter_ranges(self, name: str) -> list[tuple[int, int]]:
        """Return [lower, upper] of the interpreter function and its cold part, both ends inclusive."""
        found = (self.symbols.get(part) for part in (name, name + ".cold"))
        return [(symbol.value, symbol.value + symbol.size) for symbol in found if symbol is not None]


def may_define_ruby(elf: ElfFile) -> bool:
    """Whether a file has Ruby's version variable among its names; cheap enough to ask every file."""
    wanted = VERSION_SYMBOL.encode() + b"\0"
    try:
        return any(
            wanted in elf.data(section) for section in elf.sections if section.name in (".dynstr", ".strtab")
        )
    except DecodeError:
        return False


def read_image(elf: ElfFile, mapping: Mapping) -> RubyImage:
    """Read what is needed of `elf`, which is the file behind `mapping`. Raises DecodeError."""
    table = SymbolTable(elf)
    symbols = {}
    for name in (*_WANTED, *_COLD):
        symbol = table.find(name)
        if symbol is not None:
            symbols[name] = ImageSymbol(symbol.value, symbol.size)
    dynamic = _dynamic(elf)
    kinds = {segment.type for segment in elf.segments}
    version = symbols.get(VERSION_SYMBOL)
    return RubyImage(
        path=mapping.path,
        bias=elf.load_bias(mapping.start, mapping.offset, executable=mapping.executable),
        aarch64=elf.machine == _EM_AARCH64,
        is_program=elf.type == _ET_EXEC
        or _PT_INTERP in kinds
        or bool(dynamic.get(_DT_FLAGS_1, 0) & _DF_1_PIE),
        version=_text(elf, version.value) if version is not None else "",
        symbols=symbols,
        tls_segment=_tls_segment(elf),
        tls_relocations=tuple(_relocations(elf, dynamic)),
        data=_data(elf),
        writable=tuple(
            (segment.address, segment.memory_size)
            for segment in elf.segments
            if segment.type == _PT_LOAD and segment.flags & _PF_W
        ),
    )


def _tls_segment(elf: ElfFile) -> TLSSegment | None:
    for index, segment in enumerate(elf.segments):
        if segment.type == _PT_TLS:
            (table,) = struct.unpack("<Q", elf.read(_E_PHOFF, 8))
            (alignment,) = struct.unpack("<Q", elf.read(table + index * _PHDR_SIZE + _P_ALIGN, 8))
            return TLSSegment(segment.address, segment.memory_size, alignment)
    return None


def _text(elf: ElfFile, address: int) -> str:
    try:
        return elf.read_virtual(address, 16).partition(b"\0")[0].decode("ascii")
    except (DecodeError, UnicodeDecodeError):
        return ""


def _data(elf: ElfFile) -> tuple[tuple[int, int], ...]:
    named = [(section.address, section.size) for section in elf.sections if section.name == ".data"]
    if named:
        return tuple(named)
    return tuple(
        (segment.address, segment.file_size)
        for segment in elf.segments
        if segment.type == _PT_LOAD and segment.flags & _PF_W
    )


def _dynamic(elf: ElfFile) -> dict[int, int]:
    """Return the dynamic section as {tag: value}, empty for a static program."""
    for segment in elf.segments:
        if segment.type == _PT_DYNAMIC and segment.file_size < _MAX_TABLE:
            raw = elf.read_virtual(segment.address, segment.file_size & ~15)
            return {int(tag): int(value) for tag, value in struct.iter_unpack("<QQ", raw)}
    return {}


def _relocations(elf: ElfFile, dynamic: dict[int, int]) -> Iterator[Relocation]:
    kinds = _TLS_RELOCATIONS.get(elf.machine, ())
    for table, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        length = dynamic.get(size, 0) // _RELA.size * _RELA.size
        if not dynamic.get(table) or not 0 < length < _MAX_TABLE:
            continue
        for offset, info, addend in _RELA.iter_unpack(elf.read_virtual(dynamic[table], length)):
            if info & 0xFFFFFFFF in kinds:
                yield Relocation(offset, info & 0xFFFFFFFF, _symbol_name(elf, dynamic, info >> 32), addend)


def _symbol_name(elf: ElfFile, dynamic: dict[int, int], index: int) -> str:
    if not index:
        return ""
    raw = elf.read_virtual(dynamic.get(_DT_SYMTAB, 0) + index * _SYMBOL_SIZE, 4)
    start = dynamic.get(_DT_STRTAB, 0) + int.from_bytes(raw, "little")
    # A name may end close to the segment's end: read it in small steps.
    name = b""
    while b"\0" not in name and len(name) < 256:
        name += elf.read_virtual(start + len(name), 1)
    return name.partition(b"\0")[0].decode("ascii", "replace")
