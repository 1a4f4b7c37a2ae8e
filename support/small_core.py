# SPDX-License-Identifier: Apache-2.0
"""Makes a small core file of a big one: `python support/small_core.py CORE OUT [--sysroot DIR]`.

Kept are the notes and those pages that are read while Ruby is found in the core and the stacks of its threads
are walked and named. Pages that come from mapped files go in, too, so the small core needs no file beside it.
Nothing else of the process's memory is in it. OUT is compressed by gzip when it ends in .gz.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from rubyunwind.elf.file import ElfFile
from rubyunwind.process.core import CoreFile
from rubyunwind.process.core_memory import PF_R, PF_W, PF_X
from rubyunwind.process.core_notes import FileRange
from rubyunwind.process.dumped_image import DumpedImage
from rubyunwind.process.mappings import Mapping
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.detect import RubyRuntime, find_ruby
from rubyunwind.ruby.stack_walk import walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.tls import thread_context

PAGE = 4096
ET_CORE, PT_LOAD, PT_NOTE, PN_XNUM = 4, 1, 4, 0xFFFF
EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
PHDR = struct.Struct("<IIQQQQQQ")


class Recorder:
    """A core's memory that remembers which pages were read."""

    def __init__(self, core: CoreFile) -> None:
        self.core = core
        self.pages: set[int] = set()

    def read(self, address: int, length: int) -> bytes:
        data = self.core.memory.read(address, length)
        self.pages.update(range(address // PAGE, (address + max(length, 1) - 1) // PAGE + 1))
        return data

    def u64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little")

    def open(self, mapping: Mapping) -> ElfFile:
        """Read a mapped file through memory, as whoever has the small core only must do it."""
        if not mapping.is_file:
            raise OSError(f"{mapping.path} is no file")
        ranges = [
            FileRange(one.start, one.end, one.offset, one.path)
            for one in self.core.mappings
            if one.file_key == mapping.file_key
        ]
        return DumpedImage(ranges, self.read, mapping.path)


def stack(memory: Recorder, runtime: RubyRuntime, context: int) -> list[Frame]:
    """Walk and name one stack, leaf first."""
    symbolizer = RubySymbolizer(memory, runtime)
    frames: list[Frame] = []
    caller = None
    for frame in reversed(list(walk_stack(memory, runtime.layout, context))):
        if frame.kind == "cfunc":
            frames.append(symbolizer.cfunc_frame(frame.method_entry, caller))
        else:
            caller = symbolizer.ruby_frame(frame.iseq_body, frame.pc, frame.method_entry)
            frames.append(caller)
    return frames[::-1]


def touch(core: CoreFile, ec: int) -> tuple[set[int], list[list[Frame]]]:
    """Do everything that a snapshot does; return the pages and the stacks."""
    memory = Recorder(core)
    runtime = find_ruby(core.pid, core.mappings, memory, open_elf=memory.open, context=ec, search=True)
    if runtime is None:
        sys.exit(f"{core.name}: no Ruby in it")
    contexts = [runtime.running_context(memory)]
    if runtime.tls is not None:
        for thread in core.threads:
            try:
                contexts.append(thread_context(memory, runtime.tls, thread.thread_pointer))
            except MemoryReadError as error:
                print(f"thread {thread.tid}: {error}", file=sys.stderr)
    stacks = [stack(memory, runtime, context) for context in dict.fromkeys(contexts) if context]
    return memory.pages, stacks


def runs(pages: set[int], start: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Cut [start, end) into pieces (start, end, kept)."""
    for kept, group in itertools.groupby(range(start // PAGE, end // PAGE), pages.__contains__):
        numbers = list(group)
        yield numbers[0] * PAGE, (numbers[-1] + 1) * PAGE, kept


def small_core(core: CoreFile, pages: set[int]) -> bytes:
    """Return an ELF core file with every mapping, but the bytes of those pages only."""
    notes = core.raw_notes()
    pieces = []
    for mapping in core.mappings:
        flags = mapping.readable * PF_R | mapping.writable * PF_W | mapping.executable * PF_X
        pieces += [(*piece, flags) for piece in runs(pages, mapping.start, mapping.end)]
    if len(pieces) + 1 >= PN_XNUM:
        sys.exit(f"{core.name}: too many mappings for a small core ({len(pieces)})")
    offset = EHDR.size + PHDR.size * (len(pieces) + 1)
    headers = [PHDR.pack(PT_NOTE, PF_R, offset, 0, 0, len(notes), 0, 4)]
    body = [notes]
    offset += len(notes)
    for start, end, kept, flags in pieces:
        data = core.memory.read(start, end - start) if kept else b""
        headers.append(PHDR.pack(PT_LOAD, flags, offset, start, 0, len(data), end - start, PAGE))
        body.append(data)
        offset += len(data)
    identity = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header = EHDR.pack(
        identity, ET_CORE, core.machine, 1, 0, EHDR.size, 0, 0, EHDR.size, PHDR.size, len(headers), 0, 0, 0
    )
    return b"".join((header, *headers, *body))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small core file of a big one.")
    parser.add_argument("core", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sysroot", default="/", help="where the mapped files are (default: /)")
    parser.add_argument("--ec", type=lambda text: int(text, 0), default=0, help="address of a context")
    options = parser.parse_args()
    with CoreFile.open(options.core, options.sysroot) as core:
        pages, stacks = touch(core, options.ec)
        data = small_core(core, pages)
    # No name and no time: the same core gives the same bytes.
    packed = gzip.compress(data, 9, mtime=0) if options.out.suffix == ".gz" else data
    options.out.write_bytes(packed)
    for frames in stacks:
        print(json.dumps([[frame.path, frame.line, frame.label] for frame in frames]))
    print(f"{options.out}: {len(pages)} pages, {len(packed)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
