# SPDX-License-Identifier: Apache-2.0
"""Writes a recording while it goes on: what has been flushed survives the end of the recorder."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.recording.chunks import chunk_bytes, header_bytes
from rubyunwind.formats.recording.columns import ColumnWriter
from rubyunwind.formats.recording.tables import Tables, encode_samples
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["RecordingWriter"]

# A chunk is written when this many samples, or about this many bytes of new stacks, wait for it.
_MOST_SAMPLES = 1 << 16
_MOST_BYTES = 4 << 20
# As in Samples.columns: time, stack, thread, cpu, weight.
_KINDS = ("q", "I", "I", "i", "Q")


class RecordingWriter:
    """Writes to a binary file, which stays the caller's and is only appended to. A Sink of a Recording.

    Samples are in the file, flushed, after the next `update`, or when many have come. OSError comes from the
    file; ValueError for a name or stack that is larger than any of ours.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._tables = Tables()
        self._columns = tuple(array(kind) for kind in _KINDS)
        self._number = 0
        self._meta: dict[str, object] | None = None
        self._totals: Totals | None = None
        self._begun = False

    def add(self, samples: Iterable[Sample]) -> None:
        """Take samples."""
        if isinstance(samples, Samples):
            self._add(samples)
            return
        waiting = iter(samples)
        while some := Samples(islice(waiting, _MOST_SAMPLES)):
            self._add(some)

    def _add(self, samples: Samples) -> None:
        stacks = []
        for stack in samples.stacks:
            stacks.append(self._tables.stack(stack))
            if self._tables.fresh_bytes > _MOST_BYTES:
                self._write_samples()
        threads = [self._tables.thread(thread) for thread in samples.threads]
        for time, stack_, thread, cpu, weight in samples.columns():
            mine = self._columns
            mine[0].extend(time)
            mine[1].extend(map(stacks.__getitem__, stack_))
            mine[2].extend(map(threads.__getitem__, thread))
            mine[3].extend(cpu)
            mine[4].extend(weight)
            if len(mine[0]) >= _MOST_SAMPLES:
                self._write_samples()

    def update(self, totals: Totals, meta: Meta) -> None:
        """Write the samples that wait and what is known by now, and flush."""
        if self._columns[0]:
            self._write_samples()
        about = asdict(meta)
        duration = about.pop("duration")  # which changes all the time; it goes with the totals
        if about != self._meta:
            self._write_json(b"META", about)
            self._meta = about
        if totals != self._totals:
            self._write_json(b"TOTL", {**asdict(totals), "duration": round(duration, 3)})
            self._totals = totals
        self._file.flush()

    def end(self) -> None:
        """Say that the recording has ended, and flush. Nothing comes after that."""
        if self._columns[0]:
            self._write_samples()
        self._write(b"DONE", b"")
        self._file.flush()

    def _write_samples(self) -> None:
        out = ColumnWriter()
        self._tables.encode(out)
        encode_samples(out, self._columns)
        self._columns = tuple(array(kind) for kind in _KINDS)
        self._write(b"SAMP", out.finish())

    def _write_json(self, kind: bytes, fields: dict[str, object]) -> None:
        import json

        self._write(kind, json.dumps(fields, separators=(",", ":")).encode("ascii"))

    def _write(self, kind: bytes, plain: bytes) -> None:
        data = chunk_bytes(kind, self._number, plain)
        if not self._begun:
            data = header_bytes() + data
            self._begun = True
        # One call, so that a chunk is in the file whole or not at all as far as the kernel lets us.
        self._file.write(data)
        self._number += 1
