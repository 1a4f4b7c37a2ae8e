# SPDX-License-Identifier: Apache-2.0
"""The files that processes have mapped: identity, unwind rows and symbols, each read once."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from rubyunwind.elf.debuglink import debug_symbols
from rubyunwind.elf.deltas import StackDeltas, load_stack_deltas
from rubyunwind.elf.file import EM_AARCH64, ElfFile
from rubyunwind.elf.functions import function_entries, function_size, start_of
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.elf.stand_in import stand_in
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError, GivenUp, RubyUnwindError
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.image import may_define_ruby, read_image

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rubyunwind.process.image import ProcessImage
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.ruby.image import RubyImage

__all__ = ["FileCache", "FileKey", "MappedFile", "given_up_notes", "is_code"]

FileKey = tuple[int, int, str]
"""Mapping.file_key: device, inode and path."""

_VDSO = "[vdso]"
_FRAME_CACHE = 65536


class MappedFile:
    """An ELF file that some process executes. Owns the file's descriptor.

    One that is not `readable` is a stand-in: it has no unwind rows, and addresses in the place of names.
    """

    def __init__(self, elf: ElfFile, path: str, *, readable: bool = True) -> None:
        self.elf = elf
        self.readable = readable
        self.path = path
        self.file_id = _identify(elf, path)
        self._symbols: SymbolTable | None = None
        self._entries: dict[int, int] = {}
        self._debug_symbols: SymbolTable | None = None
        self._debug_file_was_sought = False
        self._ruby: RubyImage | None = None
        self._starts: list[int] | None = None
        self._frames: dict[int, Frame] = {}
        self._called: list[tuple[int, int, str]] = []

    def deltas(self) -> StackDeltas:
        """Return the file's unwind rows, from the disk cache when they are there. Raises DecodeError."""
        if self.readable:
            try:
                return load_stack_deltas(self.elf)
            except GivenUp:
                self.readable = False
        return StackDeltas(b"", b"", [])

    @cached_property
    def may_define_ruby(self) -> bool:
        """Whether Ruby's version is among its names."""
        return may_define_ruby(self.elf)

    def ruby_image(self, mapping: Mapping) -> RubyImage | None:
        """Return what Ruby's detection needs of the file, as mapped there; None if it cannot be read."""
        try:
            if self._ruby is None:
                self._ruby = read_image(self.elf, mapping)
            bias = self.elf.load_bias(mapping.start, mapping.offset, executable=mapping.executable)
        except (DecodeError, OSError):
            return None
        return replace(self._ruby, bias=bias, path=mapping.path)

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

    def begin_of(self, address: int) -> int | None:
        """Return where the function at an ELF virtual address begins, None if its unwind rows do not tell."""
        if self._starts is None:
            with suppress(DecodeError):
                self._entries = function_entries(self.elf)
            self._starts = sorted(self._entries)
        start = start_of(self._starts, address)
        size = function_size(self.elf, start, self._entries[start]) if start is not None else 0
        # What lies behind it has no unwind information.
        return None if start is not None and size and address >= start + size else start

    @property
    def aarch64(self) -> bool:
        """Whether its code is that machine's."""
        return self.elf.machine == EM_AARCH64

    def _name(self, address: int) -> str:
        """Name the function; one that has no symbol by its file and where it begins, so that frames merge."""
        from rubyunwind.elf.demangle import demangle

        if self._symbols is None:
            self._symbols = SymbolTable(self.elf)
        try:
            found = self._symbols.lookup(address)
        except DecodeError:
            found = None
        found = found or self._lookup_in_debug_file(address)
        if found is not None:
            return demangle(found[0])
        for first, last, name in self._called:
            if first <= address < last:
                return name
        start = self.begin_of(address)
        base = self.path.rpartition("/")[2] or self.path
        name = f"{base}+{address if start is None else start:#x}"
        return name if self.readable else f"{name} (not readable)"

    def _lookup_in_debug_file(self, address: int) -> tuple[str, int] | None:
        """Look a function up among those that were stripped off, where the debug file is installed.

        It is opened for the first function that the file itself does not name, and closed at once.
        """
        if not self._debug_file_was_sought:
            self._debug_file_was_sought = True
            self._debug_symbols = debug_symbols(self.elf)
        return None if self._debug_symbols is None else self._debug_symbols.lookup(address)

    def close(self) -> None:
        """Close the file; names that were not looked up yet are lost."""
        self.elf.close()


class FileCache:
    """Files by what the maps of a process say of them, and by file id.

    Whoever maps files says so with `hold` and `release`; `expire` closes those that nobody maps any more.
    A file's inode cannot be given to another one as long as it is mapped, or open here: a key that is
    neither is forgotten at once. No more than `most` files are open; `refused` counts what was not opened for
    that reason. Files whose server does not answer are given up: stand-ins are in their place.
    """

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._by_key: dict[FileKey, MappedFile | None] = {}
        self._by_id: dict[int, MappedFile] = {}
        self._opened: dict[FileKey, int] = {}  # keys whose descriptor is the one that is open: file ids
        self._users: Counter[FileKey] = Counter()
        self._idle: dict[FileKey, float] = {}  # keys of open files that nobody maps, and since when
        self.refused = 0
        self._given_up: dict[str, str] = {}  # reasons, by path

    def __len__(self) -> int:
        return len(self._by_id)

    def by_id(self, file_id: int) -> MappedFile | None:
        """Return the file with that id, if any process has it mapped, or had until lately."""
        return self._by_id.get(file_id)

    def open(self, image: ProcessImage, mapping: Mapping) -> MappedFile | None:
        """Return the file behind a mapping; None for what is no ELF file, or cannot be opened."""
        # A file that was replaced under its name has another inode; the vdso is the same in all processes.
        key = mapping.file_key
        if key in self._by_key:
            return self._by_key[key]
        if len(self._by_id) >= self._most:
            self.refused += 1
            return None
        found = None
        try:
            elf = image.open(mapping)
            try:
                if elf.distant is not None:
                    _ = elf.segments  # what it is placed by
                found = MappedFile(elf, mapping.path)
            except BaseException:
                elf.close()
                raise
        except GivenUp as error:
            found = self._give_up(mapping, str(error))
        except (RubyUnwindError, OSError) as error:
            logging.getLogger(__name__).info("no unwinding through %s: %s", mapping.path, error)
            if not isinstance(error, DecodeError):
                return None  # this process may have ended; the next one that maps the file is asked again
        return self._keep(key, found)

    def _give_up(self, mapping: Mapping, reason: str) -> MappedFile:
        """Put a stand-in in the place of a file."""
        self._note(mapping.path, reason)
        elf = stand_in(
            mapping.path, repr(mapping.file_key).encode(errors="backslashreplace"), os.uname().machine
        )
        return MappedFile(elf, mapping.path, readable=False)

    def _note(self, path: str, reason: str) -> None:
        if path not in self._given_up:
            logging.getLogger(__name__).warning("%s is given up: %s", path, reason)
        self._given_up[path] = reason

    @property
    def given_up(self) -> dict[str, str]:
        """Why files were given up, by path: see GivenUp."""
        for file in self._by_id.values():
            self._note_trouble(file)
        return self._given_up

    def _note_trouble(self, file: MappedFile) -> None:
        if file.elf.distant is not None and file.elf.distant.trouble:
            self._note(file.path, file.elf.distant.trouble)

    def _keep(self, key: FileKey, found: MappedFile | None) -> MappedFile | None:
        if found is not None:
            known = self._by_id.setdefault(found.file_id, found)
            if known is found:
                self._opened[key] = found.file_id
                if key not in self._users:
                    self._idle[key] = time.monotonic()
            else:  # a copy under another name
                found.close()
                found = known
        self._by_key[key] = found
        return found

    def expect(self, path: Path) -> MappedFile | None:
        """Open a file of this machine that a process will map, for good; None if it is no ELF file."""
        try:
            status = path.stat()
            key = (status.st_dev, status.st_ino, str(path))
            if key not in self._by_key:
                self._keep(key, MappedFile(ElfFile.open(path), str(path)))
        except (RubyUnwindError, OSError):
            return None
        self.hold([key])
        return self._by_key[key]

    def hold(self, keys: Iterable[FileKey]) -> None:
        """Note that a process has these files mapped."""
        for key in keys:
            self._users[key] += 1
            self._idle.pop(key, None)

    def release(self, keys: Iterable[FileKey]) -> None:
        """Note that a process that held these files has them mapped no longer."""
        for key in keys:
            self._users[key] -= 1
            if self._users[key] > 0:
                continue
            del self._users[key]
            if key in self._opened:
                self._idle[key] = time.monotonic()
            else:
                self._by_key.pop(key, None)

    def expire(self, before: float) -> list[int]:
        """Close the files that nobody has mapped since `before` (monotonic seconds); return their ids."""
        dropped = []
        if self._given_up:
            from rubyunwind.process.deputy import deputies

            deputies.reap()
        for key, since in list(self._idle.items()):
            if since >= before:
                continue
            file_id = self._opened[key]
            if any(file is not None and file.file_id == file_id for file in self._held(key)):
                continue  # somebody has a copy of it mapped
            del self._idle[key], self._opened[key], self._by_key[key]
            self._drop(self._by_id.pop(file_id))
            dropped.append(file_id)
        return dropped

    def _drop(self, file: MappedFile) -> None:
        self._note_trouble(file)
        file.close()

    def _held(self, but: FileKey) -> Iterable[MappedFile | None]:
        return (self._by_key.get(key) for key in self._users if key != but)

    def close(self) -> None:
        """Close all files. Twice is harmless."""
        _ = self.given_up  # what is to be said of them
        for file in self._by_id.values():
            file.close()
        for table in (self._by_id, self._by_key, self._opened, self._users, self._idle):
            table.clear()


def given_up_notes(given_up: dict[str, str]) -> list[str]:
    """Return what a user should know of files that were given up."""
    return [
        f"{path} is given up ({reason.removeprefix(f'{path}: ')}): its frames are addresses, stacks end there"
        for path, reason in given_up.items()
    ]


def is_code(mapping: Mapping) -> bool:
    """Whether a mapping holds code of a file, or of the kernel's vdso."""
    return mapping.executable and (mapping.is_file or mapping.path == _VDSO)


def _identify(elf: ElfFile, path: str) -> int:
    """Return the file id; for a file of which a core holds parts only, one that follows from its build id."""
    try:
        return file_id(elf)
    except GivenUp:
        raise
    except DecodeError:
        known = build_id(elf) or path.encode(errors="surrogateescape")
        return int.from_bytes(hashlib.sha256(known).digest()[:8], "big") or 1
