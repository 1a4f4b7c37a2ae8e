# SPDX-License-Identifier: Apache-2.0
"""A child process that asks for us where an answer may never come, and is given up then.

Who waits for a file system's server waits in the kernel, and nothing wakes him. So a deputy waits: a small
program of its own (this process may have threads, and shall have no more), which opens, reads and sends back.
It lives as long as a file that it reads is open. One that does not answer is killed, which may take effect
only when the server answers or ends; its file system is not asked again before that.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rubyunwind.errors import AttachError, GivenUp

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Iterator

    from rubyunwind.process.mappings import Mapping

__all__ = ["Deputies", "DistantFile", "deputies"]

# Seconds that an answer may take; so many may be waited at once, and this share of the time on average.
_LONGEST, _BURST, _SHARE = 0.5, 1.0, 0.1
# Less than that is no time for an answer.
_SHORTEST = 0.01
# Seconds for the program to start, in which no server is asked; and for it to end.
_START, _END = 5.0, 0.5
# Deputies that have not ended although they were killed: with more nobody is asked any more.
_MOST_LOST = 8
_PIECE = 128 << 10  # bytes of an answer: deputy_program.MOST
_BY_NAME = -1  # in the place of a device: files of this machine, by name

# Only these modules are needed, not what the package itself imports.
_PROGRAM = (
    "import sys, types; package = types.ModuleType('rubyunwind'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['rubyunwind'] = package; "
    "from rubyunwind.process.deputy_program import serve; serve(int(sys.argv[2]))"
)


class _SilentError(Exception):
    """No answer came in time."""


class DistantFile:
    """A file that a deputy reads. Owns a descriptor that only pins it.

    `size` and `stamp` are as in ElfFile; `trouble` says why it was given up; "" as long as it is not.
    """

    def __init__(
        self, of: Deputies, fd: int, device: int, name: str, stamp: tuple[int, int, int, int]
    ) -> None:
        self._of = of
        self._fd = fd
        self._device = device
        self._name = name
        self.stamp = stamp
        self.size = stamp[2]
        self.trouble = ""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset; fewer where the file has fewer. Raises GivenUp."""
        data = b""
        while len(data) < length:
            want = {"do": "read", "offset": offset + len(data), "length": min(length - len(data), _PIECE)}
            try:
                piece = self._of.ask(want, self._device, self._name, fd=self._fd)[0]
            except GivenUp as error:
                self.trouble = str(error)
                raise
            if not piece:
                break
            data += piece
        return data

    def close(self) -> None:
        """Let go of the file. Twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)  # of an O_PATH descriptor: nobody is asked
            self._fd = -1
            self._of.release()


class Deputies:
    """The deputy that is at work, and those that were given up. For all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._users = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._silent: dict[int, subprocess.Popen[bytes]] = {}  # given up, by device
        self._left, self._counted = _BURST, time.monotonic()

    def open(self, pid: int, mapping: Mapping) -> DistantFile:
        """Open the file behind a mapping. Raises AttachError, and GivenUp."""
        want = {"do": "open", "pid": pid, "mapping": asdict(mapping)}
        return self._open(want, mapping.device, mapping.path)

    def open_path(self, path: str) -> DistantFile:
        """Open a file of this machine. Raises GivenUp."""
        return self._open({"do": "path", "path": path}, _BY_NAME, path)

    def _open(self, want: dict[str, Any], device: int, name: str) -> DistantFile:
        with self.use():
            data, fd = self.ask(want, device, name)
            number, inode, size, changed = json.loads(data)
            self.hold()
            return DistantFile(self, fd, device, name, (number, inode, size, changed))

    def read_memory(self, fd: int, device: int, address: int, length: int) -> bytes:
        """Read memory of a process by the descriptor of its /proc/PID/mem. Raises GivenUp."""
        want = {"do": "memory", "offset": address, "length": length}
        return self.ask(want, device, f"memory at {address:#x}", fd=fd)[0]

    def read_source(self, path: str, most: int) -> tuple[bytes, int, int]:
        """Return the contents of a regular file, its size and when it was written to (unix ns).

        There are no contents if it has more than `most` bytes. Raises GivenUp.
        """
        text = b""
        with self.use():
            while True:
                want = {"do": "source", "path": path, "offset": len(text), "length": _PIECE}
                raw, _ = self.ask(want, _BY_NAME, path)
                about, _, piece = raw.partition(b"\n")
                size, changed = json.loads(about)
                text += piece
                if size > most:
                    return b"", size, changed
                # No more than its size: what the kernel makes up as it is read claims to have none.
                if not piece or len(text) >= size:
                    return text[:size], size, changed

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep the deputy for what is asked meanwhile."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Keep the deputy until `release`."""
        with self._lock:
            if self._owner != os.getpid():  # it is our parent's
                self.__init__()  # type: ignore[misc]
            self._users += 1

    def release(self) -> None:
        """End the deputy if nobody else holds it."""
        with self._lock:
            if self._owner != os.getpid():
                return
            self._users -= 1
            if not self._users:
                self._end()
            self.reap()

    def reap(self) -> None:
        """Bury those that were given up and have ended since."""
        for device, lost in list(self._silent.items()):
            if lost.poll() is not None:
                del self._silent[device]

    def ask(self, want: dict[str, Any], device: int, name: str, *, fd: int = -1) -> tuple[bytes, int]:
        """Return the answer, and the descriptor that came with it or -1.

        `fd` (borrowed) goes along. Raises AttachError for a process that has ended, else GivenUp.
        """
        with self._lock:
            self.reap()
            if device in self._silent:
                raise GivenUp(f"{name}: its file system does not answer")
            if len(self._silent) >= _MOST_LOST:
                raise GivenUp(f"{name}: not asked for, as {_MOST_LOST} file systems do not answer")
            now = time.monotonic()
            self._left = min(_BURST, self._left + (now - self._counted) * _SHARE)
            self._counted = now
            if self._left < _SHORTEST:
                raise GivenUp(f"{name}: file systems with a server take too long to answer")
            self._start()
            began = time.monotonic()
            try:
                answer, given = self._exchange(want, fd, min(_LONGEST, self._left))
            except _SilentError:
                self._give_up(device)
                raise GivenUp(f"{name}: its file system does not answer") from None
            finally:
                self._left -= time.monotonic() - began
        code, _, rest = answer.partition(b" ")
        if code == b"0":
            return rest, given
        text = rest.decode("utf-8", "surrogateescape")
        if want["do"] == "open" and not Path(f"/proc/{want['pid']}").exists():
            raise AttachError(f"process {want['pid']}: it has ended")
        raise GivenUp(text if text.startswith("process ") else f"{name}: {text}")

    def _start(self) -> None:
        if self._socket is not None:
            return
        import socket
        import subprocess

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        package = str(Path(__file__).parent.parent)
        try:
            self._child = subprocess.Popen(
                [_python(), "-I", "-S", "-c", _PROGRAM, package, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is not for it
            )
        except OSError as error:
            ours.close()
            raise GivenUp(f"no program could be started to read it: {error.strerror}") from None
        finally:
            theirs.close()
        self._socket = ours
        began = time.monotonic()
        try:
            ours.settimeout(_START)
            said = ours.recv(16)
        except OSError:
            said = b""
        if said != b"ready":
            self._left -= time.monotonic() - began  # else it would be tried again for each file
            self._end()
            raise GivenUp("the program that is to read it did not start")

    def _exchange(self, want: dict[str, Any], fd: int, limit: float) -> tuple[bytes, int]:
        import socket

        assert self._socket is not None
        try:
            self._socket.settimeout(limit)
            request = json.dumps(want).encode()
            socket.send_fds(self._socket, [request], [fd] if fd >= 0 else [])
            answer, given, _, _ = socket.recv_fds(self._socket, _PIECE + 4096, 1)
        except OSError:  # a time-out, too; else somebody has killed it
            raise _SilentError from None
        if not answer:
            raise _SilentError
        for one in given:
            os.set_inheritable(one, False)
        return answer, given[0] if given else -1

    def _give_up(self, device: int) -> None:
        child = self._child
        self._close()
        if child is not None:
            child.kill()
            self._silent[device] = child

    def _end(self) -> None:
        child = self._child
        self._close()
        if child is not None:
            import subprocess

            began = time.monotonic()
            try:
                child.wait(_END)
            except subprocess.TimeoutExpired:  # it closes a file, say
                child.kill()
                self._left -= time.monotonic() - began
                self._silent[_BY_NAME - child.pid] = child

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._child = None


def _python() -> str:
    """Return a Python to run the program with: a program that embeds one may be anything."""
    if Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False):
        return sys.executable
    found = shutil.which("python3")
    if found is None:
        raise GivenUp("no Python was found to read it with: python3 is in no directory of PATH")
    return found


deputies = Deputies()
"""Those of this process."""
