# SPDX-License-Identifier: Apache-2.0
"""What a process has mapped, and how to open a mapped file without trusting the process.

The names in /proc/PID/maps are the target's choice and the reader often runs as root. A file is therefore
opened through the mapping itself where the kernel allows it, and otherwise strictly inside the target's
own root directory; only regular files of a bounded size are handed out.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from rubyunwind.errors import AttachError

__all__ = [
    "MAX_FILE_SIZE",
    "Mapping",
    "open_below",
    "open_in_root",
    "open_mapped",
    "parse_code",
    "parse_mappings",
    "read_mappings",
    "read_maps",
]

MAX_FILE_SIZE = 4 << 30
"""Largest mapped file that is opened, in bytes: far above any real program with its debug sections."""

_DELETED = b" (deleted)"

# Lines of what can be executed, each with those behind it of what is no file and may not be touched.
_CODE = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ ..x.*(?:\n[0-9a-f]+-[0-9a-f]+ ---. 0+ 00:00 0\b.*){0,16}", re.MULTILINE
)

# Bytes asked for at a time; the kernel gives a page or some.
_PIECE = 1 << 16

# openat2(2), Linux 5.6: the same number on every architecture, and glibc 2.36 has no wrapper for it.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10


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
    major, _, minor = device.partition(b":")
    # In this file the kernel escapes a newline and nothing else: a backslash is just a backslash.
    name = name.replace(b"\\012", b"\n")
    deleted = name.startswith(b"/") and name.endswith(_DELETED)
    return (
        flags[0:1] == b"r",
        flags[1:2] == b"w",
        flags[2:3] == b"x",
        int(offset, 16),
        os.makedev(int(major, 16), int(minor, 16)),
        int(inode),
        os.fsdecode(name.removesuffix(_DELETED) if deleted else name),
        deleted,
    )


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


def open_mapped(pid: int, mapping: Mapping) -> int:
    """Open the file behind `mapping` for reading. The caller owns the descriptor.

    /proc/PID/map_files names the very file that is mapped, also when it was deleted or replaced, but needs
    CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Without them the path is opened inside the target's root and
    must still be the mapped inode. Raises AttachError.
    """
    if not mapping.is_file:
        raise AttachError(
            f"process {pid}: {mapping.path or 'anonymous memory'} is no file that can be opened"
        )
    try:
        path_fd = os.open(
            f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}", os.O_PATH | os.O_CLOEXEC
        )
    except OSError:
        path_fd = open_in_root(pid, _inside_root(pid, mapping.path))
        checked = False
    else:
        checked = True
    try:
        status = os.fstat(path_fd)
        if not stat.S_ISREG(status.st_mode):
            _refuse(pid, mapping, "it is no regular file")
        if not checked and status.st_ino != mapping.inode:
            _refuse(pid, mapping, "the file has been replaced since; only root can still open the mapped one")
        if status.st_size > MAX_FILE_SIZE:
            _refuse(pid, mapping, f"its {status.st_size} bytes are above the limit of {MAX_FILE_SIZE}")
        # An O_PATH descriptor pins the file without opening it (no driver runs, no FIFO blocks). Now
        # that it is known to be a regular file, open that same file for reading.
        try:
            return os.open(
                f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
            )
        except OSError as error:
            _refuse(pid, mapping, error.strerror or str(error))
    finally:
        os.close(path_fd)


def _refuse(pid: int, mapping: Mapping, reason: str) -> NoReturn:
    raise AttachError(f"process {pid}: cannot open the mapped file {mapping.path!r}: {reason}")


def _inside_root(pid: int, path: str) -> str:
    """Return `path` of a maps file as seen from the target's root.

    The kernel prints the path from the reader's root. When the target is in a chroot that the reader can
    see, its root is a prefix; when it is in another mount namespace the path already starts there.
    """
    try:
        root = str(Path(f"/proc/{pid}/root").readlink()).rstrip("/")
    except OSError:
        return path
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


def open_in_root(pid: int, path: str) -> int:
    """Return an O_PATH descriptor of `path` inside the root directory of `pid`; the caller owns it.

    No symlink leads out of that root: openat2(2) resolves them all inside, and where a kernel or sandbox
    has no openat2 no symlink is followed at all. Raises AttachError.
    """
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise AttachError(f"process {pid}: cannot enter its root directory: {error.strerror}") from None
    try:
        return open_below(root, path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AttachError(f"process {pid}: cannot open {path!r} inside its root: {reason}") from None
    finally:
        os.close(root)


def open_below(root: int, path: str) -> int:
    """Return an O_PATH descriptor of `path` with the directory `root` as its root; the caller owns it.

    See open_in_root for what becomes of symlinks. Raises OSError or ValueError.
    """
    found = _openat2(root, path)
    return _walk(root, path) if found is None else found


def _openat2(root: int, path: str) -> int | None:
    """Return an O_PATH descriptor, or None where openat2 cannot be used; raises OSError."""
    import ctypes
    import errno
    import struct

    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError("the name holds a NUL byte")
    fd = libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_long(root),
        ctypes.c_char_p(raw),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    if fd >= 0:
        return int(fd)
    code = ctypes.get_errno()
    # EPERM is what seccomp filters of older container runtimes answer to a call they do not know.
    if code in (errno.ENOSYS, errno.EPERM):
        return None
    raise OSError(code, os.strerror(code))


def _walk(root: int, path: str) -> int:
    """Descend name by name without following a link: names in a maps file hold none."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names:
        raise ValueError("it names no file below the root")
    current = os.dup(root)
    try:
        for name in names:
            below = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = below
            if stat.S_ISLNK(os.fstat(current).st_mode):
                raise ValueError(f"{name!r} is a symbolic link")
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(current)
        raise
    return current
