# SPDX-License-Identifier: Apache-2.0
"""A program in a pseudo-terminal whose screen can be read, as a shell starts it: in a job of its own."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from .spinning import PATIENCE

pyte = pytest.importorskip("pyte", reason="pyte (PyPI), which interprets the screen, is not installed")

# The shell's part: it has the terminal, gives it to the job, and takes it back when that stops or ends, as
# bash does. `fg` comes as SIGUSR1, `bg` as SIGUSR2; what becomes of the job is written to descriptor 3.
_SHELL = """
import os, signal, sys
os.setsid()
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
job = os.fork()
if not job:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    for number in (signal.SIGTTOU, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    os.close(3)
    os.execvp(sys.argv[1], sys.argv[1:])
os.write(3, b"pid %d\\n" % job)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    try:
        os.tcsetpgrp(0, os.getpgrp())
    except OSError:
        pass
    if not os.WIFSTOPPED(status):
        os.write(3, b"end %d\\n" % os.waitstatus_to_exitcode(status))
        break
    os.write(3, b"stop\\n")
    if signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR1:
        os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
"""


class Screened:
    """`rubyunwind ARGUMENTS` on a screen. A context manager; nothing of it is left at the end.

    `raw` is all that it sent. The terminal's modes before it began are in `modes`.
    """

    def __init__(
        self,
        *arguments: str | int,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "rubyunwind.cli.main"),
    ) -> None:
        self._master, slave = os.openpty()
        self._slave = slave
        self.screen = pyte.HistoryScreen(columns, lines, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._resize(columns, lines)
        self.modes = termios.tcgetattr(slave)
        self._report, report = os.pipe()
        os.set_blocking(self._report, False)
        self._said = b""
        # bufferless and in descriptor 3, wherever the pipe is
        words = [sys.executable, *program, *map(str, arguments)]

        def as_three() -> None:
            os.dup2(report, 3)

        self.shell = subprocess.Popen(
            [sys.executable, "-c", _SHELL, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})},
            pass_fds=(3,) if report != 3 else (),
            preexec_fn=as_three,
        )
        os.close(report)
        self.until(lambda: b"pid " in self._said, "it does not start")
        self.pid = int(self._said.split()[1])

    def __enter__(self) -> Screened:
        return self

    def __exit__(self, *exc: object) -> None:
        for kill, number in ((os.killpg, self.pid), (os.kill, self.shell.pid)):
            with suppress(ProcessLookupError, PermissionError):
                kill(number, signal.SIGKILL)
        self.shell.wait()
        for fd in (self._master, self._slave, self._report):
            if fd >= 0:
                os.close(fd)

    def read(self, seconds: float = 0.02) -> None:
        """Take what it has sent so far."""
        ready, _, _ = select.select([self._master, self._report], [], [], seconds)
        if self._master in ready:
            with suppress(OSError):
                data = os.read(self._master, 65536)
                self.raw += data
                self._stream.feed(data)
        if self._report in ready:
            self._said += os.read(self._report, 4096)

    def until(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < end, f"{what}; the screen:\n{self.text}"
            self.read()

    @property
    def text(self) -> str:
        """The screen as text."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each row of the table, which begin with numbers."""
        lines = self.screen.display
        head = next((n for n, line in enumerate(lines) if " self total" in line or "cpu share" in line), -1)
        words = [line.split() for line in lines[head + 1 : -1]] if head >= 0 else []
        return [row for row in words if row and row[0][0].isdigit()]

    def wait_for(self, text: str) -> None:
        """Wait until a text is on the screen."""
        self.until(lambda: text in self.text, f"{text!r} does not appear")

    def wait_for_row(self, name: str, where: int | None = None) -> list[str]:
        """Wait until a row names a method, with its class or without; with `where` at that place."""

        def found() -> list[str] | None:
            rows = self.rows if where is None else self.rows[where : where + 1]
            return next((row for row in rows if any(word.rpartition("#")[2] == name for word in row)), None)

        self.until(found, f"{name!r} is not in the table")
        row = found()
        assert row is not None
        return row

    def type(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns: int, lines: int) -> None:
        self._resize(columns, lines)
        self.screen.resize(lines, columns)

    def _resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def kill(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def foreground(self) -> None:
        self.shell.send_signal(signal.SIGUSR1)

    def background(self) -> None:
        self.shell.send_signal(signal.SIGUSR2)

    def wait_for_stop(self, count: int = 1) -> None:
        self.until(lambda: self._said.count(b"stop") >= count, "it does not stop")

    def wait_unread(self) -> int:
        """Wait for its end while nobody reads what it sends."""
        end = time.monotonic() + PATIENCE
        while b"end " not in self._said:
            assert time.monotonic() < end, "it does not end"
            if select.select([self._report], [], [], 0.1)[0]:
                self._said += os.read(self._report, 4096)
        return int(self._said.rpartition(b"end ")[2])

    def wait(self) -> int:
        """Wait for its end and take all that it has sent; the exit status as Popen gives it."""
        self.until(lambda: b"end " in self._said, "it does not end")
        self.read()
        return int(self._said.rpartition(b"end ")[2])

    @property
    def on_alternate_screen(self) -> bool:
        return self.raw.count(b"\x1b[?1049h") > self.raw.count(b"\x1b[?1049l")

    @property
    def as_before(self) -> bool:
        """Whether the terminal is what it was: modes, the normal screen, a cursor, wrapping lines."""
        modes: Any = termios.tcgetattr(self._slave)
        return bool(
            modes == self.modes
            and not self.on_alternate_screen
            and not self.screen.cursor.hidden
            and pyte.modes.DECAWM in self.screen.mode
        )

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection does."""
        os.close(self._slave)
        os.close(self._master)
        self._slave = self._master = -1
