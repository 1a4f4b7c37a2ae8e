# SPDX-License-Identifier: Apache-2.0
r"""JSON lines: one sample a line, written as it comes. The format for programs.

Each line is an object with the keys ts, pid, tid, comm, origin, backend, weight, unit, complete, reason,
container and frames (leaf first). The keys of a frame go by its kind:

    ruby, cfunc               kind, name, label, path, line
    native                    kind, name, module, offset (an integer, the ELF virtual address)
    kernel                    kind, name
    gc, jit, unknown, error   kind, name, and whichever of label, path, line, module, offset is known

The output is ASCII, thus valid UTF-8, whatever the names hold: other characters are JSON escapes, and a byte
that was no UTF-8 (a surrogate in the name, as surrogateescape leaves it) is `\udc80` to `\udcff`. A parser
that allows lone surrogates gives back the very name; others may refuse or replace that character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rubyunwind.formats.memo import Memo
from rubyunwind.profiler.sample import Frame, Sample, Totals
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta

__all__ = ["SampleEncoder", "write"]

# How much text is kept, of stacks, frames, and what lines begin with. Of more it is made again.
_MOST_STACKS, _MOST_BYTES = 4096, 16 << 20
_MOST_FRAMES = 1 << 16
_MOST_HEADS = 1 << 14

_END = b"]}\n"

_encode = json.JSONEncoder(separators=(", ", ": ")).encode


def frame_fields(frame: Frame) -> dict[str, str | int | None]:
    """Return a frame as an object of the format: the fields that its kind has."""
    kind = frame.kind
    if kind in ("ruby", "cfunc"):
        return {
            "kind": kind,
            "name": frame.name,
            "label": frame.label,
            "path": frame.path,
            "line": frame.line,
        }
    if kind == "native":
        return {"kind": kind, "name": frame.name, "module": frame.module, "offset": frame.offset}
    shown: dict[str, str | int | None] = {"kind": kind, "name": frame.name}
    if kind != "kernel":
        for key in ("label", "path", "line", "module", "offset"):
            value = getattr(frame, key)
            if value is not None:
                shown[key] = value
    return shown


def _value(value: str | int | None) -> str:
    if isinstance(value, str):
        return _encode(value)
    return "null" if value is None else str(value)


def _frame_text(frame: Frame) -> bytes:
    """The object of `frame_fields` as JSON. Most frames are of two shapes, which are put together here."""
    kind, name = frame.kind, _value(frame.name)
    if kind in ("ruby", "cfunc"):
        label, path, line = map(_value, (frame.label, frame.path, frame.line))
        text = f'{{"kind": "{kind}", "name": {name}, "label": {label}, "path": {path}, "line": {line}}}'
    elif kind == "native":
        module, offset = map(_value, (frame.module, frame.offset))
        text = f'{{"kind": "{kind}", "name": {name}, "module": {module}, "offset": {offset}}}'
    else:
        text = _encode(frame_fields(frame))
    return text.encode("ascii")


class _Head(NamedTuple):
    """What many lines have alike before their frames."""

    pid: int
    tid: int
    comm: str
    container: str | None
    complete: bool
    reason: str | None
    origin: str
    backend: str
    unit: str

    def texts(self) -> tuple[bytes, bytes]:
        """What stands between the time and the weight, and from there to the frames."""
        before = {key: getattr(self, key) for key in ("pid", "tid", "comm", "origin", "backend")}
        after = {key: getattr(self, key) for key in ("unit", "complete", "reason", "container")}
        return (
            f', {_encode(before)[1:-1]}, "weight": '.encode("ascii"),
            f', {_encode(after)[1:-1]}, "frames": ['.encode("ascii"),
        )


class SampleEncoder:
    """Turns samples into lines. Keeps some text: of frames, of stacks that come again as the same tuple, and
    of what stands before them."""

    def __init__(self) -> None:
        self._frames = Memo(_frame_text)
        # The tuple stays beside its text, so that its id is not given to another.
        self._stacks: dict[int, tuple[tuple[Frame, ...], bytes]] = {}
        self._stack_bytes = 0
        self._heads: dict[_Head, tuple[bytes, bytes]] = {}

    def line(self, sample: Sample) -> bytes:
        """One JSON object and a newline. Characters outside ASCII, quotes and controls are escaped."""
        before, after = self._head(
            _Head(
                sample.pid,
                sample.tid,
                sample.comm,
                sample.container,
                sample.complete,
                sample.reason,
                sample.origin,
                sample.backend,
                sample.unit,
            )
        )
        head = b'{"ts": %d%b%d%b' % (sample.timestamp, before, sample.weight, after)
        return b"".join((head, self._text(sample.frames), _END))

    def lines(self, samples: Samples) -> Iterator[bytes]:
        """Yield the lines of many samples, in pieces."""
        stacks, threads = samples.stacks, samples.threads
        heads: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        for times, indices, numbers, _, weights in samples.columns():
            for time, index, number, weight in zip(times, indices, numbers, weights, strict=True):
                head = heads.get((index, number))
                if head is None:
                    if len(heads) >= _MOST_HEADS:
                        heads.clear()
                    _, complete, reason, origin, backend, unit = stacks[index]
                    key = _Head(*threads[number], complete, reason, origin, backend, unit)
                    head = heads[index, number] = self._head(key)
                yield b'{"ts": %d%b%d%b' % (time, head[0], weight, head[1])
                yield self._text(stacks[index].frames)
                yield _END

    def _head(self, key: _Head) -> tuple[bytes, bytes]:
        known = self._heads.get(key)
        if known is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            known = self._heads[key] = key.texts()
        return known

    def _text(self, frames: tuple[Frame, ...]) -> bytes:
        known = self._stacks.get(id(frames))
        if known is not None:
            return known[1]
        if len(self._stacks) >= _MOST_STACKS or self._stack_bytes > _MOST_BYTES:
            self._stacks.clear()
            self._stack_bytes = 0
            if len(self._frames) > _MOST_FRAMES:
                self._frames = Memo(_frame_text)
        text = b", ".join(self._frames.of(frames))
        self._stacks[id(frames)] = (frames, text)
        self._stack_bytes += len(text)
        return text


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write each sample as it comes. Totals and meta have no place in a line; nothing is written for them."""
    encoder = SampleEncoder()
    if isinstance(samples, Samples):
        file.writelines(encoder.lines(samples))
        return
    for sample in samples:
        file.write(encoder.line(sample))
