# SPDX-License-Identifier: Apache-2.0
"""The files a dead process had mapped: found by name below a root, and only believed if they are the same.

A core leaves out what the files have anyway. The file of that name may be another build by now, or the
core comes from another machine: a file counts only when its build id (or, without one, its whole first
page) is what the core holds.
"""

from __future__ import annotations

import contextlib
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rubyunwind.elf.file import ElfFile, Segment
from rubyunwind.elf.ids import build_id
from rubyunwind.errors import AttachError, DecodeError
from rubyunwind.process.core_notes import FileRange
from rubyunwind.process.dumped_image import DumpedImage
from rubyunwind.process.mapped_files import MAX_FILE_SIZE, open_below
from rubyunwind.process.memory import MemoryReadError

__all__ = ["CoreFiles"]

_PAGE = 4096
_PT_LOAD, _PF_W = 1, 2  # elf.h

# Each mapping is looked up among its file's segments. Thousands of libraries stay far below this; a file
# made to have every mapping meet every header does not.
_MAX_LOOKUPS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Found:
    """The file behind a path: open and the same as in the core, or None and why."""

    elf: ElfFile | None
    reason: str = ""


class CoreFiles:
    """Opens the files of one core below `root` (a descriptor, taken over) and reads them by address.

    `dumped(address, length)` reads what the core itself holds and raises MemoryReadError for the rest.
    """

    def __init__(
        self, root: int, sysroot: str, ranges: Sequence[FileRange], dumped: Callable[[int, int], bytes]
    ) -> None:
        self._root = root
        self._sysroot = sysroot
        self._dumped = dumped
        self._found: dict[str, _Found] = {}
        self._images: dict[str, DumpedImage | None] = {}
        self._by_path: dict[str, list[FileRange]] = {}
        for entry in ranges:
            self._by_path.setdefault(entry.path, []).append(entry)
        self.ranges = sorted((*ranges, *self._unlisted(ranges)), key=lambda entry: entry.start)
        """What was mapped of files, in address order."""
        self._starts = [entry.start for entry in self.ranges]

    @property
    def paths(self) -> list[str]:
        """The files, in the order of their first address."""
        return list(self._by_path)

    def _unlisted(self, ranges: Sequence[FileRange]) -> list[FileRange]:
        """Find segments of files that the core does not list: older gcore names only what it dumps."""
        starts = [entry.start for entry in ranges]
        found = []
        lookups = 0
        for path in self.paths:
            elf = self._image(path)
            lookups += len(self._by_path[path]) * len(elf.segments) if elf is not None else 1
            if lookups > _MAX_LOOKUPS:
                raise DecodeError(
                    f"{len(ranges)} mapped files with more than {_MAX_LOOKUPS} segments for all their "
                    "mappings: the core is damaged"
                )
            for segment in elf.segments if elf is not None else ():
                if elf is None or segment.type != _PT_LOAD or not segment.file_size:
                    continue
                skew = segment.address % _PAGE
                start = segment.address + elf.bias - skew
                end = start + -(-(skew + segment.file_size) // _PAGE) * _PAGE
                index = bisect_right(starts, end - 1) - 1
                if index >= 0 and ranges[index].end > start:
                    continue
                try:
                    self._dumped(start, 1)  # something else lies there
                except MemoryReadError:
                    entry = FileRange(start, end, segment.offset - skew, path, self._by_path[path][0].deleted)
                    self._by_path[path].append(entry)
                    found.append(entry)
        return found

    def range_at(self, address: int) -> FileRange | None:
        """Return the file range that holds an address."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address < self.ranges[index].end:
            return self.ranges[index]
        return None

    def open(self, path: str) -> int:
        """Open a regular file below the root, whatever it is; the caller owns the descriptor.

        No symlink leads out of the root. Raises AttachError.
        """
        where = f"{path!r} below {self._sysroot}"
        try:
            pinned = open_below(self._root, path)
        except (OSError, ValueError) as error:
            raise AttachError(f"{where}: {getattr(error, 'strerror', None) or error}") from None
        try:
            status = os.fstat(pinned)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_SIZE:
                raise AttachError(f"{where} is no regular file of at most {MAX_FILE_SIZE} bytes")
            # An O_PATH descriptor cannot be read; this opens the very file that it pins.
            return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise AttachError(f"{where}: {error.strerror}") from None
        finally:
            os.close(pinned)

    def same_file(self, path: str) -> ElfFile:
        """Return the file behind `path` when it is the one that was mapped; closed by close().

        Raises AttachError with the reason why there is none.
        """
        found = self._found.get(path)
        if found is None:
            try:
                found = _Found(self._open_same(path))
            except (AttachError, DecodeError, MemoryReadError) as error:
                found = _Found(None, str(error))
            self._found[path] = found
        if found.elf is None:
            raise AttachError(found.reason)
        return found.elf

    def _open_same(self, path: str) -> ElfFile:
        first = next((entry for entry in self._by_path.get(path, []) if entry.offset == 0), None)
        head = b""
        if first is not None:
            with contextlib.suppress(MemoryReadError):
                head = self._dumped(first.start, _PAGE)
        if not head:
            raise AttachError(f"{path!r}: the core does not hold its first page, so no file can be trusted")
        elf = ElfFile.from_fd(self.open(path), path)
        elf.path = path
        try:
            image = ElfFile(head, path)
            ours, theirs = build_id(image) or self._build_id(path), build_id(elf)
            same = (
                ours == theirs if ours and theirs else elf.read(0, min(_PAGE, elf.size)) == head[: elf.size]
            )
            if not same:
                raise AttachError(
                    f"{path!r} below {self._sysroot} is another build than the core's "
                    f"({(theirs or b'').hex() or 'no build id'}, not {(ours or b'').hex() or 'none'})"
                )
        except BaseException:
            elf.close()
            raise
        return elf

    def _build_id(self, path: str) -> bytes | None:
        """Return the build id from the core when the note is behind the first page."""
        try:
            return build_id(self.dumped_image(path))
        except DecodeError:
            return None

    def dumped_image(self, path: str) -> DumpedImage:
        """Return what the core itself holds of a file. DecodeError when that has no ELF header."""
        return DumpedImage(self._by_path.get(path, []), self._dumped, path)

    def _image(self, path: str) -> DumpedImage | None:
        if path not in self._images:
            try:
                self._images[path] = self.dumped_image(path)
            except DecodeError:
                self._images[path] = None
        return self._images[path]

    def segment(self, entry: FileRange) -> Segment | None:
        """Return the ELF segment that was mapped as `entry`, from the headers that the core holds."""
        elf = self._image(entry.path)
        return _segment_at(elf, elf.bias, entry.start) if elf is not None else None

    def _bias(self, elf: ElfFile, path: str) -> int:
        first = next(entry for entry in self._by_path[path] if entry.offset == 0)
        return elf.load_bias(first.start, 0, executable=False, page_size=_PAGE)

    def read(self, address: int, length: int) -> bytes:
        """Read what the dump left out from the file that was mapped there. Raises MemoryReadError.

        Only segments that the process could not write to have in memory what they have in the file.
        """
        parts: list[bytes] = []
        at, end = address, address + length
        while not parts or at < end:
            entry = self.range_at(at)
            if entry is None:
                raise MemoryReadError(address, length, "not dumped, and no file was mapped there")
            piece = min(end, entry.end) - at
            parts.append(self._read_file(entry, at, piece))
            at += piece
        return b"".join(parts)

    def _read_file(self, entry: FileRange, address: int, length: int) -> bytes:
        try:
            elf = self.same_file(entry.path)
        except AttachError as error:
            raise MemoryReadError(address, length, f"not dumped; {error}") from None
        at = entry.offset + address - entry.start
        try:
            segment = _segment_at(elf, self._bias(elf, entry.path), address)
            if segment is None or segment.flags & _PF_W:
                raise MemoryReadError(address, length, f"not dumped: changed data of {entry.path!r}")
            # A mapping's last page is filled up with zeros behind the file's end.
            stored = max(0, min(length, elf.size - at))
            return elf.read(at, stored) + bytes(length - stored)
        except DecodeError as error:
            raise MemoryReadError(address, length, f"not dumped; {error}") from None

    def close(self) -> None:
        """Close all files and the root; twice is harmless."""
        for found in self._found.values():
            if found.elf is not None:
                found.elf.close()
        self._found.clear()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1


def _segment_at(elf: ElfFile, bias: int, address: int) -> Segment | None:
    """Return the loaded segment with a page at `address`: in memory no two share one, unlike in the file."""
    for segment in elf.segments:
        first = (segment.address + bias) // _PAGE * _PAGE
        last = -(-(segment.address + bias + segment.memory_size) // _PAGE) * _PAGE
        if segment.type == _PT_LOAD and first <= address < last:
            return segment
    return None
