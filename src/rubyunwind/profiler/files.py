# SPDX-License-Identifier: Apache-2.0
"""The files that processes have mapped: identity, unwind rows and symbols, each read once."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

from rubyunwind.elf.deltas import load_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.functions import function_starts, start_of
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError, RubyUnwindError
from rubyunwind.profiler.sample import Frame

if TYPE_CHECKING:
    from pathlib import Path

    from rubyunwind.elf.deltas import StackDeltas
    from rubyunwind.process.image import ProcessImage
    from rubyunwind.process.mappings import Mapping

__all__ = ["FileCache", "MappedFile", "is_code"]

_VDSO = "[vdso]"
_FRAME_CACHE = 65536


class MappedFile:
    """An ELF file that some process executes. Owns the file's descriptor."""

    def __init__(self, elf: ElfFile, path: str) -> None:
        self.elf = elf
        self.path = path
        self.file_id = _identify(elf, path)
        self._symbols: SymbolTable | None = None
        self._starts: list[int] | None = None
        self._frames: dict[int, Frame] = {}
        self._called: list[tuple[int, int, str]] = []

    def deltas(self) -> StackDeltas:
        """Return the file's unwind rows, from the disk cache when they are there. Raises DecodeError."""
        return load_stack_deltas(self.elf)

    def frame(self, address: int) -> Frame:
        """Return the native frame for an ELF virtual address."""
        frame = self._frames.get(address)
        if frame is None:
            if len(self._frames) >= _FRAME_CACHE:
                self._frames.clear()
            frame = Frame("native", self._name(address), module=self.path, offset=address)
            self._frames[address] = frame
        return frame

    def name_function(self, first: int, last: int, name: str) -> None:
        """Name the function at the virtual addresses [first, last], for a file that has no symbol for it."""
        if (first, last, name) not in self._called:
            self._called.append((first, last, name))
            self._frames.clear()

    def _name(self, address: int) -> str:
        """Name the function; one that has no symbol by its file and where it begins, so that frames merge."""
        from rubyunwind.elf.demangle import demangle

        if self._symbols is None:
            self._symbols = SymbolTable(self.elf)
        try:
            found = self._symbols.lookup(address)
        except DecodeError:
            found = None
        if found is not None:
            return demangle(found[0])
        for first, last, name in self._called:
            if first <= address < last:
                return name
        if self._starts is None:
            try:
                self._starts = function_starts(self.elf)
            except DecodeError:
                self._starts = []
        start = start_of(self._starts, address)
        base = self.path.rpartition("/")[2] or self.path
        return f"{base}+{address if start is None else start:#x}"

    def close(self) -> None:
        """Close the file; names that were not looked up yet are lost."""
        self.elf.close()


class FileCache:
    """Files by what the maps of a process say of them, and by file id."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[int, int, str], MappedFile | None] = {}
        self._by_id: dict[int, MappedFile] = {}

    def by_id(self, file_id: int) -> MappedFile | None:
        """Return the file with that id, if any process had it mapped."""
        return self._by_id.get(file_id)

    def open(self, image: ProcessImage, mapping: Mapping) -> MappedFile | None:
        """Return the file behind a mapping; None for what is no ELF file, or cannot be opened."""
        # A file that was replaced under its name has another inode; the vdso is the same in all processes.
        key = mapping.file_key
        if key in self._by_key:
            return self._by_key[key]
        found = None
        try:
            elf = image.open(mapping)
            try:
                found = MappedFile(elf, mapping.path)
            except BaseException:
                elf.close()
                raise
        except (RubyUnwindError, OSError) as error:
            logging.getLogger(__name__).info("no unwinding through %s: %s", mapping.path, error)
            if not isinstance(error, DecodeError):
                return None  # this process may have ended; the next one that maps the file is asked again
        self._by_key[key] = found
        if found is not None:
            known = self._by_id.setdefault(found.file_id, found)
            if known is not found:  # a copy under another name
                found.close()
                self._by_key[key] = found = known
        return found

    def expect(self, path: Path) -> MappedFile | None:
        """Open a file of this machine that a process will map; None if it is no ELF file."""
        try:
            status = path.stat()
            key = (status.st_dev, status.st_ino, str(path))
            if key not in self._by_key:
                file = MappedFile(ElfFile.open(path), str(path))
                if file.file_id in self._by_id:
                    file.close()
                self._by_key[key] = self._by_id.setdefault(file.file_id, file)
        except (RubyUnwindError, OSError):
            return None
        return self._by_key[key]

    def close(self) -> None:
        """Close all files. Twice is harmless."""
        for file in self._by_id.values():
            file.close()
        self._by_id.clear()
        self._by_key.clear()


def is_code(mapping: Mapping) -> bool:
    """Whether a mapping holds code of a file, or of the kernel's vdso."""
    return mapping.executable and (mapping.is_file or mapping.path == _VDSO)


def _identify(elf: ElfFile, path: str) -> int:
    """Return the file id; for a file of which a core holds parts only, one that follows from its build id."""
    try:
        return file_id(elf)
    except DecodeError:
        known = build_id(elf) or path.encode(errors="surrogateescape")
        return int.from_bytes(hashlib.sha256(known).digest()[:8], "big") or 1
