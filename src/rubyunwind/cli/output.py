# SPDX-License-Identifier: Apache-2.0
"""Where a recording goes: checked before it begins, removed again if nothing came of it."""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS, format_of

if TYPE_CHECKING:
    from rubyunwind.profiler.recording import Profile

__all__ = ["Output"]

_DEFAULT_FORMAT = "flamegraph"


class Output:
    """An output file that is open, or stdout (then `path` is None). A context manager that owns the file."""

    def __init__(self, path: Path | None, format_: str) -> None:
        self.path = path
        self.format = format_
        self._written = False
        if path is None:
            self._file: BinaryIO = sys.stdout.buffer
            self._new = False
            return
        try:
            self._new = not path.exists()
            # Not truncated: what is there is replaced when there is something to replace it with.
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        except OSError as error:
            raise RubyUnwindError(
                f"cannot write {path}: {error.strerror}; nothing was recorded. Name another file with -o"
            ) from error
        self._give_to_sudo_user()

    @classmethod
    def choose(cls, output: str | None, format_: str | None, what: str) -> Output:
        """Open the output that was asked for; the format follows from the suffix, or is a flame graph.

        RubyUnwindError if it cannot be opened, or the format needs what is not installed.
        """
        if format_ is None:
            format_ = format_of(output or "") or _DEFAULT_FORMAT
        FORMATS[format_].check()
        if output == "-":
            return cls(None, format_)
        if output is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            output = f"rubyunwind-{what}-{stamp}{FORMATS[format_].suffix}"
        return cls(Path(output), format_)

    def write(self, profile: Profile) -> None:
        """Write the profile. RubyUnwindError if the file refuses it."""
        try:
            if self.path is not None and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
            self._written = True
            profile.write(self._file, self.format)
            self._file.flush()
        except BrokenPipeError:
            # The reader has seen enough; nothing more may be written there, when it is closed neither.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
        except OSError as error:
            raise RubyUnwindError(f"cannot write {self.path or 'to stdout'}: {error.strerror}") from error

    def _give_to_sudo_user(self) -> None:
        """Under sudo the file belongs to who called sudo."""
        uid, gid = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
        if self._new and os.getuid() == 0 and uid and gid:
            with suppress(OSError, ValueError):
                os.fchown(self._file.fileno(), int(uid), int(gid))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.path is None:
            return
        with suppress(OSError):
            self._file.close()
        self.discard()

    def discard(self) -> None:
        """Remove the file if it is new and nothing was written to it."""
        if self.path is not None and self._new and not self._written:
            self.path.unlink(missing_ok=True)
