# SPDX-License-Identifier: Apache-2.0
"""Tables kept on disk between runs. What cannot be read, or is not ours, counts as not there."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
import zlib
from pathlib import Path

__all__ = ["FORMAT_VERSION", "TableCache", "default_cache_dir"]

FORMAT_VERSION = 3
MAX_ENTRY = 256 << 20  # bytes
MAX_TOTAL = 512 << 20
"""Bytes of a directory: beyond it what was not used for longest goes. A libruby takes some 4 MB."""

_SUFFIX = ".deltas"
_USED = 3600.0  # seconds after which a use is noted again
_ABANDONED = 3600.0  # seconds after which an entry that is being written is written by nobody
_LEFT = 0.75  # share of the room that is left when some is made

_MAGIC = b"RUNWCFI\0"
# magic, format version, CRC-32 of what follows the header, its size; then the digest of the sources
_HEADER = struct.Struct("<8sIIQ32s")


def default_cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/rubyunwind, or ~/.cache/rubyunwind."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path there is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "rubyunwind"


class TableCache:
    """A directory with one file per key, made when the first entry is stored.

    An entry is only given back for the digest (32 bytes) it was stored with: keys come out of profiled
    files, and one file could claim another's build id. Nothing here raises for what is on the disk.
    The directory has to be the user's own, so that root neither reads nor writes in somebody else's.
    It is kept below `max_total` bytes, as a host sees many versions of its files.
    """

    def __init__(self, directory: Path | None = None, max_total: int = MAX_TOTAL) -> None:
        self._given = directory
        self._max_total = max_total

    def get(self, key: str, digest: bytes) -> bytes | None:
        """Return what was stored under `key` for that digest, or None."""
        directory = self._open(create=False)
        if directory < 0:
            return None
        try:
            fd = os.open(
                _name(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory
            )
            with os.fdopen(fd, "rb") as file:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ENTRY:
                    return None
                data = file.read(MAX_ENTRY)
                if time.time() - status.st_mtime > _USED:
                    os.utime(fd)
        except OSError:
            return None
        finally:
            os.close(directory)
        if len(data) < _HEADER.size:
            return None
        magic, version, checksum, size, stored_for = _HEADER.unpack_from(data)
        payload = data[_HEADER.size :]
        if (magic, version, size, stored_for) != (_MAGIC, FORMAT_VERSION, len(payload), digest):
            return None
        return payload if zlib.crc32(payload) == checksum else None

    def put(self, key: str, digest: bytes, payload: bytes) -> bool:
        """Store `payload`; the entry is replaced as a whole or not at all. False when it was not possible."""
        directory = self._open(create=True)
        if directory < 0:
            return False
        name = _name(key)
        temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, zlib.crc32(payload), len(payload), digest)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(header)
                file.write(payload)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            self._make_room(directory, keep=name)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            return False
        finally:
            os.close(directory)
        return True

    def _make_room(self, directory: int, keep: str) -> None:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if _SUFFIX in entry.name]
        now = time.time()
        kept: list[tuple[float, int, str]] = []
        for entry in found:
            with contextlib.suppress(OSError):  # somebody else makes room, too
                status = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX):
                    kept.append((status.st_mtime, status.st_size, entry.name))
                elif now - status.st_mtime > _ABANDONED:  # its writer was killed
                    os.unlink(entry.name, dir_fd=directory)
        total = sum(size for _, size, _ in kept)
        if total <= self._max_total:
            return
        for _, size, name in sorted(kept):
            if name != keep and total > self._max_total * _LEFT:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)
                total -= size

    def _open(self, *, create: bool) -> int:
        """Return a descriptor of the directory, or -1 when it is missing or not the user's own."""
        try:
            path = self._given if self._given is not None else default_cache_dir()
            if create:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, RuntimeError):  # RuntimeError: this user has no home directory
            return -1
        if os.fstat(fd).st_uid == os.geteuid():
            return fd
        os.close(fd)
        return -1


def _name(key: str) -> str:
    if not key.isalnum() or len(key) > 200:
        raise ValueError(f"cache keys are short hexadecimal names, not {key!r}")
    return f"{key}{_SUFFIX}"
