# SPDX-License-Identifier: Apache-2.0
"""Compressed core files: told by their first bytes, unpacked into a sparse file that has no name.

A core is mostly zeros (stacks and heaps that were reserved, never used). What is zero is not written, so
a core of half a gigabyte takes a few megabytes of disk.
"""

from __future__ import annotations

import errno
import gzip
import importlib
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from rubyunwind.errors import DecodeError, NotSupported

__all__ = ["ZERO_BLOCK", "uncompressed"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
# What systemd-coredump and others write, too, but nothing here reads.
_OTHERS = {b"\xfd7zXZ\0": "xz -d", b"\x04\x22\x4d\x18": "lz4 -d", b"BZh": "bunzip2"}

ZERO_BLOCK = 1 << 16
"""Bytes that must all be zero to be left out of the file."""

_CHUNK = 1 << 20
_RESERVE = 64 << 20  # bytes of disk that are left to others
_ZSTD_WINDOW = 1 << 31  # largest window the format's long mode has


def uncompressed(fd: int, name: str) -> int:
    """Return a descriptor of the plain contents of `fd`: itself, or an unlinked file in $TMPDIR.

    Takes `fd` over, also when it raises; the caller owns what is returned. Raises DecodeError for damaged
    data or a full disk, NotSupported when nothing here can decompress it.
    """
    try:
        head = os.pread(fd, 6, 0)
        for magic, command in _OTHERS.items():
            if head.startswith(magic):
                raise NotSupported(
                    f"{name} is compressed in a way that is not read here: run `{command}` on it first",
                    feature="compressed core files",
                    needs="gzip or zstd",
                )
        if not head.startswith((_GZIP, _ZSTD)):
            return fd
        with _gzip(fd) if head.startswith(_GZIP) else _zstd(fd, name) as source:
            plain = _unpack(source, name)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return plain


def _unpack(source: IO[bytes], name: str) -> int:
    folder = tempfile.gettempdir()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as target:
        fd = target.fileno()
        status = os.fstatvfs(fd)
        room = max(0, status.f_bavail * status.f_frsize - _RESERVE)
        zeros = bytes(ZERO_BLOCK)
        size = written = 0
        while True:
            try:
                chunk = source.read(_CHUNK)
            except EOFError:
                raise DecodeError(
                    f"{name}: the compressed data is cut off after {size} plain bytes"
                ) from None
            except (gzip.BadGzipFile, zlib.error, _ZstdError) as error:
                raise DecodeError(f"{name}: damaged compressed data after {size} bytes: {error}") from None
            if not chunk:
                break
            for at in range(0, len(chunk), ZERO_BLOCK):
                block = chunk[at : at + ZERO_BLOCK]
                if block == (zeros if len(block) == ZERO_BLOCK else zeros[: len(block)]):
                    continue
                written += len(block)
                if written > room:
                    raise DecodeError(_full(name, folder, size + at))
                try:
                    os.pwrite(fd, block, size + at)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                        raise DecodeError(_full(name, folder, size + at)) from None
                    raise
            size += len(chunk)
        os.ftruncate(fd, size)
        return os.dup(fd)


def _full(name: str, folder: str, size: int) -> str:
    return (
        f"{name}: no room in {folder} to decompress it ({size} bytes so far); "
        "set TMPDIR to a directory with more room"
    )


@contextmanager
def _gzip(fd: int) -> Iterator[IO[bytes]]:
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(os.dup(fd), "rb") as packed, gzip.GzipFile(fileobj=packed, mode="rb") as source:
        yield cast("IO[bytes]", source)


class _ZstdError(Exception):
    """Whatever a zstd decoder says."""


class _Translated:
    """A reader whose own kind of error becomes _ZstdError, and its early end EOFError."""

    def __init__(self, reader: Any, error: type[Exception]) -> None:
        self._reader = reader
        self._error = error

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._reader.read(size))
        except self._error as error:
            raise _ZstdError(str(error)) from None


@contextmanager
def _zstd(fd: int, name: str) -> Iterator[IO[bytes]]:
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        program = shutil.which("zstd")
        if program is None:
            raise NotSupported(
                f"{name} is compressed by zstd: install the Python package zstandard or the program zstd",
                feature="zstd",
                needs="the Python package zstandard, or the program zstd",
            ) from None
        with _zstd_program(program, fd) as source:
            yield source
        return
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    with os.fdopen(os.dup(fd), "rb") as packed:
        reader = decoder.stream_reader(packed, read_across_frames=True)
        yield cast("IO[bytes]", _Translated(reader, zstandard.ZstdError))


@contextmanager
def _zstd_program(program: str, fd: int) -> Iterator[IO[bytes]]:
    process = subprocess.Popen(
        [program, "-d", "-c", "-q", "--long=31"], stdin=fd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield cast("IO[bytes]", _ProgramOutput(process))
    finally:
        process.kill()
        process.communicate()


class _ProgramOutput:
    """What a decompressing program prints; an exit status other than 0 is an error at the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        data = self._process.stdout.read(size)
        if not data:
            complaint = self._process.stderr.read(4096)
            if self._process.wait():
                raise _ZstdError(complaint.decode("utf-8", "replace").strip())
        return data
