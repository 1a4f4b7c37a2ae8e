# SPDX-License-Identifier: Apache-2.0
"""What is needed of the ELF file that holds Ruby: some symbols, TLS segment and relocations, data."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rubyunwind.elf.dynamic import DynamicSection
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError
from rubyunwind.ruby.hidden import NOTHING_HIDDEN, HiddenPlaces, find_hidden
from rubyunwind.ruby.layouts.described import described_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping as Dictionary

    from rubyunwind.elf.file import ElfFile
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.ruby.layouts import Layout

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
_CONTEXTS = {"ruby_current_ec", "ruby_current_execution_context_ptr"}
# Parts of the interpreter that GCC moved out of line (cold paths) have symbols of their own.
_COLD = ("rb_vm_exec.cold", "ruby_exec_node.cold")

# elf.h
_ET_EXEC = 2
_EM_AARCH64 = 183
_PT_LOAD, _PT_INTERP, _PT_TLS = 1, 3, 7
_PF_W = 2
_DT_FLAGS_1 = 0x6FFFFFFB
_DF_1_PIE = 0x08000000
# DTPMOD64, TPOFF64 and TLSDESC of x86_64 and aarch64.
_TLS_RELOCATIONS = {62: (16, 18, 36), _EM_AARCH64: (1028, 1030, 1031)}

# Elf64_Ehdr.e_phoff; Elf64_Phdr and p_align in it.
_E_PHOFF = 32
_PHDR_SIZE, _P_ALIGN = 56, 48


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
    `writable` those of all data, initialized or not. `hidden` is what its code tells of variables without a
    symbol, `described` what its debug information tells of Layout's members. `proven` are the layouts
    that were seen to be right in a process that has the file mapped; the images that are made of one by
    replace() share it.
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
    hidden: HiddenPlaces = NOTHING_HIDDEN
    described: Dictionary[str, int] = field(default_factory=dict)
    proven: set[Layout] = field(default_factory=set, compare=False, repr=False)

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
    dynamic = DynamicSection(elf)
    kinds = {segment.type for segment in elf.segments}
    version = symbols.get(VERSION_SYMBOL)
    return RubyImage(
        path=mapping.path,
        bias=elf.load_bias(mapping.start, mapping.offset, executable=mapping.executable),
        aarch64=elf.machine == _EM_AARCH64,
        is_program=elf.type == _ET_EXEC
        or _PT_INTERP in kinds
        or bool(dynamic.entries.get(_DT_FLAGS_1, 0) & _DF_1_PIE),
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
        hidden=find_hidden(
            elf, table, context=not _CONTEXTS & symbols.keys(), loop="rb_vm_exec" not in symbols
        ),
        described=described_offsets(elf),
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


def _relocations(elf: ElfFile, dynamic: DynamicSection) -> Iterator[Relocation]:
    for entry in dynamic.relocations(_TLS_RELOCATIONS.get(elf.machine, ())):
        yield Relocation(entry.offset, entry.kind, dynamic.symbol_name(entry.symbol), entry.addend)
