# SPDX-License-Identifier: Apache-2.0
"""speedscope: JSON for https://www.speedscope.app and its offline page.

One sampled profile for each thread and unit, its stacks in the order of time, so that the view "Time Order"
is one; equal stacks that follow each other are one with the sum of their weights. Weights are counts (unit
"none"), or nanoseconds off the CPU. The format has no time of day.

A frame's file is its path, a native one's module, else its kind as in `[kernel]`: speedscope colours by
file. Frames are told apart by line, too. Names are escaped as names.py says; the file is ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.names import printable
from rubyunwind.formats.summary import NO_SAMPLES, circumstances, losses
from rubyunwind.formats.tables import Tables, origin_of, tables_of

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.tables import ThreadSamples
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["write"]

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"ns": "nanoseconds"}
# Stacks that are written at once: their text is long.
_CHUNK = 4096

_encode = json.JSONEncoder(separators=(",", ":")).encode


def _frames(tables: Tables) -> list[dict[str, str | int]]:
    frames = []
    for function, line, _ in tables.locations:
        place = tables.functions[function]
        frame: dict[str, str | int] = {
            "name": printable(place.name),
            "file": printable(place.path or origin_of(place)),
        }
        if line:
            frame["line"] = line
        frames.append(frame)
    return frames


def _name(thread: ThreadSamples) -> str:
    if thread.tid == thread.pid:
        name = f"{thread.process} ({thread.pid})"
    else:
        name = f"{thread.process} ({thread.pid}), {thread.name} ({thread.tid})"
    return printable(name) + ("" if thread.unit == "samples" else f", {printable(thread.unit)}")


def _profile(thread: ThreadSamples, texts: list[str]) -> Iterator[str]:
    """A profile in pieces. `texts` are the stacks as JSON."""
    runs = list(thread.runs())
    weights = [weight for _, weight in runs]
    head = {
        "type": "sampled",
        "name": _name(thread),
        "unit": _UNITS.get(thread.unit, "none"),
        "startValue": 0,
        "endValue": sum(weights),
        "weights": weights,
    }
    yield f'{_encode(head)[:-1]},"samples":['
    for first in range(0, len(runs), _CHUNK):
        chunk = ",".join([texts[stack] for stack, _ in runs[first : first + _CHUNK]])
        yield f",{chunk}" if first else chunk
    yield "]}"


def _pieces(tables: Tables, totals: Totals, meta: Meta) -> Iterator[str]:
    said = circumstances(meta) + losses(totals, empty=not tables.threads)
    head = {
        "$schema": _SCHEMA,
        "exporter": "rubyunwind",
        "name": printable("; ".join(said)),
        "activeProfileIndex": 0,
        "shared": {"frames": _frames(tables)},
    }
    yield f'{_encode(head)[:-1]},"profiles":['
    if not tables.threads:
        # The page takes a file only if there is a profile in it.
        empty = {"type": "sampled", "name": NO_SAMPLES, "unit": "none", "startValue": 0, "endValue": 0}
        yield _encode({**empty, "samples": [], "weights": []})
    texts = [_encode(stack) for stack in tables.stacks]
    for number, thread in enumerate(tables.threads):
        if number:
            yield ","
        yield from _profile(thread, texts)
    yield "]}\n"


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the profiles. Without samples there is one without stacks, named so."""
    for piece in _pieces(tables_of(samples), totals, meta):
        file.write(piece.encode("ascii"))
