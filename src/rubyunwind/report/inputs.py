# SPDX-License-Identifier: Apache-2.0
"""The files a report reads: recordings and jsonl, plain or gzip'd, or stdin; several become one."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sys
import zlib
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from rubyunwind.errors import DecodeError, RubyUnwindError
from rubyunwind.formats.jsonl_reader import read_jsonl
from rubyunwind.formats.recorded import Recorded
from rubyunwind.formats.recording.chunks import MAGIC
from rubyunwind.formats.recording.reader import read_recording
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["join", "load"]

_GZIP = b"\x1f\x8b"
_HEAD = 16
# How other files begin that people give to a report.
_OTHERS = (
    (b"<", "an HTML or XML page; the page does not keep the samples"),
    (b"PERFILE2", "a file of perf"),
    (b"\x7fELF", "an ELF file; for a core file see `rubyunwind snapshot --core`"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: run `zstd -d` on it first"),
    (b"\xfd7zXZ\0", "compressed by xz: run `xz -d` on it first"),
    (b"BZh", "compressed by bzip2: run `bunzip2` on it first"),
)
_WANTED = "a report reads what `record -f recording` or `-f jsonl` wrote"


class _Joined(io.RawIOBase):
    """The bytes that were looked at, then the rest of the file, which is never sought."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        data = self._head[: len(view)] if self._head else self._rest.read(len(view))
        self._head = self._head[len(data) :]
        view[: len(data)] = data
        return len(data)


def load(path: str) -> Recorded:
    """Read a recording or jsonl, plain or gzip'd; `-` is stdin.

    Raises RubyUnwindError if the file cannot be read, DecodeError if it is of another kind; of a file that is
    damaged or half-written what is whole is returned, and the notes say what is not.
    """
    name = "stdin" if path == "-" else path if path.isprintable() else repr(path)
    try:
        if path == "-":
            return _read(sys.stdin.buffer, name)
        with open(_open(path), "rb") as file:
            return _read(file, name)
    except OSError as error:
        raise RubyUnwindError(f"cannot read {name}: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, RubyUnwindError):
            raise
        raise RubyUnwindError(f"cannot read {name}: {error}") from error


def _open(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if os.path.isdir(path):  # noqa: PTH112 - what `open` took, no Path is needed
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return fd


def _read(file: BinaryIO, name: str) -> Recorded:
    head = b""
    while len(head) < _HEAD and (more := file.read(_HEAD - len(head))):
        head += more
    plain = cast("BinaryIO", io.BufferedReader(_Joined(head, file), 1 << 16))
    if not head.startswith(_GZIP):
        return _read_plain(plain, head, name)
    with gzip.GzipFile(fileobj=plain, mode="rb") as unpacked:
        cut = _Cut(cast("BinaryIO", unpacked))
        head = cut.read(_HEAD)
        if not head and cut.why:
            raise DecodeError(f"{name}: {cut.why}; nothing of it can be read")
        inner = cast("BinaryIO", io.BufferedReader(_Joined(head, cast("BinaryIO", cut)), 1 << 16))
        found = _read_plain(inner, head, name)
        if not cut.why:
            return found
        return Recorded(found.samples, found.totals, found.meta, (f"{name}: {cut.why}", *found.notes))


class _Cut:
    """A compressed stream that just ends where it is cut off or damaged; `why` then says so."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.why = ""

    def read(self, size: int = -1) -> bytes:
        if self.why:
            return b""
        try:
            return self._file.read(size)
        except EOFError:
            self.why = "the compressed data is cut off"
        except (gzip.BadGzipFile, zlib.error) as error:
            self.why = f"the compressed data is damaged ({error})"
        return b""


def _read_plain(file: BinaryIO, head: bytes, name: str) -> Recorded:
    if not head:
        raise DecodeError(f"{name} is empty: nothing was recorded, or nothing has been written yet")
    # Of a header that is cut there may be less than the magic.
    if head.startswith(MAGIC) or MAGIC.startswith(head):
        return read_recording(file, name)
    if head.lstrip().startswith(b"{"):
        return read_jsonl(file, name)
    for beginning, what in _OTHERS:
        if head.startswith(beginning):
            raise DecodeError(f"{name} is no recording but {what}; {_WANTED}")
    raise DecodeError(f"{name} is no recording: it begins with {head[:8]!r}; {_WANTED}")


def join(parts: Sequence[Recorded]) -> Recorded:
    """Return several recordings as one, their samples one after the other and their totals summed."""
    if len(parts) == 1:
        return parts[0]
    samples = Samples()
    for part in parts:
        samples.extend(part.samples)
    metas = [part.meta for part in parts]
    started = min((meta.started for meta in metas if meta.started), default=0)
    ends = [meta.started + int(meta.duration * 1e9) for meta in metas if meta.started]
    return Recorded(
        samples,
        _sum([part.totals for part in parts]),
        Meta(
            title=_joined(meta.title for meta in metas),
            command=_joined(meta.command for meta in metas),
            started=started,
            duration=(max(ends) - started) / 1e9 if ends else sum(meta.duration for meta in metas),
            rate=metas[0].rate if len({meta.rate for meta in metas}) == 1 else 0.0,
            runtimes=tuple(dict.fromkeys(runtime for meta in metas for runtime in meta.runtimes)),
            backend=_joined(meta.backend for meta in metas),
            notes=tuple(dict.fromkeys(note for meta in metas for note in meta.notes)),
        ),
        tuple(note for part in parts for note in part.notes),
    )


def _joined(texts: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(filter(None, texts)))


def _sum(parts: Sequence[Any]) -> Any:
    """Sum dataclasses of counts: numbers, pairs of a reason and a number, or more such, which may be None."""
    first = parts[0]
    sums: dict[str, object] = {}
    for field in fields(first):
        values = [getattr(part, field.name) for part in parts if getattr(part, field.name) is not None]
        if not values:
            sums[field.name] = None
        elif isinstance(values[0], tuple):
            counts: Counter[str] = Counter()
            for pairs in values:
                counts.update(dict(pairs))
            sums[field.name] = tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        else:
            sums[field.name] = _sum(values) if is_dataclass(values[0]) else sum(values)
    return replace(first, **sums)
