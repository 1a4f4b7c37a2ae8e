# SPDX-License-Identifier: Apache-2.0
"""How to open a mapped file without trusting the process that has mapped it.

The names in /proc/PID/maps are the target's choice and the reader often runs as root. A file is therefore
opened through the mapping itself where the kernel allows it, and otherwise strictly inside the target's
own root directory; only regular files of a bounded size are handed out, and none for which anybody but the
kernel would be asked: that one may never answer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rubyunwind.errors import AttachError
from rubyunwind.process.mounts import mounts

if TYPE_CHECKING:
    from rubyunwind.process.mappings import Mapping

__all__ = [
    "MAX_FILE_SIZE",
    "NotLocal",
    "open_below",
    "open_in_root",
    "open_local",
    "open_mapped",
    "open_path_of",
]

MAX_FILE_SIZE = 4 << 30
"""Largest mapped file that is opened, in bytes: far above any real program with its debug sections."""

# openat2(2), Linux 5.6: the same number on every architecture, and glibc 2.36 has no wrapper for it.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
_RESOLVE_CACHED = 0x20  # since Linux 5.12


def open_mapped(pid: int, mapping: Mapping) -> int:
    """Open the file behind `mapping` for reading. The caller owns the descriptor.

    /proc/PID/map_files names the very file that is mapped, also when it was deleted or replaced, but needs
    CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. Without them the path is opened inside the target's root and
    must still be the mapped inode. Raises AttachError, and NotLocal for a file that is left to a deputy.
    """
    if not mapping.is_file:
        raise AttachError(
            f"process {pid}: {mapping.path or 'anonymous memory'} is no file that can be opened"
        )
    if mapping.device not in mounts.local_devices() and mounts.distant(pid, {mapping.device}):
        raise NotLocal(pid, mapping)
    path_fd, exact = _pin(pid, mapping, wait=False)
    try:
        # Not before it is pinned: something else may be mounted or mapped there by now.
        if not mounts.is_local(pid, path_fd):
            raise NotLocal(pid, mapping)
        _check(pid, mapping, path_fd, exact)
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


def open_path_of(pid: int, mapping: Mapping) -> int:
    """Return an O_PATH descriptor of the file behind `mapping`, however long that takes; the caller owns it.

    For a deputy: whoever serves the file is asked. Raises AttachError, OSError.
    """
    path_fd, exact = _pin(pid, mapping, wait=True)
    try:
        _check(pid, mapping, path_fd, exact)
    except BaseException:
        os.close(path_fd)
        raise
    return path_fd


class NotLocal(AttachError):
    """A mapped file whose server has to be asked for it, and may not answer."""

    def __init__(self, pid: int, mapping: Mapping) -> None:
        super().__init__(
            f"process {pid}: the mapped file {mapping.path!r} is of a file system with a server: a deputy "
            "has to read it"
        )


def _pin(pid: int, mapping: Mapping, *, wait: bool) -> tuple[int, bool]:
    """Return an O_PATH descriptor of a mapped file, and whether it is certainly that one.

    Raises AttachError, and unless it may `wait`, NotLocal where a name would have to be asked for.
    """
    try:
        path = f"/proc/{pid}/map_files/{mapping.start:x}-{mapping.end:x}"
        return os.open(path, os.O_PATH | os.O_CLOEXEC), True
    except OSError:
        pass
    inside = _inside_root(pid, mapping.path)
    if wait:
        return open_in_root(pid, inside), False
    try:
        return open_in_root(pid, inside, cached=True), False
    except _NotCachedError:
        # Of a file that is mapped the kernel knows the way: somebody wants to be asked for it, or this is a
        # kernel before 5.12, which cannot be told not to ask.
        if not mounts.only_local(pid):
            raise NotLocal(pid, mapping) from None
    return open_in_root(pid, inside), False


def _check(pid: int, mapping: Mapping, path_fd: int, exact: bool) -> None:
    """Refuse what is no regular file, not the one that is mapped, or too large."""
    status = os.fstat(path_fd)
    if not stat.S_ISREG(status.st_mode):
        _refuse(pid, mapping, "it is no regular file")
    if not exact and status.st_ino != mapping.inode:
        _refuse(pid, mapping, "the file has been replaced since; only root can still open the mapped one")
    if status.st_size > MAX_FILE_SIZE:
        _refuse(pid, mapping, f"its {status.st_size} bytes are above the limit of {MAX_FILE_SIZE}")


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


class _NotCachedError(Exception):
    """The way to a file is not known to the kernel, or it cannot be told to take no other one."""


def open_in_root(pid: int, path: str, *, cached: bool = False) -> int:
    """Return an O_PATH descriptor of `path` inside the root directory of `pid`; the caller owns it.

    With `cached` no file system is asked for a name. No symlink leads out of that root: openat2(2) resolves
    them all inside, and where a kernel or sandbox has no openat2 no symlink is followed at all. Raises
    AttachError.
    """
    try:
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise AttachError(f"process {pid}: cannot enter its root directory: {error.strerror}") from None
    try:
        if not cached:
            return open_below(root, path)
        try:
            found = _openat2(root, path, _RESOLVE_CACHED)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINVAL):
                raise _NotCachedError from None
            raise
        if found is None:
            raise _NotCachedError
        return found
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AttachError(f"process {pid}: cannot open {path!r} inside its root: {reason}") from None
    finally:
        os.close(root)


def open_local(path: str) -> int:
    """Return an O_PATH descriptor of a file by a name that anybody may have chosen; the caller owns it.

    -1 where somebody but the kernel would have to be asked, or may have to be. Raises OSError, ValueError.
    """
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = _openat2(root, os.path.abspath(path), _RESOLVE_CACHED)  # noqa: PTH100 - follows no link
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINVAL):
            return -1
        raise
    finally:
        os.close(root)
    if found is None:
        return -1
    if mounts.is_local(os.getpid(), found):
        return found
    os.close(found)
    return -1


def open_below(root: int, path: str) -> int:
    """Return an O_PATH descriptor of `path` with the directory `root` as its root; the caller owns it.

    See open_in_root for what becomes of symlinks. Raises OSError or ValueError.
    """
    found = _openat2(root, path)
    return _walk(root, path) if found is None else found


def _openat2(root: int, path: str, besides: int = 0) -> int | None:
    """Return an O_PATH descriptor, or None where openat2 cannot be used; raises OSError."""
    import ctypes
    import struct

    resolve = _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS | besides
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, resolve)
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
