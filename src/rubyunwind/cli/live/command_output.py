# SPDX-License-Identifier: Apache-2.0
"""What a command writes while the table is on its terminal: kept, and shown when the terminal is free."""

from __future__ import annotations

import fcntl
import os
import tempfile

__all__ = ["CommandOutput"]

# The file is emptied when it is larger; of all that was written, the end is shown.
_LARGEST, _SHOWN = 8 << 20, 64 << 10


class CommandOutput:
    """A file without a name that is written to through `fd`. A context manager that owns the descriptor."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="rubyunwind-", buffering=0)  # noqa: SIM115
        self.fd = self._file.fileno()
        self._before = 0
        self._tail = b""
        # It has no name; whom the command runs as under sudo may open it as /dev/stdout.
        os.fchmod(self.fd, 0o666)
        # The command's writes go to the end also after the file was emptied.
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_APPEND)

    def __enter__(self) -> CommandOutput:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def trim(self) -> None:
        """Keep the file from filling the disk. Call it now and then."""
        size = os.fstat(self.fd).st_size
        if size > _LARGEST:
            self._tail = os.pread(self.fd, _SHOWN, size - _SHOWN)
            self._before += size
            os.ftruncate(self.fd, 0)

    @property
    def end(self) -> tuple[bytes, int]:
        """The end of what was written, from the beginning of a line on, and how many bytes were before it."""
        size = os.fstat(self.fd).st_size
        text = os.pread(self.fd, _SHOWN, max(0, size - _SHOWN))
        if len(text) < _SHOWN:
            text = (self._tail + text)[-_SHOWN:]
        left = self._before + size - len(text)
        if left > 0:
            first = text.find(b"\n") + 1
            text, left = text[first:], left + first
        return text, left
