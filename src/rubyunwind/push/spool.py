# SPDX-License-Identifier: Apache-2.0
"""Requests that wait, in order: in files of a directory, which outlive us, else in memory.

A file is written beside, synced and renamed, so it is there whole or not at all; what is damaged all the same
says so by its checksum. Neither the receiver nor anything secret is in it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import zlib
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rubyunwind.errors import RubyUnwindError
from rubyunwind.push.bodies import Request

__all__ = ["Spool"]

_MAGIC = b"RUNWPUSH"
_VERSION = 1
# magic, version, CRC-32 of what follows; then samples, size of the query, size of the body
_HEADER = struct.Struct("<8sII")
_COUNTS = struct.Struct("<QII")
_LOCK = "lock"
# Numbers give the order, no clock does. A name is of the format whose requests the file holds.
_NAME = re.compile(r"(\d{16})\.(otlp|pprof)")
_UNFINISHED = re.compile(r"\.\d{16}\.(otlp|pprof)\.part")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

MADE_ROOM = "the spool was full, the oldest made room"
TOO_LARGE = "larger than the whole spool"
DAMAGED = "damaged in the spool"
NOT_KEPT = "not sent before the end"


@dataclass(frozen=True, slots=True)
class _Entry:
    """`name` is the file's; "" if the request is in memory."""

    number: int
    samples: int
    size: int
    name: str = ""
    request: Request | None = None


class Spool:
    """Owns the directory's descriptor and its lock until it is closed. For one thread at a time.

    `limit` is in bytes, of compressed bodies. `lost` counts samples by reason, `unwritten` the requests that
    could not be written and wait in memory; `trouble` is why the last one could not ("" when it could).
    """

    def __init__(self, directory: str | os.PathLike[str] | None, format_: str, limit: int) -> None:
        """RubyUnwindError if the directory cannot be used, is not the user's own, or is in use."""
        self.lost: Counter[str] = Counter()
        self.unwritten = 0
        self.trouble = ""
        self.others = 0
        self._format = format_
        self._limit = limit
        self._entries: deque[_Entry] = deque()
        self._size = 0
        self._number = 0
        self._directory = self._lock = -1
        if directory is None:
            return
        path = Path(directory)
        try:
            self._open(path)
            self._look()
        except OSError as error:
            self.release()
            raise RubyUnwindError(
                f"cannot spool in {path}: {error.strerror or error}; name another directory"
            ) from error
        except BaseException:
            self.release()
            raise
        self._make_room(0)

    def _open(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self._directory)
        # Who may write there could have us send what they like, or take away what was not sent.
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RubyUnwindError(
                f"cannot spool in {path}: others may write there (owner {status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):o}); name a directory of your own that only you may write"
            )
        self._lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=self._directory)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise RubyUnwindError(
                f"cannot spool in {path}: process {owner} does; name another directory, or end it"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _look(self) -> None:
        """Take up what an earlier run has left. Files that are none of ours are left alone."""
        for name in sorted(os.listdir(self._directory)):  # noqa: PTH208 - of a descriptor
            if _UNFINISHED.fullmatch(name):
                self._remove(name)
            found = _NAME.fullmatch(name)
            if found is None:
                continue
            self._number = max(self._number, int(found[1]))
            if found[2] != self._format:
                self.others += 1
                continue
            with suppress(OSError):
                entry = self._entry(name, int(found[1]))
                if entry is not None:
                    self._entries.append(entry)
                    self._size += entry.size

    def _entry(self, name: str, number: int) -> _Entry | None:
        """Read what an entry says of itself; None if it is no file."""
        with os.fdopen(os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self._directory), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            head = file.read(_HEADER.size + _COUNTS.size)
        samples = (
            _COUNTS.unpack_from(head, _HEADER.size)[0] if len(head) == _HEADER.size + _COUNTS.size else 0
        )
        return _Entry(number, min(samples, status.st_size), status.st_size, name)

    def put(self, request: Request) -> None:
        """Take a request behind all others; the oldest are dropped for it where there is no room."""
        if len(request.body) > self._limit:
            self.lost[TOO_LARGE] += request.samples
            return
        self._make_room(len(request.body))
        self._number += 1
        entry = _Entry(self._number, request.samples, len(request.body), request=request)
        if self._directory >= 0:
            name = f"{self._number:016d}.{self._format}"
            try:
                self._write(name, request)
                entry = replace(entry, name=name, request=None)
                self.trouble = ""
            except OSError as error:
                self.unwritten += 1
                self.trouble = error.strerror or str(error)
        self._entries.append(entry)
        self._size += entry.size

    def _write(self, name: str, request: Request) -> None:
        part = f".{name}.part"
        query = request.query.encode()
        rest = _COUNTS.pack(request.samples, len(query), len(request.body)) + query + request.body
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self._directory)
            with os.fdopen(fd, "wb") as file:
                file.write(_HEADER.pack(_MAGIC, _VERSION, zlib.crc32(rest)))
                file.write(rest)
                file.flush()
                os.fsync(fd)
            os.rename(part, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.fsync(self._directory)
        except OSError:
            self._remove(part)
            raise

    def head(self) -> Request | None:
        """Return the oldest request, None if there is none. Those that cannot be read are dropped."""
        while self._entries:
            entry = self._entries[0]
            request = entry.request or self._read(entry.name)
            if request is not None:
                return request
            self.lost[DAMAGED] += entry.samples
            self.pop()
        return None

    def _read(self, name: str) -> Request | None:
        try:
            with os.fdopen(os.open(name, os.O_RDONLY | _FLAGS, dir_fd=self._directory), "rb") as file:
                return _request_in(file, self._limit)
        except OSError:
            return None

    def pop(self) -> None:
        """Drop the oldest request."""
        entry = self._entries.popleft()
        self._size -= entry.size
        if entry.name:
            self._remove(entry.name)

    def _make_room(self, size: int) -> None:
        while self._entries and self._size + size > self._limit:
            self.lost[MADE_ROOM] += self._entries[0].samples
            self.pop()

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._directory)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    @property
    def samples(self) -> int:
        """How many samples wait."""
        return sum(entry.samples for entry in self._entries)

    def close(self) -> None:
        """Let go of the directory; what is only in memory is lost, and counted. Twice is harmless."""
        for entry in [entry for entry in self._entries if not entry.name]:
            self.lost[NOT_KEPT] += entry.samples
            self._size -= entry.size
            self._entries.remove(entry)
        self.release()

    def release(self) -> None:
        """Close the descriptors, and with the last copy of them the lock goes."""
        for fd in (self._lock, self._directory):
            if fd >= 0:
                os.close(fd)
        self._lock = self._directory = -1


def _request_in(file: BinaryIO, limit: int) -> Request | None:
    """Read a request; None for what is not whole."""
    head = file.read(_HEADER.size)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or len(head) != _HEADER.size:
        return None
    magic, version, checksum = _HEADER.unpack(head)
    rest = file.read(_COUNTS.size + (1 << 16) + limit)
    if (magic, version, checksum) != (_MAGIC, _VERSION, zlib.crc32(rest)) or len(rest) < _COUNTS.size:
        return None
    samples, query_size, body_size = _COUNTS.unpack_from(rest)
    if len(rest) != _COUNTS.size + query_size + body_size:
        return None
    query = rest[_COUNTS.size : _COUNTS.size + query_size]
    return Request(samples, query.decode("utf-8", "replace"), rest[_COUNTS.size + query_size :])
