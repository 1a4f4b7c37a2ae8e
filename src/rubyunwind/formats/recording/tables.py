# SPDX-License-Identifier: Apache-2.0
"""What samples refer to, each thing once: strings, frames, nodes of a call tree, stacks and threads.

A SAMP chunk has what is new in each table, then the samples. Rows are numbered in the order in which they
came, over all chunks. String 0 is None, node 0 is the root of the call tree, which has no frame. A stack is
the node of its leaf, so that deep stacks that differ at their leaves take some bytes each.

    strings    texts
    frames     count; columns: kind, name, label, path, module (strings), what is known (1: line, 2: offset),
               line, offset
    nodes      count; columns: parent as the distance back to it, frame
    stacks     count; columns: node, complete, reason, origin, backend, unit (strings)
    threads    count; columns: pid, tid, comm, container (strings)
    samples    count, time of the first one (unix ns); columns: nanoseconds since the one before, stack,
               thread, cpu, weight
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rubyunwind.formats.recording.columns import ColumnWriter

if TYPE_CHECKING:
    from array import array

    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.samples import SampledStack, SampledThread

__all__ = ["LINE", "MAX_DEPTH", "MAX_TEXT", "OFFSET", "Tables", "encode_samples"]

MAX_DEPTH = 1 << 16
"""Frames that one stack may have."""
MAX_TEXT = 16 << 20
"""Bytes that one string may have."""

# What is known of a frame; both are None often.
LINE, OFFSET = 1, 2


class Tables:
    """The tables of a recording that is written; what is new stays in `fresh...` until `encode` takes it."""

    def __init__(self) -> None:
        self._strings: dict[str | None, int] = {None: 0}
        self._frames: dict[Frame, int] = {}
        # By identity first: frames and stacks are shared, and hashing one hashes all of it. What is known
        # stays beside its id, which can thus not be given to another.
        self._seen: dict[int, tuple[Frame, int]] = {}
        self._known: dict[tuple[object, ...], tuple[tuple[Frame, ...], int]] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._threads: dict[tuple[int, ...], int] = {}
        self._clear()

    def _clear(self) -> None:
        self._fresh_strings: list[bytes] = []
        self._fresh_frames: list[Frame] = []
        self._fresh_nodes: tuple[list[int], list[int]] = ([], [])
        self._fresh_stacks: list[tuple[int, ...]] = []
        self._fresh_threads: list[tuple[int, ...]] = []
        self._text_bytes = 0

    @property
    def fresh_bytes(self) -> int:
        """About how many bytes the tables have that are not in a chunk yet."""
        rows = len(self._fresh_frames) * 40 + len(self._fresh_nodes[0]) * 8 + len(self._fresh_stacks) * 24
        return self._text_bytes + rows + len(self._fresh_threads) * 24

    def stack(self, stack: SampledStack) -> int:
        """Return the number of a stack, which is new or known."""
        key = (id(stack.frames), *stack[1:])
        known = self._known.get(key)
        if known is None:
            row = (
                self._node(stack.frames),
                int(stack.complete),
                *map(self._string, (stack.reason, stack.origin, stack.backend, stack.unit)),
            )
            index = self._stacks.get(row)
            if index is None:
                index = self._stacks[row] = len(self._stacks)
                self._fresh_stacks.append(row)
            known = self._known[key] = (stack.frames, index)
        return known[1]

    def thread(self, thread: SampledThread) -> int:
        """Return the number of a thread, which is new or known."""
        row = (thread.pid, thread.tid, self._string(thread.comm), self._string(thread.container))
        index = self._threads.get(row)
        if index is None:
            index = self._threads[row] = len(self._threads)
            self._fresh_threads.append(row)
        return index

    def _string(self, text: str | None) -> int:
        index = self._strings.get(text)
        if index is None:
            assert text is not None
            raw = text.encode("utf-8", "surrogatepass")
            if len(raw) > MAX_TEXT:
                raise ValueError(f"a name of {len(raw)} bytes does not go into a recording: {raw[:40]!r}...")
            index = self._strings[text] = len(self._strings)
            self._fresh_strings.append(raw)
            self._text_bytes += len(raw) + 4
        return index

    def _frame(self, frame: Frame) -> int:
        seen = self._seen.get(id(frame))
        if seen is not None:
            return seen[1]
        index = self._frames.get(frame)
        if index is None:
            index = self._frames[frame] = len(self._frames)
            self._fresh_frames.append(frame)
            for text in (frame.kind, frame.name, frame.label, frame.path, frame.module):
                self._string(text)
        self._seen[id(frame)] = (frame, index)
        return index

    def _node(self, frames: tuple[Frame, ...]) -> int:
        if len(frames) > MAX_DEPTH:
            raise ValueError(f"a stack of {len(frames)} frames does not go into a recording: {MAX_DEPTH} do")
        node = 0
        nodes = self._nodes
        for frame in reversed(frames):
            key = (node, self._frame(frame))
            found = nodes.get(key)
            if found is None:
                found = nodes[key] = len(nodes) + 1
                self._fresh_nodes[0].append(found - node)
                self._fresh_nodes[1].append(key[1])
            node = found
        return node

    def encode(self, out: ColumnWriter) -> None:
        """Write what is new; it is known from then on."""
        out.texts(self._fresh_strings)
        frames = self._fresh_frames
        out.count(len(frames))
        for texts in (
            [frame.kind for frame in frames],
            [frame.name for frame in frames],
            [frame.label for frame in frames],
            [frame.path for frame in frames],
            [frame.module for frame in frames],
        ):
            out.column([self._strings[text] for text in texts])
        out.column([LINE * (f.line is not None) + OFFSET * (f.offset is not None) for f in frames])
        out.column([frame.line or 0 for frame in frames])
        out.column([frame.offset or 0 for frame in frames])
        out.count(len(self._fresh_nodes[0]))
        for column in self._fresh_nodes:
            out.column(column)
        for rows, width in ((self._fresh_stacks, 6), (self._fresh_threads, 4)):
            out.count(len(rows))
            for at in range(width):
                out.column([row[at] for row in rows])
        self._clear()


def encode_samples(out: ColumnWriter, columns: tuple[array[int], ...]) -> None:
    """Write samples, given as time, stack, thread, cpu and weight."""
    time, *others = columns
    out.count(len(time))
    out.base(time[0] if time else 0)
    out.column([0, *(after - before for before, after in pairwise(time))] if time else [])
    for column in others:
        out.column(column)
