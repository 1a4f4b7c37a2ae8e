# SPDX-License-Identifier: Apache-2.0
"""Firefox Profiler: JSON in its processed profile format, version 70, for https://profiler.firefox.com.

A thread of the file is a thread of a process in one unit. Each sample has its time, in milliseconds since
`meta.startTime`, and its weight: a count ("samples"), or time off the CPU in milliseconds ("tracing-ms").
Kinds of frames are categories. Ruby frames and C functions are "relevant for JS", so the stack filter
"JavaScript" shows these alone. Addresses are ELF virtual addresses. Names are escaped as names.py says; the
file is ASCII. Totals are in the profile's extra information.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from rubyunwind.formats.names import printable
from rubyunwind.formats.summary import NO_SAMPLES, circumstances, losses
from rubyunwind.formats.tables import Tables, period_of, start_of, tables_of

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.formats.tables import ThreadSamples
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["VERSION", "write"]

# PROCESSED_PROFILE_VERSION and GECKO_PROFILE_VERSION in src/app-logic/constants.ts of
# github.com/firefox-devtools/profiler; the fields are those of src/types/profile.ts. Older files are upgraded
# by whoever reads them, so this changes only when we want something new.
VERSION = 70
_GECKO_VERSION = 36
_RESOURCE_LIBRARY = 1  # ResourceType.Library
_NONE = -1  # of columns that may not be null: lib, address, resource

_MS = 1_000_000  # nanoseconds
# What a kind of frame is called, and its colour, one of CategoryColor. Grey marks the default category.
_CATEGORIES = {
    "unknown": ("Other", "grey"),
    "ruby": ("Ruby", "red"),
    "cfunc": ("C function", "orange"),
    "native": ("Native", "blue"),
    "kernel": ("Kernel", "purple"),
    "gc": ("Garbage collection", "green"),
    "jit": ("JIT", "lightblue"),
    "incomplete": ("Incomplete", "yellow"),
    "error": ("Error", "magenta"),
}
_CATEGORY_INDEX = {kind: at for at, kind in enumerate(_CATEGORIES)}
_RUBY_KINDS = frozenset({"ruby", "cfunc"})

_encode = json.JSONEncoder(separators=(",", ":")).encode


class _Indices(dict[str, int]):
    """A table of distinct texts, by index."""

    def __missing__(self, text: str) -> int:
        index = self[text] = len(self)
        return index


class _Shared:
    """The tables that all threads share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._strings = _Indices()
        self._sources = _Indices()
        self._modules = _Indices()
        self.leaves: list[int] = []  # row of the stack table for each stack

    def _string(self, text: str) -> int:
        return self._strings[printable(text)]

    def libraries(self) -> list[dict[str, str | None]]:
        # Symbols are there already, so nothing is looked up by the breakpad id, which we do not know.
        return [
            {
                "arch": "",
                "name": PurePosixPath(path).name,
                "path": path,
                "debugName": PurePosixPath(path).name,
                "debugPath": path,
                "breakpadId": "",
                "codeId": None,
            }
            for path in map(printable, self._modules)
        ]

    def tables(self) -> dict[str, Any]:
        functions, frames, stacks = self._functions(), self._frames(), self._stacks()
        modules, sources = map(self._string, self._modules), map(self._string, self._sources)
        count, total = len(self._modules), len(self._sources)
        return {
            "stackTable": stacks,
            "frameTable": frames,
            "funcTable": functions,
            "resourceTable": {
                "length": count,
                "name": list(modules),
                "host": [None] * count,
                "type": [_RESOURCE_LIBRARY] * count,
            },
            "nativeSymbols": {"libIndex": [], "address": [], "name": [], "functionSize": [], "length": 0},
            "sources": {
                "length": total,
                "id": [None] * total,
                "filename": list(sources),
                "startLine": [1] * total,
                "startColumn": [1] * total,
                "sourceMapURL": [None] * total,
                "content": [None] * total,
            },
            "sourceLocationTable": {"source": [], "line": [], "column": [], "length": 0},
            "stringArray": list(self._strings),
        }

    def _functions(self) -> dict[str, Any]:
        places = self._tables.functions
        ruby = [place.kind in _RUBY_KINDS for place in places]
        none = [None] * len(places)
        return {
            "name": [self._string(place.name) for place in places],
            "isJS": [False] * len(places),
            "relevantForJS": ruby,
            "resource": [self._modules[place.module] if place.module else _NONE for place in places],
            "source": [self._sources[place.path] if place.path else None for place in places],
            # Where the function begins, which is not known.
            "lineNumber": none,
            "columnNumber": none,
            "originalLocation": none,
            "length": len(places),
        }

    def _frames(self) -> dict[str, Any]:
        locations = self._tables.locations
        places = [self._tables.functions[location.function] for location in locations]
        none, zero = [None] * len(locations), [0] * len(locations)
        return {
            "address": [_NONE if place.address is None else place.address for place in locations],
            "lib": [self._modules[place.module] if place.module else _NONE for place in places],
            "inlineDepth": zero,
            "category": [_CATEGORY_INDEX.get(place.kind, 0) for place in places],
            "subcategory": zero,
            "func": [location.function for location in locations],
            "nativeSymbol": none,
            "innerWindowID": none,
            "line": [location.line or None for location in locations],
            "column": none,
            "originalLocation": none,
            "length": len(locations),
        }

    def _stacks(self) -> dict[str, Any]:
        """A tree: each row has a frame, and how many rows before it its caller is (0: it has none)."""
        rows: dict[tuple[int, int], int] = {}
        offsets: list[int] = []
        for stack in self._tables.stacks:
            row = -1
            for location in stack:
                caller = row
                row = rows.setdefault((caller, location), len(offsets))
                if row == len(offsets):
                    offsets.append(0 if caller < 0 else row - caller)
            self.leaves.append(row)
        frames = [location for _, location in rows]
        return {"frame": frames, "prefixOffset": offsets, "length": len(frames)}


def _samples(thread: ThreadSamples, leaves: list[int], start: int) -> dict[str, Any]:
    is_time = thread.unit == "ns"
    return {
        "stack": [leaves[stack] for stack in thread.stacks],
        "time": [(time - start) / _MS for time in thread.times],
        "weight": [weight / _MS for weight in thread.weights] if is_time else thread.weights.tolist(),
        "weightType": "tracing-ms" if is_time else "samples",
        "length": len(thread.stacks),
    }


def _thread(name: str, process: str, pid: int, tid: int | str, samples: dict[str, Any]) -> dict[str, Any]:
    return {
        "processType": "default",
        "processStartupTime": 0,
        "processShutdownTime": None,
        "registerTime": 0,
        "unregisterTime": None,
        "pausedRanges": [],
        "name": printable(name),
        "isMainThread": tid == pid,
        "processName": printable(process),
        "pid": str(pid),
        "tid": tid,
        "samples": samples,
        "markers": {
            "data": [], "name": [], "startTime": [], "endTime": [], "phase": [], "category": [], "length": 0
        },
    }  # fmt: skip


def _meta(start: int, totals: Totals, meta: Meta, *, empty: bool) -> dict[str, Any]:
    said = circumstances(meta) + losses(totals, empty=empty)
    return {
        "interval": (period_of(meta) or _MS) / _MS,
        "startTime": start // _MS,
        "profilingStartTime": 0,
        "profilingEndTime": meta.duration * 1000,
        "processType": 0,
        "categories": [
            {"name": name, "color": color, "subcategories": ["Other"]} for name, color in _CATEGORIES.values()
        ],
        "product": printable(meta.title) or "rubyunwind",
        "stackwalk": 1,
        "version": _GECKO_VERSION,
        "preprocessedProfileVersion": VERSION,
        "arguments": printable(meta.command),
        "platform": "X11",
        "oscpu": "Linux",
        "symbolicated": True,
        "markerSchema": [],
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "importedFrom": "rubyunwind",
        "usesOnlyOneStackType": False,
        "sourceCodeIsNotOnSearchfox": True,
        "extra": [
            {
                "label": "Recording",
                "entries": [{"label": "", "format": "string", "value": printable(text)} for text in said],
            }
        ],
    }


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the profile. One without samples has one thread that is named so: the site wants a thread."""
    tables = tables_of(samples)
    shared = _Shared(tables)
    # Whole milliseconds: a fraction at this size would lose nanoseconds of each sample's time.
    start = start_of(tables, meta) // _MS * _MS
    profile = {
        "meta": _meta(start, totals, meta, empty=not tables.threads),
        "shared": shared.tables(),
        "libs": shared.libraries(),
        "threads": [],
    }
    file.write(f"{_encode(profile)[:-2]}".encode("ascii"))
    threads = [
        (thread.name, thread.process, thread.pid, _tid(thread), _samples(thread, shared.leaves, start))
        for thread in tables.threads
    ]
    if not threads:
        none = {"stack": [], "time": [], "weight": [], "weightType": "samples", "length": 0}
        threads = [(NO_SAMPLES, NO_SAMPLES, 0, 0, none)]
    for number, thread in enumerate(threads):
        file.write(b"," if number else b"")
        file.write(_encode(_thread(*thread)).encode("ascii"))
    file.write(b"]}\n")


def _tid(thread: ThreadSamples) -> int | str:
    """A thread's id, which is a text where the thread is in the file twice."""
    return thread.tid if thread.unit == "samples" else f"{thread.tid} {printable(thread.unit)}"
