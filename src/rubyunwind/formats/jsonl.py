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
from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.profiler.sample import Frame, Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta

__all__ = ["SampleEncoder", "write"]

# Distinct stacks whose text is kept. More than this many live stacks at once: the text is made again.
_KEPT_STACKS = 4096

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


class SampleEncoder:
    """Turns samples into lines. Keeps the text of stacks that come again as the same tuple."""

    def __init__(self) -> None:
        # The tuple stays beside its text, so that its id is not given to another.
        self._texts: dict[int, tuple[tuple[Frame, ...], str]] = {}

    def _frames(self, frames: tuple[Frame, ...]) -> str:
        kept = self._texts.get(id(frames))
        if kept is not None:
            return kept[1]
        if len(self._texts) >= _KEPT_STACKS:
            self._texts.clear()
        text = _encode([frame_fields(frame) for frame in frames])
        self._texts[id(frames)] = (frames, text)
        return text

    def line(self, sample: Sample) -> bytes:
        """One JSON object and a newline. Characters outside ASCII, quotes and controls are escaped."""
        head = _encode(
            {
                "ts": sample.timestamp,
                "pid": sample.pid,
                "tid": sample.tid,
                "comm": sample.comm,
                "origin": sample.origin,
                "backend": sample.backend,
                "weight": sample.weight,
                "unit": sample.unit,
                "complete": sample.complete,
                "reason": sample.reason,
                "container": sample.container,
            }
        )
        return f'{head[:-1]}, "frames": {self._frames(sample.frames)}}}\n'.encode("ascii")


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write each sample as it comes. Totals and meta have no place in a line; nothing is written for them."""
    encoder = SampleEncoder()
    for sample in samples:
        file.write(encoder.line(sample))
