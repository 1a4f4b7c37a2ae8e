# SPDX-License-Identifier: Apache-2.0
"""The frame of an ELF core file: whether it is one that is read here, and where its segments are."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from rubyunwind.elf.file import EM_AARCH64, EM_X86_64
from rubyunwind.errors import DecodeError
from rubyunwind.process.core_memory import PF_R, PF_W, PF_X, CoreSegment

__all__ = ["CoreHeader", "read_header"]

# elf.h
_ET_NAMES = {1: "an object file", 2: "an executable", 3: "a program or shared library"}
_ET_CORE = 4
_PT_LOAD, _PT_NOTE = 1, 4
_PN_XNUM = 0xFFFF
_SHT_PROGBITS, _SHT_NOTE, _SHT_NOBITS = 1, 7, 8
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_MACHINES = {
    3: "i386", 8: "mips", 20: "powerpc", 21: "powerpc64", 22: "s390", 40: "arm", 62: "x86_64",
    183: "aarch64", 243: "riscv", 258: "loongarch",
}  # fmt: skip

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SHDR = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_PHDR = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr

MAX_SEGMENTS = 1 << 22
"""Far above any vm.max_map_count in use; a table of headers this long has 224 MiB."""


@dataclass(frozen=True, slots=True)
class CoreHeader:
    """`machine` is EM_X86_64 or EM_AARCH64; `notes` are (file offset, size); `wanted_size` is what the
    file should have at least, in bytes: it is truncated when it has less.
    """

    machine: int
    segments: tuple[CoreSegment, ...]
    notes: tuple[tuple[int, int], ...]
    wanted_size: int


def read_header(read: Callable[[int, int], bytes], size: int, name: str) -> CoreHeader:
    """Read the headers of a core file of `size` bytes. Raises DecodeError, which says what the file is."""
    if not size:
        raise DecodeError(f"{name} is empty: its writer had no disk space, or the limit on core files was 0")
    raw = read(0, min(size, _EHDR.size))
    if raw[:4] != b"\x7fELF":
        raise DecodeError(f"{name} is no core file: no ELF file at all, it begins {raw[:8]!r}")
    if len(raw) < _EHDR.size:
        raise DecodeError(f"{name} is cut off after {size} bytes, inside the ELF header")
    order = "big" if raw[5] == 2 else "little"
    kind, machine = (int.from_bytes(raw[at : at + 2], order) for at in (16, 18))  # type: ignore[arg-type]
    machine_name = _MACHINES.get(machine, f"machine {machine}")
    if raw[4] != 2:
        raise DecodeError(
            f"{name} is a 32-bit ELF file ({machine_name}); only cores of 64-bit processes are read"
        )
    if machine not in (EM_X86_64, EM_AARCH64) or raw[5] != 1:
        raise DecodeError(f"{name} is for {machine_name}; only x86_64 and aarch64 cores are read")
    if kind != _ET_CORE:
        raise DecodeError(
            f"{name} is {_ET_NAMES.get(kind, f'an ELF file of type {kind}')}, no core file; "
            "`gcore PID` writes one of a running process"
        )
    _, _, _, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = _EHDR.unpack(raw)
    if phnum == _PN_XNUM:
        # More than 65,534 segments: the number is in the first, empty section header.
        if shentsize != _SHDR.size or not shoff or shoff + _SHDR.size > size:
            raise DecodeError(f"{name}: the header that has the number of its segments is cut off")
        phnum = _SHDR.unpack(read(shoff, _SHDR.size))[7]
    if phnum:
        return _from_segments(_table(read, size, name, phoff, phnum, phentsize, _PHDR), machine, size)
    if shnum:
        return _from_sections(_table(read, size, name, shoff, shnum, shentsize, _SHDR), machine, size)
    raise DecodeError(f"{name} has neither segments nor sections: nothing of the process is in it")


def _table(
    read: Callable[[int, int], bytes],
    size: int,
    name: str,
    offset: int,
    count: int,
    entry: int,
    form: struct.Struct,
) -> list[tuple[int, ...]]:
    if entry != form.size or count > MAX_SEGMENTS:
        raise DecodeError(f"{name}: its table of {count} headers of {entry} bytes is none of a core file")
    if offset + count * entry > size:
        raise DecodeError(
            f"{name} is truncated: its {count} headers reach to byte {offset + count * entry}, "
            f"it ends at {size}"
        )
    return list(form.iter_unpack(read(offset, count * entry)))


def _from_segments(headers: list[tuple[int, ...]], machine: int, size: int) -> CoreHeader:
    segments, notes, wanted = [], [], 0
    for kind, flags, offset, address, _, stored, memory, _ in headers:
        if kind == _PT_LOAD:
            segments.append(_segment(address, max(memory, stored), offset, stored, flags, size))
        elif kind == _PT_NOTE:
            notes.append((offset, stored))
        if stored:
            wanted = max(wanted, offset + stored)
    return CoreHeader(machine, tuple(segments), tuple(notes), wanted)


def _from_sections(headers: list[tuple[int, ...]], machine: int, size: int) -> CoreHeader:
    segments, notes, wanted = [], [], 0
    for _, kind, flags, address, offset, length, _, _, _, _ in headers:
        stored = 0 if kind == _SHT_NOBITS else length
        if kind in (_SHT_PROGBITS, _SHT_NOBITS) and flags & _SHF_ALLOC:
            mode = PF_R | (PF_W if flags & _SHF_WRITE else 0) | (PF_X if flags & _SHF_EXECINSTR else 0)
            segments.append(_segment(address, length, offset, stored, mode, size))
        elif kind == _SHT_NOTE:
            notes.append((offset, stored))
        if stored:
            wanted = max(wanted, offset + stored)
    return CoreHeader(machine, tuple(segments), tuple(notes), wanted)


def _segment(address: int, memory: int, offset: int, stored: int, flags: int, size: int) -> CoreSegment:
    there = max(0, min(stored, size - offset))
    end = min(address + memory, 1 << 64)
    return CoreSegment(address, end, offset, there, flags, there < stored)
