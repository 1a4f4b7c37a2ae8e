# SPDX-License-Identifier: Apache-2.0
"""Reads back what the jsonl format wrote. The file may be anybody's: each line is checked."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from rubyunwind.errors import DecodeError
from rubyunwind.formats.recorded import Recorded
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.reasons import TRUNCATIONS
from rubyunwind.profiler.sample import Frame, Sample, Totals
from rubyunwind.profiler.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_jsonl"]

# A line of the deepest stack with long names is some megabytes.
_LONGEST_LINE = 64 << 20
# Bytes of text whose frames are kept, since equal stacks come as equal text.
_KEPT_TEXT = 64 << 20
# Where a sample's frames begin in a line of ours. In a string it cannot stand: the quotes would be escaped.
_FRAMES = b', "frames": ['
_FRAME_FIELDS = frozenset(field.name for field in fields(Frame))

# JSON key: the field of Sample, its type, and the least and most of a number. `ts` alone has to be there.
_KEYS: tuple[tuple[str, str, type, Any, int, int], ...] = (
    ("ts", "timestamp", int, None, -(1 << 62), 1 << 62),
    ("pid", "pid", int, 0, 0, 1 << 31),
    ("tid", "tid", int, 0, 0, 1 << 31),
    ("comm", "comm", str, "", 0, 0),
    ("complete", "complete", bool, True, 0, 1),
    ("weight", "weight", int, 1, 0, 1 << 63),
    ("unit", "unit", str, "samples", 0, 0),
    ("origin", "origin", str, "sampling", 0, 0),
    ("backend", "backend", str, "bpf", 0, 0),
)
_OPTIONAL = ("reason", "container")


class _BadLine(Exception):
    """A line that is no sample; the text says why."""


class _Lines:
    """Turns lines into samples. Equal stacks come out as one tuple, equal frames as one object."""

    def __init__(self) -> None:
        self._stacks: dict[bytes, tuple[Frame, ...]] = {}
        self._frames: dict[Frame, Frame] = {}
        self._kept = 0

    def sample(self, line: bytes) -> Sample:
        """Return the sample of a line; _BadLine if there is none in it."""
        cut = line.find(_FRAMES)
        text = line[cut + len(_FRAMES) - 1 :]
        known = self._stacks.get(text) if cut >= 0 else None
        try:
            if known is not None:
                return _sample(json.loads(line[:cut] + b"}"), known)
            whole = json.loads(line)
        except RecursionError:
            raise _BadLine("it is nested too deeply") from None
        except ValueError as error:
            raise _BadLine(f"it is no JSON: {error}") from None
        if not isinstance(whole, dict):
            raise _BadLine("it is no JSON object")
        frames = whole.pop("frames", None)
        if not isinstance(frames, list):
            raise _BadLine("it has no frames")
        stack = tuple(map(self._frame, frames))
        sample = _sample(whole, stack)
        if cut >= 0 and text.rstrip().endswith(b"]}"):
            self._keep(text, stack)
        return sample

    def _keep(self, text: bytes, stack: tuple[Frame, ...]) -> None:
        self._kept += len(text)
        if self._kept > _KEPT_TEXT:
            self._stacks.clear()
            self._kept = len(text)
        self._stacks[text] = stack

    def _frame(self, found: object) -> Frame:
        if not isinstance(found, dict):
            raise _BadLine("a frame is no object")
        known = {key: value for key, value in found.items() if key in _FRAME_FIELDS}
        for key in ("kind", "name"):
            if not isinstance(known.get(key), str):
                raise _BadLine(f"a frame has no {key}")
        for key in ("label", "path", "module"):
            if not isinstance(known.get(key), (str, type(None))):
                raise _BadLine(f"{key} of a frame is no string")
        for key, least, most in (("line", -(1 << 31), 1 << 31), ("offset", 0, 1 << 64)):
            value = known.get(key)
            if value is not None and not (isinstance(value, int) and least <= value < most):
                raise _BadLine(f"{key} of a frame is {value!r:.40}")
        frame = Frame(**known)
        return self._frames.setdefault(frame, frame)


def _sample(found: Mapping[str, Any], frames: tuple[Frame, ...]) -> Sample:
    known: dict[str, Any] = {"frames": frames}
    for key, field, kind, default, least, most in _KEYS:
        value = found.get(key, default)
        if type(value) is not kind or (kind is int and not least <= cast("int", value) < most):
            raise _BadLine(f"{key} is {value!r:.40}" if key in found else f"it has no {key}")
        known[field] = value
    for key in _OPTIONAL:
        known[key] = found.get(key)
        if not isinstance(known[key], (str, type(None))):
            raise _BadLine(f"{key} is {known[key]!r:.40}")
    return Sample(**known)


def read_jsonl(file: BinaryIO, name: str) -> Recorded:
    """Read samples, one a line. `file` may be a pipe; `name` is for messages.

    Lines that are no samples are left out and the notes count them. Raises DecodeError if the first line is
    none. The totals are of what is in the file: such a file does not say what was lost.
    """
    lines = _Lines()
    samples = Samples()
    bad = 0
    why = ""
    number = 0
    cut = False
    while line := file.readline(_LONGEST_LINE):
        number += 1
        if not line.endswith(b"\n") and len(line) == _LONGEST_LINE:
            raise DecodeError(
                f"{name}: line {number} has more than {_LONGEST_LINE >> 20} MiB: it is no jsonl"
            )
        if not line.strip():
            continue
        try:
            samples.append(lines.sample(line))
        except _BadLine as error:
            if not samples and not bad and line.endswith(b"\n"):
                raise DecodeError(f"{name} is no jsonl of samples: line {number}: {error}") from None
            cut = not line.endswith(b"\n")
            bad += not cut
            why = why or f"the first is line {number}: {error}"
    notes = []
    if cut:
        notes.append(f"{name}: the last line, {number}, is half-written and left out")
    if bad:
        notes.append(f"{name}: {bad} lines are no samples and left out; {why}")
    notes.append(f"{name} is jsonl, which has no totals: what was lost is not known")
    return Recorded(samples, _totals(samples), _meta(samples), tuple(notes))


def _totals(samples: Samples) -> Totals:
    failed: Counter[str] = Counter()
    for columns in samples.columns():
        for index, count in Counter(columns[1]).items():
            stack = samples.stacks[index]
            if not stack.complete:
                failed[stack.reason or "unknown reason"] += count
    return Totals(
        read=len(samples),
        truncated=sum(failed[reason] for reason in TRUNCATIONS),
        failed=tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0]))),
    )


def _meta(samples: Samples) -> Meta:
    """What can be told from the samples alone: from when to when they are."""
    times = [(min(columns[0]), max(columns[0])) for columns in samples.columns()]
    if not times:
        return Meta()
    first, last = min(low for low, _ in times), max(high for _, high in times)
    return Meta(started=first, duration=(last - first) / 1e9)
