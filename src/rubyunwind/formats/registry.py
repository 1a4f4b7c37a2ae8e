# SPDX-License-Identifier: Apache-2.0
"""The output formats by name, and the one function that writes a profile in any of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from rubyunwind.errors import RubyUnwindError
from rubyunwind.profiler.sample import Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.difference import Side

__all__ = [
    "DIFFERENCES",
    "FORMATS",
    "Format",
    "Meta",
    "UnknownFormat",
    "Writer",
    "format_of",
    "write",
    "write_difference",
]


class UnknownFormat(RubyUnwindError, ValueError):
    """No output format has the name that was asked for."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a recording was, for formats that tell it. Everything may be left out.

    `title` heads the page; `command` is what was recorded, as a user would type it. `started` is unix
    time in ns, `duration` seconds, `rate` samples a second (0: unknown). `runtimes` names the
    interpreters that were found, for instance "ruby 3.1.2"; `backend` is what sampled ("bpf", "user"), and
    `notes` is what the user was told.
    """

    title: str = ""
    command: str = ""
    started: int = 0
    duration: float = 0.0
    rate: float = 0.0
    runtimes: tuple[str, ...] = ()
    backend: str = ""
    notes: tuple[str, ...] = ()


class Writer(Protocol):
    """Writes all samples to a binary file, which stays open. Reads `samples` once, in order."""

    def __call__(self, file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
        """Write everything; raise OSError when the file refuses it."""


@dataclass(frozen=True, slots=True)
class Format:
    """One output format; calling it writes. Its module is imported by the first call.

    `module` has a function `write` that is a Writer. `suffix` is the usual end of a file name,
    `summary` one line for people who choose.
    """

    name: str
    module: str
    suffix: str
    summary: str

    def __call__(self, file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
        """Write all samples, as a Writer does."""
        writer = cast("Writer", importlib.import_module(self.module).write)
        writer(file, samples, totals, meta)

    def check(self) -> None:
        """Raise RubyUnwindError if this format needs something that is not installed. Cheap for most."""
        if self.name in _CHECKED:
            importlib.import_module(self.module).check()


DIFFERENCES = ("flamegraph", "folded")
"""Formats that can show how two profiles differ: their modules have a `write_difference`."""

# Formats whose module has a `check`, since they need more than rubyunwind does.
_CHECKED = frozenset({"otlp"})


def format_of(path: str) -> str | None:
    """Return the name of the format whose suffix a path ends with, None if it is no format's."""
    return next((name for name, each in FORMATS.items() if path.endswith(each.suffix)), None)


def _named(*formats: Format) -> Mapping[str, Format]:
    return MappingProxyType({each.name: each for each in formats})


FORMATS: Mapping[str, Format] = _named(
    Format("flamegraph", "rubyunwind.formats.flamegraph", ".html", "one self-contained page for a browser"),
    Format("folded", "rubyunwind.formats.folded", ".folded", "one line a stack, for flame graph scripts"),
    Format(
        "speedscope", "rubyunwind.formats.speedscope", ".speedscope.json", "for speedscope.app, a thread each"
    ),
    Format("pprof", "rubyunwind.formats.pprof", ".pb.gz", "for go tool pprof and what reads its files"),
    Format("callgrind", "rubyunwind.formats.callgrind", ".callgrind", "for KCachegrind, callgrind_annotate"),
    Format(
        "firefox", "rubyunwind.formats.firefox", ".firefox.json", "for profiler.firefox.com, with a timeline"
    ),
    Format("otlp", "rubyunwind.formats.otlp", ".otlp", "OpenTelemetry profiles; needs the extra [otlp]"),
    Format("jsonl", "rubyunwind.formats.jsonl", ".jsonl", "one sample a line, for programs"),
    Format("recording", "rubyunwind.formats.recording", ".rubyunwind", "all of it, small, for `report`"),
)


def write(
    target: str | os.PathLike[str] | BinaryIO,
    format: str,  # noqa: A002 - the name is the same in Profile.write and on the command line
    samples: Iterable[Sample],
    totals: Totals | None = None,
    meta: Meta | None = None,
) -> None:
    """Write a profile to a path, or to a binary file that stays open and is flushed.

    `samples` is read once, in order; a generator will do. Raises UnknownFormat before anything is
    opened, and RubyUnwindError when the path cannot be written.
    """
    chosen = FORMATS.get(format)
    if chosen is None:
        raise UnknownFormat(f"unknown output format {format!r}; known formats: {', '.join(FORMATS)}")
    chosen.check()
    totals = totals or Totals()
    meta = meta or Meta()
    if not isinstance(target, (str, os.PathLike)):
        chosen(target, samples, totals, meta)
        target.flush()
        return
    try:
        file = open(target, "wb")  # noqa: PTH123, SIM115 - a path of any kind; closed just below
    except OSError as error:
        text = f"cannot write the {format} output to {os.fspath(target)!r}: {error.strerror}"
        raise RubyUnwindError(f"{text}; choose another path") from error
    with file:
        chosen(file, samples, totals, meta)


def write_difference(file: BinaryIO, format: str, before: Side, after: Side) -> None:  # noqa: A002
    """Write how two profiles differ, to a binary file that stays open. UnknownFormat for most formats."""
    if format not in DIFFERENCES:
        raise UnknownFormat(f"{format!r} cannot show a difference; {' and '.join(DIFFERENCES)} can")
    importlib.import_module(FORMATS[format].module).write_difference(file, before, after)
