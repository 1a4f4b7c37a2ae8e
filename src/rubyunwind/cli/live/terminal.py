# SPDX-License-Identifier: Apache-2.0
"""The terminal while a live table is on it, and how it is given back."""

from __future__ import annotations

import os
import select
import signal
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rubyunwind.cli.live.cells import cells
from rubyunwind.cli.live.screen import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rubyunwind.cli.live.screen import Line

__all__ = ["Terminal"]

# Private modes as xterm has them and the others took over: the alternate screen with the cursor's place
# (1049), no cursor (25), no wrapping (7): a line that is wider than we think stays in its own line.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[0m\x1b[2J"
_LEAVE = "\x1b[0m\x1b[2J\x1b[H\x1b[?7h\x1b[?25h\x1b[?1049l"

# Select graphic rendition (ECMA-48): what is no colour is there with NO_COLOR, too.
_PLAIN = {"title": "1", "head": "7", "selected": "7", "warn": "1"}
_COLOURS = {
    **_PLAIN, "dim": "2", "foot": "2", "ruby": "31", "cfunc": "33", "native": "36", "kernel": "35",
    "gc": "32", "jit": "34", "unknown": "2", "error": "1;31", "none": "2", "warn": "1;33",
}  # fmt: skip

_FALLBACK = Size(80, 24)  # of a terminal that does not know its size
_LARGEST = Size(1000, 500)
# Seconds that giving the terminal back may wait for one that takes no more bytes.
_PATIENCE = 0.5


class Terminal:
    """A context manager that has the terminal: keys come at once, and a screen of our own is shown.

    `keys` and `screen` are descriptors of a terminal, borrowed. Writing never blocks where the terminal can
    be opened anew: a screen that does not go out waits, and the next is not drawn until then. Leaving gives
    the terminal back as it was, and what was typed ahead for us is thrown away. Use `suspend` on SIGTSTP.
    """

    def __init__(self, keys: int, screen: int, *, colours: bool, encoding: str = "utf-8") -> None:
        self._keys = keys
        self._borrowed = self._out = screen
        self._styles = _COLOURS if colours else _PLAIN
        self._encoding = encoding
        self._shown: list[Line] = []
        self._size = Size(0, 0)
        self._pending = b""
        self._saved: list[Any] | None = None
        self.lost = False  # it is gone, or took nothing more when it was given back

    def __enter__(self) -> Terminal:
        # An open file description of our own: to make the shell's one non-blocking would disturb the others.
        with suppress(OSError):
            self._out = os.open(
                os.ttyname(self._borrowed), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        try:
            self.take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.give_back()
        finally:
            if self._out != self._borrowed:
                os.close(self._out)
                self._out = self._borrowed

    def take(self) -> None:
        """Take the terminal, unless it is taken."""
        if self._saved is not None:
            return
        saved = termios.tcgetattr(self._keys)
        ours = [*saved[:6], list(saved[6])]
        # Signals stay: Ctrl-C and Ctrl-Z reach a command that we have started, too. Ctrl-S would stop us.
        ours[0] &= ~(termios.IXON | termios.ICRNL | termios.INLCR)
        ours[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
        ours[6][termios.VMIN], ours[6][termios.VTIME] = 1, 0
        self._saved = saved
        termios.tcsetattr(self._keys, termios.TCSANOW, ours)
        self._send(_ENTER.encode())
        self.redraw()

    def give_back(self) -> None:
        """Restore the terminal, unless it is not taken. One that is gone is no error."""
        if self._saved is None:
            return
        saved = self._saved
        self._pending += _LEAVE.encode()
        end = time.monotonic() + _PATIENCE
        while self._flush() and time.monotonic() < end:
            select.select([], [self._out], [], 0.05)
        self.lost |= bool(self._pending)
        self._pending = b""
        # In the background this would stop us, half-way.
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            with suppress(termios.error):
                termios.tcflush(self._keys, termios.TCIFLUSH)
                termios.tcsetattr(self._keys, termios.TCSANOW, saved)
        finally:
            signal.signal(signal.SIGTTOU, before)
        # Only now: a second signal may quit in the midst of this, and then begins it again.
        self._saved = None

    def suspend(self) -> None:
        """Give the terminal back, stop this process as Ctrl-Z does, and take it again once it goes on.

        While another job has the terminal, it is not taken: the process stops again.
        """
        self.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        with suppress(OSError):
            if os.tcgetpgrp(self._keys) == os.getpgrp():
                self.take()

    @property
    def taken(self) -> bool:
        """Whether the terminal is ours now."""
        return self._saved is not None

    @property
    def size(self) -> Size:
        """The size it has now."""
        try:
            found = os.get_terminal_size(self._borrowed)
        except OSError:
            return _FALLBACK
        return Size(
            min(found.columns, _LARGEST.columns) or _FALLBACK.columns,
            min(found.lines, _LARGEST.lines) or _FALLBACK.lines,
        )

    def read(self) -> bytes:
        """Return what was typed, b"" if the terminal is gone. Call it when the descriptor is readable."""
        try:
            data = os.read(self._keys, 4096)
        except OSError:
            data = b""
        self.lost |= not data
        return data

    def redraw(self) -> None:
        """Forget what the terminal shows, so that the next screen is drawn as a whole."""
        self._shown = []
        self._size = Size(0, 0)

    def draw(self, lines: Sequence[Line], size: Size) -> bool:
        """Show lines: only those that changed are sent, all at once. False if the last did not go out yet."""
        if self._saved is None or self._flush():
            return False
        whole = size != self._size
        parts = ["\x1b[0m\x1b[2J"] if whole else []
        for number, line in enumerate(lines):
            if whole or number >= len(self._shown) or self._shown[number] != line:
                # Behind a full line the cursor still stands on its last cell, which this would erase.
                rest = "\x1b[K" if cells(line.text) < size.columns else ""
                parts.append(f"\x1b[{number + 1};1H{self._styled(line)}{rest}")
        self._shown, self._size = list(lines), size
        if parts:
            self._send("".join(parts).encode(self._encoding, "replace"))
        return True

    def _styled(self, line: Line) -> str:
        style = self._styles.get(line.style)
        return f"\x1b[{style}m{line.text}\x1b[0m" if style and line.text else line.text

    def _send(self, data: bytes) -> None:
        self._pending += data
        self._flush()

    def _flush(self) -> bool:
        """Write what waits; return whether something still does."""
        while self._pending:
            try:
                written = os.write(self._out, self._pending)
            except BlockingIOError:
                return True
            except OSError:
                self.lost, self._pending = True, b""
                return False
            self._pending = self._pending[written:]
        return False
