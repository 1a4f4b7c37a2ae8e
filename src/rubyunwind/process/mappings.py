# SPDX-License-Identifier: Apache-2.0
"""What a process has mapped: the lines of /proc/PID/maps."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache

from rubyunwind.errors import AttachError

__all__ = ["Mapping", "parse_code", "parse_device", "parse_mappings", "read_mappings", "read_maps"]

_DELETED = b" (deleted)"

# Lines of what can be executed, each with those behind it of what is no file and may not be touched.
_CODE = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ ..x.*(?:\n[0-9a-f]+-[0-9a-f]+ ---. 0+ 00:00 0\b.*){0,16}", re.MULTILINE
)

# Bytes asked for at a time; the kernel gives a page or some.
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps: the bytes [start, end) of a process, `offset` bytes into a file.

    `path` is what the kernel prints: a file's name, "[stack]", "[vdso]", "//anon", or "" for anonymous
    memory; bytes that are no UTF-8 are surrogates (surrogateescape). `deleted` says that the kernel marked
    the name as gone (unlinked or replaced since). `device` is an os.makedev() number.
    """

    start: int
    end: int
    readable: bool
    writable: bool
    executable: bool
    offset: int
    device: int
    inode: int
    path: str
    deleted: bool = False

    @property
    def is_file(self) -> bool:
        """Whether a file of some file system is behind it."""
        return self.inode != 0 and self.path.startswith("/")

    @property
    def file_key(self) -> tuple[int, int, str]:
        """Equal for all mappings of one file."""
        return (self.device, self.inode, self.path)


def parse_code(text: bytes) -> list[Mapping]:
    """Parse those lines of a maps file that are of code, or of memory reserved for more of it.

    They are a quarter of the lines of a Ruby. A process that maps a million other regions has no more.
    """
    return parse_mappings(b"\n".join(_CODE.findall(text)))


def parse_mappings(text: bytes) -> list[Mapping]:
    """Parse the contents of a maps file. A line that is cut short, or is of another form, is left out."""
    mappings = []
    for line in text.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) >= 5:
            with contextlib.suppress(ValueError, OverflowError):
                mappings.append(_mapping(fields))
    return mappings


def _mapping(fields: list[bytes]) -> Mapping:
    start, _, end = fields[0].partition(b"-")
    return Mapping(int(start, 16), int(end, 16), *_region(*fields[1:]))


@lru_cache(maxsize=4096)
def _region(
    flags: bytes, offset: bytes, device: bytes, inode: bytes, name: bytes = b""
) -> tuple[bool, bool, bool, int, int, int, str, bool]:
    """Return the fields of a Mapping behind its addresses: the same in all processes that map a file."""
    # In this file the kernel escapes a newline and nothing else: a backslash is just a backslash.
    name = name.replace(b"\\012", b"\n")
    deleted = name.startswith(b"/") and name.endswith(_DELETED)
    return (
        flags[0:1] == b"r",
        flags[1:2] == b"w",
        flags[2:3] == b"x",
        int(offset, 16),
        parse_device(device),
        int(inode),
        os.fsdecode(name.removesuffix(_DELETED) if deleted else name),
        deleted,
    )


@lru_cache(maxsize=4096)
def parse_device(device: bytes) -> int:
    """Return the os.makedev() number that "08:01" of a maps file stands for."""
    major, _, minor = device.partition(b":")
    return os.makedev(int(major, 16), int(minor, 16))


def read_mappings(pid: int) -> list[Mapping]:
    """Return the mappings of `pid` in address order; empty for a zombie or a kernel thread.

    Raises AttachError when there is no such process or it may not be looked at.
    """
    return parse_mappings(read_maps(pid))


def read_maps(pid: int) -> bytes:
    """Return what the maps file of `pid` says. Raises as read_mappings does."""
    try:
        fd = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(fd, _PIECE), b""))
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        raise AttachError(f"process {pid}: no such process (it may have just exited)") from None
    except PermissionError:
        raise AttachError(
            f"process {pid}: its memory map may not be read; run as root, or as the process's user"
        ) from None
