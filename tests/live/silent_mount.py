# SPDX-License-Identifier: Apache-2.0
"""A file system that this program serves as it is told to: it answers, keeps silent, or lies.

Run as a program it mounts a copy of a folder by /dev/fuse, and takes orders from stdin, one a line: "silent
OPERATION" (it never answers that one again), "fail OPERATION", "size BYTES" (what stat says of every file),
"shrink BYTES" (what is behind them is gone), "change" (other bytes in each answer), "forget" (the kernel is
to ask again for what it has read), "answer" (all of it again, and what was kept back). It says "done" each
time. It ends with its stdin, or after two minutes, and then whoever still waits for it gets an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SilentMount", "silent_mount"]

# linux/fuse.h: struct fuse_in_header, fuse_out_header, fuse_attr, fuse_entry_out (less its attr); operations.
_IN, _OUT, _ATTR = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ"), struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 17, 18, 25, 26
OPENDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 27, 29, 34, 36, 38, 42
_UNANSWERED = (FORGET, INTERRUPT, BATCH_FORGET)
_KEEP_CACHE = 2  # FOPEN_KEEP_CACHE
_INVALIDATE = 2  # FUSE_NOTIFY_INVAL_INODE
_NAMES = {"lookup": LOOKUP, "stat": GETATTR, "open": OPEN, "read": READ}
_MNT_DETACH = 2  # sys/mount.h
_LONGEST = 120  # seconds


class Server:
    """Answers what the kernel asks of a mount; files are numbered from 2, the folder is 1."""

    def __init__(self, source: str, at: str) -> None:
        self.names = sorted(path.name for path in Path(source).iterdir())
        self.data = [Path(source, name).read_bytes() for name in self.names]
        self.silent: set[int] = set()
        self.failing: set[int] = set()
        self.size = self.shrunk = -1
        self.changes = 0
        self.kept: list[bytes] = []
        self.at = at
        self.fd = os.open("/dev/fuse", os.O_RDWR)
        self.libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self.libc.mount(b"silent", at.encode(), b"fuse", 6, options):  # MS_NOSUID | MS_NODEV
            raise OSError(ctypes.get_errno(), "mount")

    def serve(self) -> None:
        os.set_blocking(self.fd, False)
        print("mounted", flush=True)
        orders = os.fdopen(0, "rb", 0)
        while True:
            ready, _, _ = select.select([self.fd, orders], [], [])
            if orders in ready:
                line = orders.readline().decode().split()
                if not line:
                    return
                self.obey(*line)
                print("done", flush=True)
            if self.fd in ready:
                try:
                    self.take(os.read(self.fd, 1 << 17))
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno != errno.ENOENT:  # the asker has gone
                        return

    def obey(self, what: str, argument: str = "") -> None:
        if what == "silent":
            self.silent.add(_NAMES[argument])
        elif what == "fail":
            self.failing.add(_NAMES[argument])
        elif what == "size":
            self.size = int(argument)
        elif what == "shrink":
            self.shrunk = int(argument)
        elif what == "change":
            self.changes = 1
        elif what == "forget":
            for number in range(2, 2 + len(self.names)):
                # struct fuse_notify_inval_inode_out: all of the file.
                self.send(0, struct.pack("<Qqq", number, 0, 0), notice=_INVALIDATE)
        elif what == "answer":
            self.silent.clear()
            self.failing.clear()
            self.size = self.shrunk = -1
            self.changes = 0
            kept, self.kept = self.kept, []
            for request in kept:
                self.take(request)

    def take(self, request: bytes) -> None:
        _, operation, unique, node, *_ = _IN.unpack_from(request)
        if operation in self.silent:
            self.kept.append(request)
        elif operation in self.failing:
            self.send(unique, b"", error=-errno.EIO)
        elif operation not in _UNANSWERED:
            body = request[_IN.size :]
            answer = self.answer(operation, node, body)
            if isinstance(answer, int):
                self.send(unique, b"", error=-answer)
            else:
                self.send(unique, answer)

    def answer(self, operation: int, node: int, body: bytes) -> bytes | int:
        if operation == INIT:
            # struct fuse_init_out of 7.31: version, readahead, flags, background, congestion, largest write.
            return struct.pack("<IIIIHHI", 7, 31, 0, 0, 64, 48, 1 << 16) + bytes(40)
        if operation == LOOKUP:
            name = body.split(b"\0")[0].decode()
            if name not in self.names:
                return errno.ENOENT
            number = self.names.index(name) + 2
            # Nothing that is said here holds for longer than the call.
            return _ENTRY.pack(number, 0, 0, 0, 0, 0) + self.attributes(number)
        if operation == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if operation in (OPEN, OPENDIR):
            return struct.pack("<QII", 1, _KEEP_CACHE, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            data = self.data[node - 2][: self.shrunk if self.shrunk >= 0 else None][offset : offset + size]
            if not self.changes:
                return data
            self.changes += 1
            return bytes(byte ^ self.changes & 0xFF for byte in data)
        if operation == STATFS:
            return bytes(80)
        return b"" if operation in (RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY) else errno.ENOSYS

    def attributes(self, number: int) -> bytes:
        mode = stat.S_IFDIR | 0o755 if number == 1 else stat.S_IFREG | 0o755
        size = 0 if number == 1 else len(self.data[number - 2]) if self.size < 0 else self.size
        return _ATTR.pack(number, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def send(self, unique: int, body: bytes, *, error: int = 0, notice: int = 0) -> None:
        try:
            os.write(self.fd, _OUT.pack(_OUT.size + len(body), error or notice, unique) + body)
        except OSError as trouble:
            if trouble.errno != errno.ENOENT:  # the asker has gone; or the kernel does not know the file
                raise


class SilentMount:
    """The mount as a test has it: `at` is where, `file` the first one in it, `tell` gives an order."""

    def __init__(self, source: Path, at: Path, server: subprocess.Popen[str]) -> None:
        self.at = at
        self.file = at / min(path.name for path in source.iterdir())
        self._server = server

    def tell(self, order: str) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(order, file=self._server.stdin, flush=True)
        assert self._server.stdout.readline() == "done\n"


@contextmanager
def silent_mount(source: Path, at: Path) -> Iterator[SilentMount]:
    """Serve a copy of what is in `source` at `at`; at the end whoever waits for it is let go."""
    at.mkdir()
    command = [sys.executable, "-I", __file__, str(source), str(at)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "mounted\n"
            yield SilentMount(source, at, server)
        finally:
            server.kill()  # its end of the connection closes, which answers everybody with an error
            server.wait()
            ctypes.CDLL(None).umount2(str(at).encode(), _MNT_DETACH)


if __name__ == "__main__":
    signal.alarm(_LONGEST)  # so that nobody hangs because of us
    Server(*sys.argv[1:]).serve()
