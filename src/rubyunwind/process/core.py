# SPDX-License-Identifier: Apache-2.0
"""CoreFile: a dead process, read from the core file that the kernel or gcore wrote."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import AttachError, DecodeError, NotSupported
from rubyunwind.process.compressed import uncompressed
from rubyunwind.process.core_files import CoreFiles
from rubyunwind.process.core_header import read_header
from rubyunwind.process.core_memory import MAX_READ, PF_R, PF_W, PF_X, CoreMemory, CoreSegment
from rubyunwind.process.core_notes import (
    CoreNotes,
    CoreThread,
    FileRange,
    SignalInfo,
    iterate_notes,
    parse_notes,
)
from rubyunwind.process.mappings import Mapping
from rubyunwind.process.memory import MemoryReadError

__all__ = ["CoreFile"]

_AT_PAGESZ, _AT_SYSINFO_EHDR = 6, 33  # auxvec.h
_VDSO = "[vdso]"

# Mappings of two cores must not be taken for the same file, nor for one of a live process (no device of
# this machine has a negative number).
_cores = itertools.count(1)


class CoreFile:
    """An ELF core file of an x86_64 or aarch64 process; a context manager. Nothing is loaded as a whole.

    `machine` is EM_X86_64 or EM_AARCH64. `memory` reads what was dumped and, for pages that the dump left
    out because the mapped file has them, that file, if it can be found below the sysroot and is the same
    build. `pid`, `comm` and `arguments` (the start of the command line) are of the process, `threads` in
    the order of the file: the one that died comes first when the kernel wrote it.
    """

    def __init__(self, fd: int, name: str, sysroot: str = "/") -> None:
        """Take over the descriptor of a plain core file; use open()."""
        self.name = name
        self._fd = fd
        self._files: CoreFiles | None = None
        try:
            self._size = os.fstat(fd).st_size
            self._header = read_header(self._read, self._size, name)
            self.machine = self._header.machine
            notes = self._parse_notes()
            self.memory = CoreMemory(self._read, self._header.segments, self._elsewhere)
            root = os.open(sysroot, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._files = CoreFiles(root, sysroot, notes.files, self.memory.dumped)
        except OSError as error:
            self.close()
            raise AttachError(f"{name}: the sysroot {sysroot!r} cannot be used: {error.strerror}") from None
        except BaseException:
            self.close()
            raise
        self._notes = notes
        self.pid: int = notes.pid
        self.comm: str = notes.comm
        self.arguments: str = notes.arguments
        self.threads: tuple[CoreThread, ...] = notes.threads
        self.signal_info: SignalInfo | None = notes.signal_info
        self.page_size: int = notes.auxv.get(_AT_PAGESZ, 4096)
        self._device = -next(_cores)

    @classmethod
    def open(cls, path: str | os.PathLike[str], sysroot: str | os.PathLike[str] | None = None) -> CoreFile:
        """Open a core file, plain or compressed by gzip or zstd (told by its contents).

        Mapped files are looked for below `sysroot`, the root directory by default. Raises AttachError
        when it cannot be opened, DecodeError when it is no core that is read here, is damaged or cut
        short, NotSupported when nothing can decompress it.
        """
        name = os.fsdecode(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise AttachError(f"the core file {name} cannot be opened: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise AttachError(f"{name} is no regular file, so no core file is read from it")
        try:
            fd = uncompressed(fd, name)
        except (DecodeError, NotSupported):
            raise
        except OSError as error:
            raise AttachError(f"the core file {name} cannot be read: {error.strerror}") from None
        return cls(fd, name, os.fsdecode(sysroot) if sysroot is not None else "/")

    def close(self) -> None:
        """Close the core and the files that were opened for it; closing twice is harmless."""
        if self._files is not None:
            self._files.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> CoreFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @cached_property
    def mappings(self) -> list[Mapping]:
        """What was mapped, in address order, dumped or not.

        `inode` only tells files apart; `device` is a number of this core's own. Permissions are those of
        the dump, for ranges that it does not list those of the ELF segment.
        """
        vdso = self._notes.auxv.get(_AT_SYSINFO_EHDR, 0)
        numbers = {path: number for number, path in enumerate(self._mapped.paths, 1)}
        found: list[Mapping] = []
        before: FileRange | None = None
        for start, end, segment, entry in self._pieces():
            flags = segment.flags if segment is not None else self._flags(entry)
            path = entry.path if entry is not None else _VDSO if vdso and start <= vdso < end else ""
            piece = Mapping(
                start=start,
                end=end,
                readable=bool(flags & PF_R),
                writable=bool(flags & PF_W),
                executable=bool(flags & PF_X),
                offset=entry.offset + start - entry.start if entry is not None else 0,
                device=self._device if entry is not None else 0,
                inode=numbers.get(path, 0),
                path=path,
                deleted=entry.deleted if entry is not None else False,
            )
            # A dump may have cut a mapping in two: what was stored, and what was not.
            if (
                found
                and entry is before
                and piece == replace(found[-1], start=start, end=end, offset=piece.offset)
                and found[-1].end == start
            ):
                piece = replace(piece, start=found[-1].start, offset=found.pop().offset)
            found.append(piece)
            before = entry
        return found

    def raw_notes(self) -> bytes:
        """Return all notes as they are in the file, one after the other."""
        return b"".join(self._read(offset, size) for offset, size in self._header.notes)

    def open_mapped(self, mapping: Mapping) -> int:
        """Open the mapped file below the sysroot; the caller owns the descriptor.

        Raises AttachError when there is none, or when it is not the file that was mapped.
        """
        if not mapping.is_file:
            raise AttachError(
                f"{self.name}: {mapping.path or 'anonymous memory'} is no file that can be opened"
            )
        self._mapped.same_file(mapping.path)
        return self._mapped.open(mapping.path)

    def image(self, mapping: Mapping) -> ElfFile:
        """Return the ELF file behind a mapping; the caller closes it.

        It is the file itself where that can be found, else what the core holds of it: no section headers
        then, and reading a page that was not dumped raises DecodeError. Raises DecodeError when the core
        holds none of its headers either, with the reason why the file was not taken.
        """
        if mapping.path == _VDSO:
            return ElfFile(self._readable(mapping), _VDSO)
        if not mapping.is_file:
            raise AttachError(f"{self.name}: {mapping.path or 'anonymous memory'} is no ELF file")
        try:
            fd = self.open_mapped(mapping)
        except AttachError as error:
            reason = str(error)
        else:
            elf = ElfFile.from_fd(fd, mapping.path)
            elf.path = mapping.path
            return elf
        try:
            return self._mapped.dumped_image(mapping.path)
        except DecodeError as error:
            raise DecodeError(f"{error}; {reason}") from None

    @cached_property
    def missing(self) -> list[str]:
        """What the core lacks and no file replaces, in sentences: for people, once per snapshot."""
        said = []
        if self._size < self._header.wanted_size:
            said.append(
                f"the core file is truncated: it has {self._size} of at least "
                f"{self._header.wanted_size} bytes"
            )
        if not self._notes.files:
            said.append("the core does not say which files were mapped (no NT_FILE note): no names of files")
        for path in self._mapped.paths:
            parts = self._missing_parts(path)
            if parts:
                with contextlib.suppress(AttachError):
                    self._mapped.same_file(path)
                    continue
                said.append(f"{' and '.join(parts)} of {path} not dumped; {self._why(path)}")
        return said

    def _missing_parts(self, path: str) -> list[str]:
        """Name the ELF segments of a file that are not in the core as a whole."""
        parts: dict[str, None] = {}
        for mapping in self.mappings:
            if mapping.path != path or not mapping.is_file:
                continue
            try:
                self.memory.dumped(mapping.start, 1)
                self.memory.dumped(mapping.end - 1, 1)
            except MemoryReadError:
                if mapping.executable:
                    parts["code"] = None
                elif mapping.writable:
                    parts["data"] = None
                elif mapping.offset:
                    parts["constants (.rodata)"] = None
                else:
                    parts["the beginning"] = None
        # A file that is no program matters to nobody: locale archives and the like.
        return list(parts) if "code" in parts or "data" in parts else []

    def _why(self, path: str) -> str:
        try:
            self._mapped.same_file(path)
        except AttachError as error:
            return str(error)
        return ""

    @property
    def _mapped(self) -> CoreFiles:
        assert self._files is not None
        return self._files

    def _read(self, offset: int, length: int) -> bytes:
        """Read the core file with pread: a file that shrinks meanwhile gives an error, no signal."""
        if length > MAX_READ:
            raise DecodeError(f"{self.name}: {length} bytes wanted at once; the bound is {MAX_READ}")
        if self._fd < 0:
            raise DecodeError(f"{self.name} is closed")
        try:
            data = os.pread(self._fd, length, offset)
        except (OSError, OverflowError) as error:
            raise DecodeError(f"{self.name}: reading at {offset:#x}: {error}") from None
        if len(data) != length:
            raise DecodeError(
                f"{self.name} is truncated: {length} bytes at {offset:#x} wanted, it has {len(data)}"
            )
        return data

    def _parse_notes(self) -> CoreNotes:
        areas = self._header.notes
        claimed = sum(size for _, size in areas)
        if claimed > self._size:  # one place under thousands of headers, or a file that is cut off
            raise DecodeError(
                f"{self.name} has {self._size} bytes, but its notes alone would have {claimed}: "
                "it is truncated or damaged"
            )
        notes = (note for area in areas for note in iterate_notes(self._read, *area))
        parsed = parse_notes(notes, self.machine)
        if not parsed.threads:
            raise DecodeError(
                f"{self.name} has no thread's registers (no NT_PRSTATUS note): it is no dump of a process"
            )
        return parsed

    def _elsewhere(self, address: int, length: int) -> bytes:
        if self._files is None:
            raise MemoryReadError(address, length, "not dumped")
        return self._files.read(address, length)

    def _flags(self, entry: FileRange | None) -> int:
        segment = self._mapped.segment(entry) if entry is not None else None
        return segment.flags if segment is not None else PF_R

    def _readable(self, mapping: Mapping) -> bytes:
        try:
            return self.memory.dumped(mapping.start, mapping.end - mapping.start)
        except MemoryReadError as error:
            raise DecodeError(f"{self.name}: {mapping.path} was not dumped: {error}") from None

    def _pieces(self) -> Iterator[tuple[int, int, CoreSegment | None, FileRange | None]]:
        """Yield (start, end, segment, file) of every piece that lies in one segment or file range at most."""
        segments, files = self.memory.segments, self._mapped.ranges
        cuts = sorted(
            {at for part in segments for at in (part.start, part.end)}
            | {at for part in files for at in (part.start, part.end)}
        )
        starts = [entry.start for entry in files]
        for start, end in itertools.pairwise(cuts):
            segment = self.memory.segment_at(start)
            index = bisect_right(starts, start) - 1
            entry = files[index] if index >= 0 and start < files[index].end else None
            if segment is not None or entry is not None:
                yield start, end, segment, entry
