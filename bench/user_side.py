# SPDX-License-Identifier: Apache-2.0
"""What user space makes of traces: taken off the ring, decoded, turned into samples, written.

The records are made up, with the shape of a mixed stack, and go the way that real ones go: perf record ->
grouped and counted (C) -> distinct stacks decoded and named -> columns -> a format. Only names are not looked
up in a process, which happens once a distinct frame and quarter of a second. One core.
"""

from __future__ import annotations

import io
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import Row, say
from stats import spread, timed
from target import ROOT

from rubyunwind.abi import Frame as TraceFrame
from rubyunwind.abi import FrameMarker, Trace, TraceFlag, TraceOrigin, decode_trace
from rubyunwind.bpf.perf_sinks import PERF_RECORD_SAMPLE, TraceSink
from rubyunwind.bpf.trace_batch import TraceBatch
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS, Format, Meta
from rubyunwind.profiler.assembler import Assembler
from rubyunwind.profiler.process import InterpreterLoop
from rubyunwind.profiler.sample import Frame, Totals
from rubyunwind.profiler.samples import Samples

sys.path.append(str(ROOT / "tests/page"))
from large_profile import large_profile

__all__ = ["measure"]

_PID = 4242
_FILE = 0x1234_5678_9ABC_DEF0
_LOOP = InterpreterLoop(_FILE, 0x1000, 0x1FFF)


@dataclass(frozen=True, slots=True)
class _Load:
    """`count` records of `frames` frames, `distinct` of them different."""

    frames: int
    distinct: int
    count: int

    def __str__(self) -> str:
        return f"{self.frames} frames, {self.share}"

    @property
    def share(self) -> str:
        return f"{self.distinct:,} of {self.count:,} distinct"


class _Names:
    """Stands for the tracker with one process, its symbolizer and its one file."""

    interpreter = _LOOP
    ruby = None
    replaced = read = 0
    hides_frames = False
    former = None
    ended = 0.0
    container = None
    aarch64 = False

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, int], Frame] = {}
        self.files = self.symbolizer = self

    def get(self, pid: int, time: float | None = None) -> _Names:
        return self

    def reused(self, pid: int) -> bool:
        return False

    def believed_for(self, now: float) -> float:
        return 0.25

    def by_id(self, file_id: int) -> _Names:
        return self

    def frame(self, address: int) -> Frame:
        return self._made("native", 0, address)

    def proven(self, grounds: object, seen: tuple[float, float]) -> float:
        return seen[1]

    def ruby_frame(self, body: int, pc: int, method_entry: int, seen: object, grounds: object) -> Frame:
        return self._made("ruby", body, pc)

    def cfunc_frame(self, method_entry: int, caller: Frame | None, seen: object, grounds: object) -> Frame:
        return self._made("cfunc", 0, method_entry)

    def _made(self, kind: Any, one: int, two: int) -> Frame:
        key = (kind, one, two)
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = Frame(
                kind, f"{kind}_{one:x}_{two:x}", path="/app/a.rb", line=two & 0xFFF
            )
        return frame


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    count, runs = (4_000, 3) if quick else (20_000, 7)
    rows: list[Row] = []
    for load in (_Load(30, count // 100, count), _Load(128, count // 100, count), _Load(30, count, count)):
        say(f"traces a second in user space: {load}, {runs} runs")
        rows += _measure(load, runs)
    say(f"samples a second written: {count:,} stacks, each several times, 3 runs")
    return rows + _measure_large(count, 3)


def _measure(load: _Load, runs: int) -> list[Row]:
    sink = TraceSink()
    try:
        events = _perf_records(load)
        grouped, batch = timed(runs, lambda: _group(sink, events), sink.take)
    finally:
        sink.free()
    traces = [bytes(batch.stacks[index]) for index in batch.stack]
    decoded, _ = timed(runs, lambda: [decode_trace(trace) for trace in traces])
    named, samples = timed(runs, lambda: _name(batch))
    listed, _ = timed(runs, lambda: list(samples))
    written = {name: timed(runs, lambda each=each: _write(each, samples))[0] for name, each in _writers()}
    how = f"{load.share}; {runs} runs, median (range)"
    name = f"{load.frames} frames" + (", all distinct" if load.distinct == load.count else "")

    def row(what: str, seconds: list[float], detail: str) -> Row:
        return Row(
            f"{what}, {name}",
            spread([load.count / took / 1e3 for took in seconds], 0),
            "1,000/s",
            f"{detail}; {how}",
        )

    return [
        row("traces grouped and counted", grouped, "in C, called from Python (really by libbpf), and taken"),
        row("traces decoded", decoded, "decode_trace alone, no field read"),
        row(
            "grouped traces to samples", named, "a batch and an Assembler that knows no stack, names made up"
        ),
        row("samples listed", listed, "a Sample object for each"),
        *(row(f"samples as {name}", took, "written into memory") for name, took in written.items()),
    ]


def _measure_large(stacks: int, runs: int) -> list[Row]:
    """Many distinct stacks, each with several samples: what a recording of a large application is."""
    count = 6 * stacks
    samples = large_profile(stacks, count, 1_700_000_000_000_000_000)
    how = f"written to /dev/null; {stacks:,} of {count:,} distinct; {runs} runs, median (range)"
    rows = []
    with Path(os.devnull).open("wb") as file:
        for name, each in _writers():
            took, _ = timed(runs, lambda each=each: each(file, samples, Totals(), Meta(rate=99.0)))
            speed = spread([count / seconds / 1e3 for seconds in took], 0)
            rows.append(Row(f"samples as {name}, 60 frames, {stacks:,} stacks", speed, "1,000/s", how))
    return rows


def _traces(load: _Load) -> list[bytes]:
    """Return the distinct traces: six native frames to four Ruby frames, ending in native ones."""
    draw = random.Random(7)
    found = []
    for number in range(load.distinct):
        frames = []
        for at in range(load.frames):
            if at % 10 in (4, 5, 6, 7):
                frames.append(
                    TraceFrame(
                        file_id=0x7F00_0000_0000 + 64 * draw.randrange(400),
                        addr_or_line=number + at,
                        kind=FrameMarker.RUBY,
                    )
                )
            else:
                # Every group of Ruby frames is followed by the loop that runs it.
                address = 0x1800 if at % 10 == 8 else 0x10_0000 + 16 * draw.randrange(4000)
                frames.append(
                    TraceFrame(
                        file_id=_FILE, addr_or_line=address, kind=FrameMarker.NATIVE, return_address=True
                    )
                )
        flags = TraceFlag.NATIVE_ROOT | TraceFlag.RUBY_MET | TraceFlag.RUBY_BASE | TraceFlag.EC_FROM_TLS
        trace = Trace(
            pid=_PID, tid=_PID, comm="ruby", origin=TraceOrigin.SAMPLING, flags=flags, frames=frames
        )
        found.append(bytes(trace))
    return found


def _perf_records(load: _Load) -> list[Any]:
    """Return pointers to PERF_RECORD_SAMPLEs as they lie in a ring: header, size, payload, padding."""
    from rubyunwind._native import ffi

    traces = _traces(load)
    order = (
        random.Random(8).choices(range(load.distinct), k=load.count)
        if load.distinct < load.count
        else range(load.count)
    )
    made = []
    for trace in traces:
        payload = trace.ljust(((len(trace) + 4 + 7) & ~7) - 4, b"\0")
        size = 12 + len(payload)
        head = PERF_RECORD_SAMPLE.to_bytes(4, "little") + bytes(2) + size.to_bytes(2, "little")
        made.append(ffi.new("char[]", head + len(payload).to_bytes(4, "little") + payload))
    return [made[index] for index in order]


def _group(sink: TraceSink, events: list[Any]) -> TraceBatch:
    take, group = sink._lib.group_event, sink.group
    for event in events:
        take(group, 0, event)
    return sink.take()


def _name(batch: TraceBatch) -> Samples:
    assembler = Assembler(_Names(), {})  # type: ignore[arg-type]
    samples = Samples()
    samples += assembler.samples(batch)
    return samples


def _writers() -> Iterator[tuple[str, Format]]:
    """The formats that can be written here: otlp needs an extra package."""
    for name, each in FORMATS.items():
        try:
            each.check()
        except RubyUnwindError as error:
            say(f"{name} is left out: {error}")
        else:
            yield name, each


def _write(writer: Format, samples: Samples) -> bytes:
    file = io.BytesIO()
    writer(file, samples, Totals(), Meta(rate=99.0))
    return file.getvalue()
