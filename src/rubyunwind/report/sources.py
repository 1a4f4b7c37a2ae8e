# SPDX-License-Identifier: Apache-2.0
"""The text of a source file as it was when it was recorded, as far as that can be had.

The path comes out of a recording, which may be anybody's: only regular files are read, never more of one than
a bound, and what git is asked runs nothing that a repository configures.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
from dataclasses import dataclass

from rubyunwind.errors import GivenUp
from rubyunwind.process.mapped_files import open_local
from rubyunwind.report.git import Committed, committed

__all__ = ["Source", "source_of"]

_LARGEST = 16 << 20  # bytes
# As set_file_encoding in Ruby's parse.y takes it: "coding", "=" or ":", a name.
_MAGIC = re.compile(rb"\A\s*#.*coding\s*[:=]\s*([\w.-]+)")
# Encodings that Ruby takes for source; Python has others of these names' kind that are none.
_ENCODINGS = re.compile(r"(?i)(iso-?8859-|windows-|cp|ibm|euc-|koi8-|shift_jis|gb|big5)[\w-]*")
_RENAMED = {"windows-31j": "cp932"}
_NO_FILE, _TOO_LARGE = "is no regular file, and not read", "has {} bytes, too many for source"
# Ruby's own names for code that is in no file.
_NO_FILES = ("(", "<internal:", "-e")


@dataclass(frozen=True, slots=True)
class Source:
    """Lines of a file; `lines` is None if there is none to show. `note` says where it is from, or why not.

    What is `doubtful` may not be what ran, or is not there.
    """

    lines: tuple[str, ...] | None
    note: str
    doubtful: bool = False


def source_of(path: str, recorded: int) -> Source:
    """Return the source of `path` as it was at `recorded` (unix ns, 0: unknown).

    From the file if it has not been written to since, else from git if the file's repository had it then,
    else from the file all the same, and the note says that it has changed.
    """
    if path.startswith(_NO_FILES) or not path:
        return Source(None, "code that is in no file")
    if "\0" in path or any("\ud800" <= c < "\udc80" or "\udcff" < c <= "\udfff" for c in path):
        return Source(None, "no path that a file can have")
    raw, changed, trouble = _read(path)
    if raw is not None and recorded and changed <= recorded:
        return Source(_lines(raw), "as it is on disk, not written to since")
    old = committed(path, recorded, _LARGEST) if recorded else None
    if old is not None and old.text is not None:
        return _of_git(raw, old)
    if raw is None:
        return Source(None, trouble + (f"; {old.why}" if old is not None and old.why else ""), doubtful=True)
    if not recorded:
        return Source(_lines(raw), "as it is on disk; when it was recorded is not known")
    why = f" ({old.why})" if old is not None and old.why else ""
    return Source(
        _lines(raw),
        f"WRITTEN TO SINCE the recording, and git does not have it as it was{why}: lines may be wrong",
        doubtful=True,
    )


def _of_git(raw: bytes | None, old: Committed) -> Source:
    assert old.text is not None
    if raw == old.text:
        return Source(_lines(old.text), f"as it is on disk, and in git at that time ({old.revision[:12]})")
    state = "is not on disk any more" if raw is None else "has changed on disk since"
    return Source(_lines(old.text), f"from git at that time ({old.revision[:12]}); it {state}")


def _lines(raw: bytes) -> tuple[str, ...]:
    # As Ruby counts them: only \n ends a line.
    lines = raw.removeprefix(codecs.BOM_UTF8).split(b"\n")
    encoding = _encoding(lines[:2])
    return tuple(
        line.removesuffix(b"\r").decode(encoding, "surrogateescape")
        for line in (lines[:-1] if lines[-1] == b"" else lines)
    )


def _encoding(first: list[bytes]) -> str:
    """What the magic comment says that the source is in, if Python can read that; else UTF-8, as Ruby has it.

    The comment is in the first line, or in the second one after `#!`.
    """
    found = _MAGIC.search(first[1 if first[0].startswith(b"#!") and len(first) > 1 else 0])
    name = found[1].decode("ascii") if found else ""
    if not _ENCODINGS.fullmatch(name):
        return "utf-8"
    try:
        return codecs.lookup(_RENAMED.get(name.lower(), name)).name
    except LookupError:
        return "utf-8"


def _read(path: str) -> tuple[bytes | None, int, str]:
    """Return the contents, when they were last written (unix ns), and why there are none."""
    try:
        pinned = open_local(path)
        if pinned < 0:  # on a server that may not answer, or not known to the kernel yet
            return _read_by_deputy(path)
        try:
            return _read_pinned(pinned)
        finally:
            os.close(pinned)
    except (OSError, ValueError) as error:
        return None, 0, f"cannot be read: {getattr(error, 'strerror', None) or error}"


def _read_pinned(pinned: int) -> tuple[bytes | None, int, str]:
    found = os.fstat(pinned)
    if not stat.S_ISREG(found.st_mode):
        return None, 0, _NO_FILE
    if found.st_size > _LARGEST:
        return None, 0, _TOO_LARGE.format(found.st_size)
    fd = os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        # No more than its size: what the kernel makes up as it is read claims to have none.
        return os.pread(fd, found.st_size, 0), found.st_mtime_ns, ""
    finally:
        os.close(fd)


def _read_by_deputy(path: str) -> tuple[bytes | None, int, str]:
    from rubyunwind.process.deputy import deputies

    try:
        text, size, changed = deputies.read_source(path, _LARGEST)
    except GivenUp as error:
        why = str(error).removeprefix(f"{path}: ")
        return None, 0, why if why == _NO_FILE else f"cannot be read: {why}"
    return (text, changed, "") if size <= _LARGEST else (None, 0, _TOO_LARGE.format(size))
