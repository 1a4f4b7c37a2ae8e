# SPDX-License-Identifier: Apache-2.0
"""A small ELF reader for the way to the first sample: headers, sections, segments, addresses.

Files belong to the profiled process and may be made up or change while they are read. So nothing is
mapped (a file that shrinks would kill the reader with SIGBUS), every size is held against the file
and against a bound, and whatever does not fit raises DecodeError.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from rubyunwind.elf.readable import Readable
from rubyunwind.errors import DecodeError

__all__ = ["EM_AARCH64", "EM_X86_64", "ET_REL", "MAX_READ", "ElfFile", "Section", "Segment"]

# elf.h
EM_X86_64 = 62
EM_AARCH64 = 183
ET_REL = 1
SHT_NOBITS = 8
SHF_EXECINSTR = 0x4
SHF_COMPRESSED = 0x800
ELFCOMPRESS_ZLIB = 1
PT_LOAD = 1
PF_X = 1
SHN_XINDEX = 0xFFFF

MAX_READ = 256 << 20
"""Largest piece of a file that is read at once, in bytes: no table or section that we want is larger."""
MAX_HEADERS = 65536
MAX_PROGRAM_HEADERS = 65536 // 56
"""The kernel runs no program with more than 64 KiB of them (load_elf_phdrs)."""

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SHDR = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_PHDR = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr
_CHDR = struct.Struct("<IIQQ")  # Elf64_Chdr


@dataclass(frozen=True, slots=True)
class Section:
    """One section header; `offset` and `size` are of the file, in bytes, `address` is virtual."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int

    @property
    def executable(self) -> bool:
        """Whether it holds instructions."""
        return bool(self.flags & SHF_EXECINSTR)


@dataclass(frozen=True, slots=True)
class Segment:
    """One program header; `offset` and `file_size` are of the file, the others of memory, in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int

    @property
    def executable(self) -> bool:
        """Whether it is mapped with execute permission."""
        return bool(self.flags & PF_X)


class ElfFile:
    """A 64-bit little-endian ELF image for x86_64 or aarch64; a context manager.

    `ElfFile(data)` reads bytes that are already in memory, as of the vdso. `open` and `from_fd` read a
    file by descriptor. Raises DecodeError, which says what was found, when the image is something else.
    `stamp` changes when a file does; None for what is no file. `distant` is what `of` was given, else None.
    """

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<memory>") -> None:
        view = memoryview(data).cast("B")
        self._begin(lambda offset, length: bytes(view[offset : offset + length]), len(view), name)

    def _begin(
        self,
        read: Callable[[int, int], bytes],
        size: int,
        name: str,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._read = read
        self._close = close
        self.size = size
        self.name = name
        self.path: str | None = None
        self.distant: Readable | None = None
        self.stamp: tuple[int, int, int, int] | None = None
        header = self.read(0, _EHDR.size) if size >= _EHDR.size else b""
        if header[:4] != b"\x7fELF":
            raise DecodeError(f"{name} is no ELF file: {size} bytes, which begin {header[:4].hex()}")
        if header[4] != 2 or header[5] != 1:
            kind = {1: "32-bit", 2: "64-bit"}.get(header[4], f"class {header[4]}")
            order = {1: "little-endian", 2: "big-endian"}.get(header[5], f"byte order {header[5]}")
            raise DecodeError(f"{name} is a {kind} {order} ELF file; only 64-bit little-endian ones are read")
        fields = _EHDR.unpack(header)
        self.type: int = fields[1]
        self.machine: int = fields[2]
        self.entry: int = fields[4]
        self._phoff, self._shoff = fields[5], fields[6]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = fields[9:14]
        if self.machine not in (EM_X86_64, EM_AARCH64):
            raise DecodeError(
                f"{name} is an ELF file for machine {self.machine}; "
                "only x86_64 (62) and aarch64 (183) are read"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ElfFile:
        """Open a trusted path of this machine. OSError as open(2) has it, DecodeError."""
        name = os.fspath(path)
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        elf = cls.from_fd(fd, name)
        elf.path = name
        return elf

    @classmethod
    def from_fd(cls, fd: int, name: str = "") -> ElfFile:
        """Read the regular file behind `fd`, which is closed by `close`, and here when this raises."""
        self = cls.__new__(cls)
        try:
            status = os.fstat(fd)
            name = name or f"descriptor {fd}"
            if not stat.S_ISREG(status.st_mode):
                raise DecodeError(
                    f"{name} is no regular file (mode {status.st_mode:o}), so no ELF file is read"
                )
            self._begin(
                lambda offset, length: os.pread(fd, length, offset),
                status.st_size,
                name,
                lambda: os.close(fd),
            )
            self.stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        except BaseException:
            os.close(fd)
            raise
        return self

    @classmethod
    def of(cls, file: Readable, name: str) -> ElfFile:
        """Read what `file` gives, which is closed by `close`, and here when this raises."""
        self = cls.__new__(cls)
        try:
            self._begin(file.read, file.size, name, file.close)
            self.stamp, self.distant = file.stamp, file
        except BaseException:
            file.close()
            raise
        return self

    def close(self) -> None:
        """Close the file, if there is one; closing twice is harmless."""
        close, self._close = self._close, None
        self._read = _closed
        if close is not None:
            close()

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes at file offset `offset`; DecodeError when they are not there."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise DecodeError(
                f"{self.name}: {length} bytes at offset {offset:#x} reach past its end ({self.size} bytes)"
            )
        if length > MAX_READ:
            raise DecodeError(f"{self.name}: {length} bytes wanted at once; the bound is {MAX_READ}")
        try:
            data = self._read(offset, length)
        except OSError as error:
            raise DecodeError(f"{self.name}: reading at offset {offset:#x}: {error.strerror}") from None
        if len(data) != length:
            raise DecodeError(
                f"{self.name}: got {len(data)} of {length} bytes at {offset:#x}: the file shrank"
            )
        return data

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Program headers in file order; empty when the table is missing, absurd or does not fit the file."""
        if (
            self._phentsize != _PHDR.size
            or not self._phoff
            or self._phnum > MAX_PROGRAM_HEADERS
            or self._phnum * _PHDR.size + self._phoff > self.size
        ):
            return ()
        table = self.read(self._phoff, self._phnum * _PHDR.size)
        return tuple(
            Segment(kind, flags, offset, address, file_size, memory_size)
            for kind, flags, offset, address, _, file_size, memory_size, _ in _PHDR.iter_unpack(table)
        )

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Section headers in file order; empty when the table is missing or does not fit the file."""
        if self._shentsize != _SHDR.size or not self._shoff or self._shoff + _SHDR.size > self.size:
            return ()
        first = _SHDR.unpack(self.read(self._shoff, _SHDR.size))
        # More than 65,279 sections: the count and the names' index are in the first, empty header.
        count = self._shnum or first[5]
        names_index = first[6] if self._shstrndx == SHN_XINDEX else self._shstrndx
        if count > MAX_HEADERS or self._shoff + count * _SHDR.size > self.size:
            return ()
        headers = list(_SHDR.iter_unpack(self.read(self._shoff, count * _SHDR.size)))
        names = b""
        if names_index < count:
            offset, size = headers[names_index][4:6]
            if offset + size <= self.size and size <= MAX_READ:
                names = self.read(offset, size)
        return tuple(
            Section(_string(names, at), kind, flags, address, offset, size, link, entry_size)
            for at, kind, flags, address, offset, size, link, _, _, entry_size in headers
        )

    def section(self, name: str) -> Section | None:
        """Return the first section with that name, or None."""
        return next((section for section in self.sections if section.name == name), None)

    def data(self, section: Section) -> bytes:
        """Return a section's bytes, decompressed when zlib compressed them; empty without any in the file."""
        if section.type == SHT_NOBITS:
            return b""
        data = self.read(section.offset, section.size)
        if not section.flags & SHF_COMPRESSED:
            return data
        if len(data) < _CHDR.size:
            raise DecodeError(f"{self.name}: compressed section {section.name} has no header")
        kind, _, size, _ = _CHDR.unpack_from(data)
        if not size:  # to zlib, 0 would mean that there is no limit
            return b""
        if kind != ELFCOMPRESS_ZLIB or size > MAX_READ:
            raise DecodeError(
                f"{self.name}: section {section.name} is compressed with method {kind} to {size} bytes; "
                f"only zlib (1) up to {MAX_READ} bytes is read"
            )
        try:
            plain = zlib.decompressobj().decompress(data[_CHDR.size :], size)
        except zlib.error as error:
            raise DecodeError(f"{self.name}: compressed section {section.name}: {error}") from None
        if len(plain) != size:
            raise DecodeError(f"{self.name}: section {section.name} has {len(plain)} of {size} bytes")
        return plain

    def read_virtual(self, address: int, length: int) -> bytes:
        """Return `length` bytes at an ELF virtual address, as they are right after loading.

        What a segment has in memory but not in the file reads as zeros. DecodeError when no single
        segment holds all of it.
        """
        for segment in self.segments:
            start = address - segment.address
            if segment.type != PT_LOAD or start < 0 or start + length > segment.memory_size or length < 0:
                continue
            if length > MAX_READ:
                break
            stored = max(0, min(length, segment.file_size - start))
            return self.read(segment.offset + start, stored) + bytes(length - stored)
        raise DecodeError(f"{self.name}: {length} bytes at address {address:#x} are in no loaded segment")

    def load_bias(
        self,
        mapping_start: int,
        mapping_offset: int,
        *,
        executable: bool = True,
        page_size: int = mmap.PAGESIZE,
    ) -> int:
        """Return runtime address minus ELF virtual address for a mapping of this file.

        `mapping_start` and `mapping_offset` are as in /proc/PID/maps. Two segments may share a page of
        the file: of those that hold the offset, one whose permission agrees with `executable` is meant.
        DecodeError when no segment does.
        """
        best: Segment | None = None
        for segment in self.segments:
            if segment.type != PT_LOAD or not segment.file_size:
                continue
            first = segment.offset - segment.offset % page_size
            if first <= mapping_offset < segment.offset + segment.file_size and (
                best is None or (segment.executable == executable and best.executable != executable)
            ):
                best = segment
        if best is None:
            raise DecodeError(
                f"{self.name}: file offset {mapping_offset:#x} of a mapping is in no loaded segment"
            )
        return mapping_start - (best.address + mapping_offset - best.offset)

    @cached_property
    def executable_spans(self) -> tuple[tuple[int, int, int], ...]:
        """(first address, end address, file offset) of what can be executed: segments, else sections.

        Only what the file really holds counts, so a made-up size cannot stretch a span.
        """
        spans = [
            (s.address, s.file_size, s.offset) for s in self.segments if s.type == PT_LOAD and s.executable
        ]
        if not spans:
            found = (s for s in self.sections if s.executable and s.type != SHT_NOBITS)
            spans = [(s.address, s.size, s.offset) for s in found]
        fitting = ((address, min(size, self.size - offset), offset) for address, size, offset in spans)
        return tuple(
            (address, address + size, offset)
            for address, size, offset in fitting
            if size > 0 and address + size < 1 << 64
        )


def _closed(offset: int, length: int) -> bytes:
    raise DecodeError("the ELF file is closed; open it again to read from it")


def _string(table: bytes, at: int) -> str:
    end = table.find(b"\0", at, at + 4096)
    return table[at : end if end >= 0 else at].decode("utf-8", "surrogateescape")
