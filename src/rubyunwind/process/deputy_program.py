# SPDX-License-Identifier: Apache-2.0
"""What a deputy runs: it opens and reads files for another process, which does not wait for it for ever.

A program of its own, of the standard library and of the module that opens mapped files. One message is a
request or its answer (socket(7), SOCK_SEQPACKET); descriptors go along with it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from typing import Any

from rubyunwind.errors import AttachError
from rubyunwind.process.mapped_files import open_path_of
from rubyunwind.process.mappings import Mapping

__all__ = ["MOST", "serve"]

MOST = 128 << 10
"""Bytes of an answer; a socket takes 200 KiB by default."""


def serve(number: int) -> None:
    """Answer what comes over a socket until its other end is closed."""
    with socket.socket(fileno=number) as asked:
        asked.send(b"ready")
        while True:
            request, given, _, _ = socket.recv_fds(asked, 1 << 16, 1)
            if not request:
                return
            answer, sent = _answer(json.loads(request), given[0] if given else -1)
            socket.send_fds(asked, [answer], [sent] if sent >= 0 else [])
            # Behind the answer: a close may wait for the file's server, too.
            for fd in (*given, sent):
                if fd >= 0:
                    os.close(fd)


def _answer(request: dict[str, Any], fd: int) -> tuple[bytes, int]:
    """Return an answer, which begins with an errno and what goes with it, and a descriptor or -1."""
    try:
        if request["do"] == "memory":
            return _good(os.pread(fd, request["length"], request["offset"])), -1
        if request["do"] == "read":
            return _good(_read(f"/proc/self/fd/{fd}", request["offset"], request["length"])[0]), -1
        if request["do"] == "source":
            data, status = _read(request["path"], request["offset"], request["length"])
            return _good(json.dumps([status.st_size, status.st_mtime_ns]).encode() + b"\n" + data), -1
        if request["do"] == "path":
            path_fd = os.open(request["path"], os.O_PATH | os.O_CLOEXEC)
        else:
            path_fd = open_path_of(request["pid"], Mapping(**request["mapping"]))
        status = os.fstat(path_fd)
        # Whether it can be opened is known now, and not in the middle of its tables.
        _read(f"/proc/self/fd/{path_fd}", 0, 1)
        stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
        return _good(json.dumps(stamp).encode()), path_fd
    except AttachError as error:
        return f"{errno.ENOENT} {error}".encode(errors="surrogateescape"), -1
    except (OSError, OverflowError, ValueError) as error:
        code = getattr(error, "errno", None) or errno.EINVAL
        return f"{code} {os.strerror(code)}".encode(), -1


def _good(data: bytes) -> bytes:
    return b"0 " + data


def _read(path: str, offset: int, length: int) -> tuple[bytes, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise AttachError("is no regular file, and not read")
        return os.pread(fd, min(length, MOST), offset), status
    finally:
        os.close(fd)
