# SPDX-License-Identifier: Apache-2.0
"""Where a recording goes: checked before it begins, removed again if nothing came of it."""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS, format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rubyunwind.formats.recording.writer import RecordingWriter
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.recording import Profile
    from rubyunwind.profiler.sample import Totals
    from rubyunwind.profiler.samples import Samples

__all__ = ["Output", "Stream"]

_DEFAULT_FORMAT = "flamegraph"


class Stream:
    """A Sink: a recording that is written while it goes on. RubyUnwindError if the file refuses it."""

    def __init__(self, writer: RecordingWriter, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self._writer = writer
        self._writing = writing

    def add(self, samples: Samples) -> None:
        """Take samples; they are in the file after the next update."""
        with self._writing():
            self._writer.add(samples)

    def update(self, totals: Totals, meta: Meta) -> None:
        """Write what has come since the last update."""
        with self._writing():
            self._writer.update(totals, meta)

    def end(self) -> None:
        """Say in the file that the recording was ended."""
        with self._writing():
            self._writer.end()


class Output:
    """An output file that is open, or stdout (then `path` is None). A context manager that owns the file."""

    def __init__(self, path: Path | None, format_: str, lost: str = "recorded") -> None:
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
                f"cannot write {path}: {error.strerror}; nothing was {lost}. Name another file with -o"
            ) from error
        self._give_to_sudo_user()

    @classmethod
    def choose(cls, output: str | None, format_: str | None, what: str, lost: str = "recorded") -> Output:
        """Open the output that was asked for; the format follows from the suffix, or is a flame graph.

        `lost` says what was not done if it cannot be opened. RubyUnwindError if it cannot be opened, or the
        format needs what is not installed.
        """
        if format_ is None:
            format_ = format_of(output or "") or _DEFAULT_FORMAT
        if format_ in FORMATS:  # a table of `report` is none of them
            FORMATS[format_].check()
        if output == "-":
            return cls(None, format_, lost)
        if output is None:
            stamp = time.strftime("%Y%m%d-%H%M%S")
            output = f"rubyunwind-{what}-{stamp}{FORMATS[format_].suffix}"
        return cls(Path(output), format_, lost)

    def write(self, profile: Profile) -> None:
        """Write the profile. RubyUnwindError if the file refuses it."""
        self.fill(lambda file: profile.write(file, self.format))

    def fill(self, writer: Callable[[BinaryIO], None]) -> None:
        """Have the file written, in place of what was there before. RubyUnwindError if it refuses that."""
        with self._writing():
            writer(self._file)

    def stream(self) -> Stream | None:
        """Return what writes the file while the recording goes on; None if its format is none for that."""
        if self.format != "recording":
            return None
        from rubyunwind.formats.recording.writer import RecordingWriter

        return Stream(RecordingWriter(self._file), self._writing)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            if self._written or self.path is None:
                pass
            elif stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                self._file.truncate(0)
            self._written = True
            yield
            self._file.flush()
        except BrokenPipeError:
            # The reader has seen enough; nothing more may be written there, when it is closed neither.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
        except OSError as error:
            raise RubyUnwindError(f"cannot write {self.path or 'to stdout'}: {error.strerror}") from error
        except ValueError as error:  # of what no writer can take
            raise RubyUnwindError(f"cannot write {self.path or 'to stdout'}: {error}") from error

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
