# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed in Python: one function per target, which takes any bytes and must neither raise nor dawdle.

Errors that the docstrings of the package promise are fine, everything else is a finding. Large files (a core,
an object) are not the input itself: it says what to change in them, see `patched`. run_target.py runs a
target. The builders of test data in tests/unit are used, so that folder has to be on PYTHONPATH, as run.py
sees to.
"""

from __future__ import annotations

import gzip
import logging
import os
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import core_images
from dwarf_images import debug_parts
from elf_images import (
    ALLOC,
    EH_FRAME,
    EXEC,
    PT_LOAD,
    SHT_DYNSYM,
    SHT_NOTE,
    SHT_STRTAB,
    SHT_SYMTAB,
    TEXT,
    EhFrame,
    Part,
    elf_image,
)
from image import PieceMemory, read_images
from ruby_memory import BASE, RubyMemory

from rubyunwind.abi import decode_trace
from rubyunwind.bpf.btf import Btf
from rubyunwind.bpf.spec import CollectionSpec, load_collection_spec
from rubyunwind.elf import dependencies, dwarf
from rubyunwind.elf.deltas import StackDeltas, extract_stack_deltas
from rubyunwind.elf.demangle import demangle
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.functions import function_starts, start_of
from rubyunwind.elf.ids import build_id, file_id
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError, RubyUnwindError
from rubyunwind.process.core import CoreFile
from rubyunwind.process.mappings import parse_mappings
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.profiler.snapshot import take_snapshot
from rubyunwind.ruby.identifiers import find_identifier_table
from rubyunwind.ruby.labels import read_iseq_body
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.layouts.debug_info import _MEMBERS, offsets_of
from rubyunwind.ruby.layouts.described import with_offsets
from rubyunwind.ruby.lines import LineTable, position_of
from rubyunwind.ruby.procinfo import make_proc_info
from rubyunwind.ruby.selfcheck import check_stack
from rubyunwind.ruby.stack_walk import walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.vm_search import find_vm_pointer

ROOT = Path(__file__).parent.parent

logging.disable()

MAX_READS = 100_000
"""Reads of memory that one input may cost."""
MAX_LENGTH = 16 << 20
"""Bytes of the largest read of memory."""


class Input:
    """Numbers off the front of the input; zeros when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little", signed=True)

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece

    def rest(self) -> bytes:
        return self._data[self._at :]


_ODD = (
    0,
    1,
    8,
    0xFFF,
    0xFFFF,
    1 << 24,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 47,
    1 << 56,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 8,
)


def patched(base: bytes, source: Input) -> bytearray:
    """Return `base` changed as the input says: bytes and words written, pieces copied, the end cut off."""
    data = bytearray(base)
    while source and data:
        code = source.number(1)
        # Two in three places are in what leads to all else.
        at = source.number(3) % (min(len(data), 8192) if code & 3 else len(data))
        match code >> 2 & 7:
            case 0 | 1:
                piece = source.take(source.number(1) % 32 + 1)
                data[at : at + len(piece)] = piece
            case 2:
                word = _ODD[source.number(1) % len(_ODD)].to_bytes(8, "little")
                data[at & ~7 : (at & ~7) + 8] = word
            case 3:
                word = struct.pack("<I", _ODD[source.number(1) % len(_ODD)] & 0xFFFFFFFF)
                data[at & ~3 : (at & ~3) + 4] = word
            case 4:
                start = source.number(3) % len(data)
                piece = bytes(data[start : start + source.number(1)])
                data[at : at + len(piece)] = piece
            case 5:
                size = 8 if code & 128 else 4
                at &= -size
                value = int.from_bytes(data[at : at + size], "little") + source.signed(1)
                data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
            case 6:
                data[at] ^= 1 << source.number(1) % 8
            case _:
                del data[at:]
    return data


# ---- ELF ----


@cache
def _elf_bases() -> tuple[bytes, ...]:
    frame = EhFrame()
    cie = frame.cie(bytes([0x0C, 7, 8, 0x90, 1]))
    frame.fde(cie, TEXT, 0x40, bytes([0x41, 0x0E, 16, 0x86, 2, 0x44, 0x0D, 6]))
    frame.fde(cie, TEXT + 0x40, 0x10, b"")
    names = b"\0main\0helper\0_ZN3foo3barEv\0"
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, kind, 0, 1, TEXT + at, size)
        for name, kind, at, size in (
            (1, 0x12, 0, 0x20),
            (6, 2, 0x20, 0x10),
            (13, 0x22, 0x30, 0),
            (1, 0x11, 8, 8),
        )
    )
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    parts = (
        Part(".text", bytes(0x50), TEXT, flags=ALLOC | EXEC),
        Part(".eh_frame", bytes(frame.data), EH_FRAME, flags=ALLOC),
        Part(".debug_frame", bytes(64)),
        Part(".symtab", symbols, type=SHT_SYMTAB, link=5, entry_size=24),
        Part(".strtab", names, type=SHT_STRTAB),
        Part(".dynsym", symbols, type=SHT_DYNSYM, link=5, entry_size=24),
        Part(".note", note, type=SHT_NOTE),
        Part(".gnu_debuglink", b"a.debug\0" + bytes(4)),
        Part(
            ".debug_line",
            struct.pack("<IIQQ", 1, 0, 4, 1) + bytes.fromhex("789c4b4c4a060003240187"),
            flags=0x800,
        ),
    )
    dynamic = struct.pack("<8Q", 1, 1, 5, 0x1100, 10, len(names), 0, 0)
    segments = [
        (PT_LOAD, 5, 0, 0, 0x300, 0x400),
        (3, 4, 0x200, 0x200, 0x10, 0x10),
        (2, 6, 0x210, 0x210, len(dynamic), len(dynamic)),
        (0x6474E550, 4, 0x280, 0x280, 12, 12),
    ]
    loaded = bytearray(elf_image(*parts, segments=segments))
    loaded[0x210 : 0x210 + len(dynamic)] = dynamic
    loaded[0x280:0x288] = struct.pack("<BBBBi", 1, 0x1B, 3, 0x3B, 16)
    return elf_image(*parts, elf_type=1), elf_image(*parts[:5], machine=183), bytes(loaded)


def elf(data: bytes) -> None:
    """Everything that is read of a mapped file."""
    source = Input(data)
    bases = _elf_bases()
    which = source.number(1) % (len(bases) + 1)
    image = source.rest() if which == len(bases) else bytes(patched(bases[which], source))
    with suppress(DecodeError):
        _read_elf(ElfFile(image))


def _read_elf(file: ElfFile) -> None:
    table = SymbolTable(file).load()
    for address in (0, TEXT, TEXT + 0x25, EH_FRAME, (1 << 64) - 1):
        found = table.lookup(address)
        if found is not None:
            demangle(found[0])
    table.find("main")
    build_id(file)
    file_id(file)
    for section in file.sections[:64]:
        with suppress(DecodeError):
            file.data(section)
    for segment in file.segments[:64]:
        with suppress(DecodeError):
            file.read_virtual(segment.address, min(segment.memory_size, 64))
            file.load_bias(0x7F0000000000, segment.offset & -4096, page_size=4096)
    with suppress(DecodeError):
        dependencies._names(file)
    with suppress(DecodeError):
        start_of(function_starts(file), TEXT)
    deltas = extract_stack_deltas(file)
    assert StackDeltas.from_bytes(deltas.to_bytes()).addresses() == deltas.addresses()
    deltas.pages()
    deltas.pack([0] * len(deltas.infos))


def deltas(data: bytes) -> None:
    """A table from the disk cache."""
    with suppress(DecodeError):
        table = StackDeltas.from_bytes(data)
        table.pack([0] * len(table.infos))
        table.pages()


# ---- core files ----


@cache
def _core_bases() -> tuple[bytes, ...]:
    page = core_images.Area(
        0x400000, _elf_bases()[2].ljust(0x2000, b"\0")[:0x2000], 0x4000, core_images.R | core_images.X
    )
    notes = (
        core_images.process(77)
        + core_images.status(77, registers={16: 0x400010, 19: 0x7FF000})
        + core_images.auxv(page_size=4096, vdso=0x7FFF0000)
        + core_images.files((0x400000, 0x403000, 0, b"/bin/ruby"), (0x403000, 0x404000, 0x3000, b"/bin/ruby"))
        + core_images.status(78)
    )
    areas = [
        page,
        core_images.Area(0x7FF000, bytes(0x1000)),
        core_images.Area(0x7FFF0000, _elf_bases()[0], 0x2000),
    ]
    hand = [
        core_images.Core(areas=areas, notes=notes).build(),
        core_images.Core(areas=areas, notes=notes, sections_only=True).build(),
        core_images.Core(areas=areas, notes=notes, many=True).build(),
    ]
    small = sorted((ROOT / "tests/cores").glob("*.gz"))
    return (*hand, *(gzip.decompress(path.read_bytes()) for path in small))


@cache
def _empty_root() -> str:
    return tempfile.mkdtemp(prefix="rubyunwind-fuzz-")


def _changed_core(source: Input) -> int:
    """Return a descriptor of a core file, to be closed by the caller."""
    bases = _core_bases()
    which = source.number(1) % (len(bases) + 1)
    data = source.rest() if which == len(bases) else patched(bases[which], source)
    fd = os.memfd_create("core")
    os.write(fd, data)
    return fd


def core(data: bytes) -> None:
    """What the core reader gives of a core file."""
    fd = _changed_core(Input(data))
    with suppress(RubyUnwindError), CoreFile(fd, "core", _empty_root()) as file:
        mappings = file.mappings
        assert all(one.start < one.end for one in mappings)
        file.missing  # noqa: B018
        with suppress(DecodeError):
            file.raw_notes()
        for mapping in mappings[:32]:
            with suppress(RubyUnwindError):
                file.memory.read(mapping.start, min(mapping.end - mapping.start, 4096))
            with suppress(RubyUnwindError):
                file.memory.read(mapping.end - 8, 16)
            with suppress(RubyUnwindError), file.image(mapping) as image:
                _read_elf(image)


def snapshot(data: bytes) -> None:
    """All stacks of a core: finding Ruby, unwinding, naming."""
    fd = _changed_core(Input(data))
    try:
        with suppress(RubyUnwindError):
            take_snapshot(core=f"/proc/self/fd/{fd}", sysroot=_empty_root())
    finally:
        os.close(fd)


# ---- Ruby ----


class WildMemory(PieceMemory):
    """An image's memory; what it does not hold is unreadable, zeros, a chain of pointers, or noise."""

    def __init__(self, pieces: list[tuple[int, bytes]], kind: int, parameter: int) -> None:
        super().__init__(pieces)
        self._kind, self._parameter = kind % 4, parameter

    def read(self, address: int, length: int) -> bytes:
        assert length <= MAX_LENGTH, f"{length} bytes were read at once"
        assert self.reads < MAX_READS, f"{MAX_READS} reads"
        try:
            return super().read(address, length)
        except MemoryReadError:
            if not self._kind or length < 0 or not 0 <= address < (1 << 64) - length:
                raise
        if self._kind == 1 or length > 1 << 16:
            return bytes(length)
        first = address & ~7
        words = range(first, address + length, 8)
        if self._kind == 2:
            raw = b"".join(struct.pack("<Q", (word + 8 * self._parameter) % (1 << 64)) for word in words)
        else:
            raw = b"".join(struct.pack("<Q", self._noise(word)) for word in words)
        return raw[address - first : address - first + length]

    def _noise(self, word: int) -> int:
        mixed = (word + self._parameter) * 0x9E3779B97F4A7C15 % (1 << 64)
        mixed = (mixed ^ mixed >> 31) * 0xBF58476D1CE4E5B9 % (1 << 64)
        # A pointer, a small number, or an object's flags.
        return (mixed >> 17 & ~7, mixed >> 57, mixed >> 40 & 0xFFFF, mixed)[mixed & 3]

    def change(self, source: Input) -> None:
        """Change one word of the image."""
        count = sum(len(data) // 8 for _, data in self.pieces)
        data, at = self._word(source.number(3) % count)
        before = int.from_bytes(data[at : at + 8], "little")
        code = source.number(1)
        match code % 6:
            case 0:
                value = source.number(8)
            case 1:
                value = _ODD[source.number(1) % len(_ODD)]
            case 2:
                value = self._address(source.number(3) % count) + source.signed(1)
            case 3:
                other, place = self._word(source.number(3) % count)
                value = int.from_bytes(other[place : place + 8], "little")
            case 4:
                value = before + source.signed(1)
            case _:
                value = before ^ 1 << source.number(1) % 64
        data[at : at + 8] = (value % (1 << 64)).to_bytes(8, "little")

    def _word(self, number: int) -> tuple[bytearray, int]:
        for _, data in self.pieces:
            if number < len(data) // 8:
                return data, 8 * number
            number -= len(data) // 8
        raise AssertionError(number)

    def _address(self, number: int) -> int:
        for address, data in self.pieces:
            if number < len(data) // 8:
                return address + 8 * number
            number -= len(data) // 8
        raise AssertionError(number)


class _World:
    """Memory of a Ruby, and the frames that are named in it: iseq body, pc, method entry."""

    def __init__(
        self, layout: Any, pieces: list[tuple[int, bytes]], context: int, identifiers: int,
        frames: list[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        self.layout, self.pieces, self.context = layout, pieces, context
        self.identifiers, self.frames = identifiers, frames


@cache
def _worlds() -> tuple[_World, ...]:
    worlds = []
    for image in read_images((ROOT / "fuzz/seeds/steps.images").read_bytes()):
        number = int.from_bytes(image.value("ruby_procs")[:4], "little")
        layout = _layout(f"{number >> 16}.{number >> 8 & 0xFF}.{number & 0xFF}")
        memory = PieceMemory(image.pieces)
        frames = [(f.iseq_body, f.pc, f.method_entry) for f in walk_stack(memory, layout, image.context)]
        worlds.append(_World(layout, image.pieces, image.context, image.identifiers, frames))
    return (*worlds, *(_made_up(_layout(version)) for version in ("2.5.0", "3.3.0", "3.4.0")))


def _layout(version: str) -> Any:
    return find_layout(version).layout


def _made_up(layout: Any) -> _World:
    """A Ruby of a version that is not at hand."""
    memory = RubyMemory(layout)
    table, ids = memory.identifiers(["each", "puts"])
    entries = [0]
    if layout.class_classpath is not None:
        foo = memory.klass("Foo")
        entries = [
            memory.method_entry(foo, ids["each"]),
            memory.method_entry(memory.klass(None, attached=foo), ids["puts"]),
        ]
    frames = []
    local, _ = memory.iseq("bar", lines=memory.one_line(3))
    for kind, label in ((1, "bar"), (2, "block in bar"), (4, "rescue in bar"), (6, "<main>")):
        _, body = memory.iseq(label, kind=kind, lines=memory.one_line(7), parent=local, local=local)
        code = memory.u64(body + layout.body_iseq_encoded)
        frames += [(body, code + 16, entry) for entry in entries]
    frames += [(0, 0, entry) for entry in entries]
    return _World(layout, [(BASE, bytes(memory.block))], BASE, table, frames)


def names(data: bytes) -> None:
    """Frames of a Ruby whose memory is not what it should be."""
    source = Input(data)
    worlds = _worlds()
    world = worlds[source.number(1) % len(worlds)]
    memory = WildMemory(world.pieces, source.number(1), source.signed(1))
    context = world.context + source.signed(1)
    changes = source.number(1)
    for _ in range(changes):
        if not source:
            break
        memory.change(source)
    layout = world.layout
    frames = list(world.frames)
    with suppress(RubyUnwindError):
        frames += [
            (f.iseq_body, f.pc, f.method_entry) for f in walk_stack(memory, layout, context, limit=128)
        ]
    runtime: Any = SimpleNamespace(layout=layout, identifier_table=world.identifiers)
    symbolizer = RubySymbolizer(memory, runtime, recheck_after=0)
    for body, pc, entry in frames[:256]:
        found = symbolizer.ruby_frame(body, pc, entry) if body else symbolizer.cfunc_frame(entry)
        assert found.kind in ("ruby", "cfunc", "unknown")
        assert len(found.name) <= 1 << 17
    check_stack(memory, layout, context)
    start = world.pieces[0][0]
    find_identifier_table(memory, layout, start, 1024)
    find_vm_pointer(memory, layout, start, 512)


@cache
def _debug_bases() -> tuple[bytes, ...]:
    layout = _layout("3.3.0")
    offsets = {name: getattr(layout, name) for name in _MEMBERS if getattr(layout, name) is not None}
    return tuple(elf_image(*debug_parts(offsets, version=version)) for version in (4, 5))


def debug_info(data: bytes) -> None:
    """Offsets out of debug information, and a stack that is walked by them."""
    dwarf.MOST_STEPS = 20_000  # the bound is reached sooner
    source = Input(data)
    bases = _debug_bases()
    which = source.number(1) % (len(bases) + 1)
    kind, parameter = source.number(1), source.signed(1)
    image = source.rest() if which == len(bases) else bytes(patched(bases[which], source))
    with suppress(DecodeError):
        offsets = offsets_of(ElfFile(image))
        for world in _worlds() if offsets else ():
            layout = with_offsets(world.layout, offsets)
            make_proc_info(layout, "3.3.8", 1)
            check_stack(WildMemory(world.pieces, kind, parameter), layout, world.context)


def lines(data: bytes) -> None:
    """Line tables: entries, and the succinct index of positions."""
    source = Input(data)
    worlds = _worlds()
    layout = worlds[source.number(1) % len(worlds)].layout
    size, position, succinct = source.number(4), source.number(4), source.number(8)
    pc, encoded, count = source.number(8), source.number(8), source.number(4)
    body = source.number(8)
    memory = WildMemory([(0x1000, source.rest().ljust(512, b"\0"))], size, position & 0x7F)
    with suppress(RubyUnwindError):
        position_of(pc, encoded, count)
    for address in (0x1000, succinct):
        with suppress(RubyUnwindError):
            line = LineTable(memory, layout, 0x1000, size % 4096, address).line(position)
            assert -(1 << 31) <= line < 1 << 31
    with suppress(RubyUnwindError):
        LineTable(memory, layout, body, size, succinct).line(position)
    with suppress(RubyUnwindError):
        read_iseq_body(memory, layout, 0x1000).lines.line(position)


# ---- the rest ----


def trace(data: bytes) -> None:
    """A record of the kernel side."""
    with suppress(DecodeError):
        found = decode_trace(data)
        assert len(bytes(found)) == 80 + 24 * found.stack_len
        for frame in found.frames:
            (frame.kind, frame.error, frame.method_entry, frame.return_address, repr(frame))
        (found.comm, found.origin, found.flags, found.error, repr(found), found.apm_trace_id)
        again = type(found).from_bytes(bytes(found))
        assert again == found


def maps(data: bytes) -> None:
    """The text of /proc/PID/maps."""
    for mapping in parse_mappings(data):
        assert mapping.is_file or mapping.file_key


def libraries(data: bytes) -> None:
    """The cache of the dynamic linker."""
    kept = dependencies._CACHE
    dependencies._CACHE = SimpleNamespace(read_bytes=lambda: data)  # type: ignore[assignment]
    try:
        dependencies._library_cache()
    finally:
        dependencies._CACHE = kept


@cache
def _objects() -> tuple[bytes, bytes]:
    spec = load_collection_spec(arch="amd64")
    return spec.data, spec.btf.data


def btf(data: bytes) -> None:
    """An object file, and the types in it."""
    source = Input(data)
    whole, types = _objects()
    with suppress(DecodeError):
        match source.number(1) % 4:
            case 0:
                CollectionSpec.parse(bytes(patched(whole, source)))
            case 1:
                _read_btf(bytes(patched(types, source)))
            case 2:
                body = source.rest()
                count = len(body) // 2 // 4 * 4
                head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, count, count, len(body) - count)
                _read_btf(head + body)
            case _:
                CollectionSpec.parse(source.rest())


def _read_btf(data: bytes) -> None:
    found = Btf.parse(data)
    for read in (found.layouts, found.enums, found.map_definitions):
        with suppress(DecodeError):
            read()
    for number in (1, 2, 3):
        with suppress(DecodeError):
            found.size_of(number)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "elf": elf,
    "deltas": deltas,
    "debug_info": debug_info,
    "core": core,
    "snapshot": snapshot,
    "names": names,
    "lines": lines,
    "trace": trace,
    "maps": maps,
    "libraries": libraries,
    "btf": btf,
}
