# SPDX-License-Identifier: Apache-2.0
"""Our own file: a whole recording, small, written while it goes on.

The file begins with a header (see chunks) and goes on with chunks that are only ever appended. Each has a
checksum, so that a reader takes what is whole:

    SAMP   strings, frames, call-tree nodes, stacks and threads that are new, then samples in columns (tables)
    TOTL   the totals so far, as JSON; the last one is in force
    META   what was recorded and how, as JSON; the last one is in force
    DONE   the recording was ended, not killed

A reader leaves out chunks of a kind it does not know if the first letter of the kind is a small one, and
stops at any other. The version in the header is raised only for changes that old readers would misread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.recording.writer import RecordingWriter

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Sample, Totals

__all__ = ["write"]


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write a whole recording at once."""
    writer = RecordingWriter(file)
    writer.add(samples)
    writer.update(totals, meta)
    writer.end()
