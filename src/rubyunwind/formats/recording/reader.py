# SPDX-License-Identifier: Apache-2.0
"""Reads a recording, or as much of it as is whole. The file may be anybody's: nothing in it is believed.

What a file can make us do is bounded: each chunk's size (chunks), and below the number of things in all.
"""

from __future__ import annotations

import time
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, cast

from rubyunwind.formats.recorded import Recorded
from rubyunwind.formats.recording.about import About
from rubyunwind.formats.recording.chunks import Damage, read_chunks
from rubyunwind.formats.recording.columns import ColumnReader
from rubyunwind.formats.recording.tables import LINE, MAX_DEPTH, OFFSET
from rubyunwind.profiler.sample import Frame
from rubyunwind.profiler.samples import SampledStack, SampledThread, Samples

if TYPE_CHECKING:
    from rubyunwind.profiler.sample import FrameKind

__all__ = ["read_recording"]

# Limits of what one file may have: some times more than the largest real recordings, and what fits into
# the memory of an ordinary machine.
_MOST_ROWS = 1 << 22  # strings, frames, stacks, threads: each
_MOST_NODES = 1 << 25
_MOST_FRAMES = 1 << 27  # of all stacks together, once each stack is a tuple of its own
_MOST_TEXT = 1 << 29  # bytes of all strings


class _Tables:
    """The tables as far as they have been read, and the samples."""

    def __init__(self) -> None:
        self.samples = Samples()
        self._strings: list[str | None] = [None]
        self._frames: list[Frame] = []
        self._parents = array("I", [0])
        self._node_frames = array("I", [0])
        self._depths = array("I", [0])
        self._stacks = self._threads = 0
        self._text = self._tuples = 0

    def take(self, plain: bytes) -> None:
        """Take the contents of a SAMP chunk. After Damage nothing of it is in the samples."""
        reader = ColumnReader(plain)
        self._take_strings(reader)
        self._take_frames(reader)
        self._take_nodes(reader)
        stacks = self._take_stacks(reader)
        threads = self._take_threads(reader)
        columns = self._take_samples(reader, self._stacks + len(stacks), self._threads + len(threads))
        reader.finish()
        self._stacks += len(stacks)
        self._threads += len(threads)
        self.samples.extend_columns(stacks, threads, columns)

    def _take_strings(self, reader: ColumnReader) -> None:
        texts = reader.texts()
        self._text += sum(map(len, texts))
        _bound(self._text, _MOST_TEXT, "characters of names")
        self._strings += texts
        _bound(len(self._strings), _MOST_ROWS, "names")

    def _texts(self, reader: ColumnReader, count: int) -> list[str | None]:
        strings = self._strings
        return list(map(strings.__getitem__, reader.indices(count, len(strings), "name")))

    def _names(self, reader: ColumnReader, count: int) -> list[str]:
        """Texts that are there: a file of ours never has None where the field of a sample is not optional."""
        names = self._texts(reader, count)
        if None in names:
            raise Damage("a name is missing")
        return cast("list[str]", names)

    def _take_frames(self, reader: ColumnReader) -> None:
        count = reader.count()
        _bound(len(self._frames) + count, _MOST_ROWS, "frames")
        kinds, names = self._names(reader, count), self._names(reader, count)
        labels, paths, modules = (self._texts(reader, count) for _ in range(3))
        known = reader.indices(count, LINE + OFFSET + 1, "field")
        lines, offsets = reader.column(count), reader.column(count)
        self._frames += map(
            Frame,
            cast("list[FrameKind]", kinds),
            names,
            labels,
            paths,
            [line if which & LINE else None for which, line in zip(known, lines, strict=True)],
            modules,
            [offset if which & OFFSET else None for which, offset in zip(known, offsets, strict=True)],
        )

    def _take_nodes(self, reader: ColumnReader) -> None:
        count = reader.count()
        first = len(self._parents)
        _bound(first + count, _MOST_NODES, "nodes of the call tree")
        back = reader.column(count)
        self._node_frames.extend(array("I", reader.indices(count, len(self._frames), "frame")))
        depths = self._depths
        for node, distance in enumerate(back, first):
            parent = node - distance
            if not 0 <= parent < node:
                raise Damage("a node of the call tree is above none that was there before")
            self._parents.append(parent)
            depths.append(depths[parent] + 1)
        if count and max(depths[first:]) > MAX_DEPTH:
            raise Damage(f"a stack of more than {MAX_DEPTH} frames")

    def _take_stacks(self, reader: ColumnReader) -> list[SampledStack]:
        count = reader.count()
        _bound(self._stacks + count, _MOST_ROWS, "stacks")
        nodes = reader.indices(count, len(self._parents), "node of the call tree")
        self._tuples += sum(map(self._depths.__getitem__, nodes))
        _bound(self._tuples, _MOST_FRAMES, "frames in all stacks")
        complete = reader.indices(count, 2, "truth value")
        reasons = self._texts(reader, count)
        origins, backends, units = (self._names(reader, count) for _ in range(3))
        frames = map(self._stack_of, nodes)
        return list(map(SampledStack, frames, map(bool, complete), reasons, origins, backends, units))

    def _stack_of(self, node: int) -> tuple[Frame, ...]:
        parents, numbers, frames = self._parents, self._node_frames, self._frames
        found = []
        while node:
            found.append(frames[numbers[node]])
            node = parents[node]
        return tuple(found)

    def _take_threads(self, reader: ColumnReader) -> list[SampledThread]:
        count = reader.count()
        _bound(self._threads + count, _MOST_ROWS, "threads")
        pids, tids = reader.column(count), reader.column(count)
        return list(map(SampledThread, pids, tids, self._names(reader, count), self._texts(reader, count)))

    def _take_samples(self, reader: ColumnReader, stacks: int, threads: int) -> list[array[int]]:
        count = reader.count()
        base = reader.base()
        times = reader.column(count)
        return [
            array("q", accumulate(times, initial=base))[1:] if times else array("q"),
            array("I", reader.indices(count, stacks, "stack")),
            array("I", reader.indices(count, threads, "thread")),
            array("i", reader.column(count)),
            array("Q", reader.column(count)),
        ]


def _bound(number: int, most: int, what: str) -> None:
    if number > most:
        raise Damage(f"there are more {what} than can be read ({most})")


def read_recording(file: BinaryIO, name: str) -> Recorded:
    """Read a recording to its end. `file` may be a pipe; `name` is for messages.

    What is damaged or half-written is left out, with all that follows it, and the notes say so. Raises
    DecodeError if nothing can be read: another kind of file, another version, a header that is cut.
    """
    tables, about = _Tables(), About()
    notes = []
    ended = False
    at = 0
    unknown = 0
    try:
        for chunk in read_chunks(file, name):
            try:
                if chunk.kind == b"SAMP":
                    tables.take(chunk.plain)
                elif chunk.kind == b"TOTL":
                    about.take_totals(chunk.plain)
                elif chunk.kind == b"META":
                    about.take_meta(chunk.plain)
                elif chunk.kind == b"DONE":
                    ended = True
                elif chunk.kind[:1].islower():
                    unknown += 1
                else:
                    raise Damage(
                        f"it has a chunk {chunk.kind.decode('latin-1')} that only a newer rubyunwind can read"
                    )
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                raise Damage(f"the chunk that ends at byte {chunk.end} makes no sense ({error})") from None
            at = chunk.end
    except Damage as damage:
        notes.append(
            f"{name}: {damage}; the {len(tables.samples)} samples before that were read, what follows is "
            f"left out (from byte {at} on)"
        )
    else:
        if not ended:
            notes.append(
                f"{name}: the recorder was killed or still records; the {len(tables.samples)} samples "
                f"it had written were read{_until(about)}"
            )
    if unknown:
        notes.append(f"{name}: {unknown} chunks that this rubyunwind does not know were left out")
    return Recorded(tables.samples, about.totals, about.meta, tuple(notes))


def _until(about: About) -> str:
    meta = about.meta
    if not meta.started or not meta.duration:
        return ""
    moment = time.gmtime(meta.started // 1_000_000_000 + meta.duration)
    return f", up to {time.strftime('%H:%M:%S', moment)} UTC"
