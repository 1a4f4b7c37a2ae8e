# SPDX-License-Identifier: Apache-2.0
"""What fuzzing has found: each input here once cost too much, or raised what it must not."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from core_images import Area, Core, R, X, files, process, status
from elf_images import SHT_NOTE, SHT_STRTAB, SHT_SYMTAB, Part, elf_image

from rubyunwind.abi import ErrorCode, RubyProcInfo, decode_trace
from rubyunwind.bpf.btf import Btf
from rubyunwind.bpf.hosted import HostedCollection, HostMemory, HostTask
from rubyunwind.elf import symbols
from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.ids import build_id
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError
from rubyunwind.process.core import CoreFile
from rubyunwind.process.mappings import parse_mappings

SHF_COMPRESSED = 0x800


class DummyFrames:
    """Memory in which every control frame is one that Ruby does not show; counts reads."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self, address: int, length: int) -> bytes:
        self.reads += 1
        words = {0: 0x10000, 8: 1 << 60, 16: 0x20000}  # of the execution context: vm_stack, its size, cfp
        if length == 24:
            return struct.pack("<3Q", 0, 0, 0x79990001)  # an environment: flags of a dummy frame
        return (words.get(address - 0x1000, 0x30000).to_bytes(8, "little") * 32)[:length]

    def u64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little")


def test_a_context_whose_stack_has_no_end_gives_an_error_instead_of_a_hang() -> None:
    memory = DummyFrames()
    info = RubyProcInfo(
        version=0x30102, vm_stack=0, vm_stack_size=8, cfp=16, pc=0, iseq=16, ep=32,
        size_of_control_frame_struct=56, size_of_value=8,
    )  # fmt: skip
    with HostedCollection() as host:
        host.maps["ruby_procs"][7] = info
        record = host.run_context(0x1000, HostTask(7, 7), HostMemory(memory=memory))
    assert record is not None
    assert decode_trace(record).error == ErrorCode.STACK_LENGTH_EXCEEDED
    assert memory.reads < 10_000


class ShortMemory(DummyFrames):
    """Memory that gives less than was asked for, which the protocol forbids."""

    def read(self, address: int, length: int) -> bytes:
        return b""


def test_what_a_memory_gives_too_little_of_counts_as_unreadable() -> None:
    memory = HostMemory(memory=ShortMemory())
    with HostedCollection() as host:
        host.maps["ruby_procs"][7] = RubyProcInfo(version=0x30102)
        record = host.run_context(0x1000, HostTask(7, 7), memory)
    assert record is not None
    assert decode_trace(record).error == ErrorCode.RUBY_READ_STACK_PTR
    assert memory.failures == memory.reads == 1


def test_a_section_that_claims_to_hold_nothing_is_not_decompressed() -> None:
    packed = zlib.compress(bytes(64 << 20))
    data = struct.pack("<IIQQ", 1, 0, 0, 1) + packed
    elf = ElfFile(elf_image(Part(".debug_line", data, flags=SHF_COMPRESSED)))
    section = elf.section(".debug_line")
    assert section is not None
    tracemalloc.start()
    try:
        assert elf.data(section) == b""
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_of_many_symbol_tables_few_are_read() -> None:
    names = b"\0f\0"
    symbol = struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x1000, 8)
    parts = [Part(".strtab", names, type=SHT_STRTAB)]
    parts += [Part(".symtab", symbol, type=SHT_SYMTAB, link=1, entry_size=24) for _ in range(500)]
    elf = ElfFile(elf_image(*parts))
    assert SymbolTable(elf).lookup(0x1004) == ("f", 4)
    assert len(SymbolTable(elf)._tables()) == symbols.MAX_TABLES


def test_a_name_that_is_the_tail_of_all_others_is_searched_for_within_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(symbols, "MAX_SYMBOLS", 10)
    names = b"\0" + b"xf\0" * 11
    symbol = struct.pack("<IBBHQQ", len(names) - 2, 2, 0, 1, 0x1000, 8)
    parts = [
        Part(".strtab", names, type=SHT_STRTAB),
        Part(".symtab", symbol, type=SHT_SYMTAB, link=1, entry_size=24),
    ]
    assert SymbolTable(ElfFile(elf_image(*parts))).find("f") is None


def test_notes_are_read_up_to_a_bound_for_all_headers_together() -> None:
    empty = struct.pack("<III", 0, 0, 9)
    notes = empty * ((1 << 20) // len(empty) + 1)
    note = struct.pack("<III", 4, 4, 3) + b"GNU\0abcd"
    image = elf_image(Part(".note", notes, type=SHT_NOTE), Part(".note2", note, type=SHT_NOTE))
    assert build_id(ElfFile(image)) is None
    assert build_id(ElfFile(elf_image(Part(".note2", note, type=SHT_NOTE)))) == b"abcd"


def test_more_program_headers_than_the_kernel_would_load_count_as_none() -> None:
    def count(number: int) -> int:
        return len(ElfFile(elf_image(segments=[(1, 5, 0, 0, 1, 1)] * number)).segments)

    assert count(1170) == 1170
    assert count(1171) == 0


@pytest.mark.parametrize(
    "line", [b"55f0 r-xp 0 00:00 0", b"x-y r-xp 0 00:00 0", b"1-2 r-xp 0 ffffffffffffffff:1 0 /a"]
)
def test_a_line_that_is_no_mapping_is_left_out(line: bytes) -> None:
    good = b"55f0-56f0 r-xp 00001000 fe:01 123   /usr/bin/ruby"
    assert [mapping.start for mapping in parse_mappings(line + b"\n" + good)] == [0x55F0]


def test_structs_that_hold_each_other_twice_do_not_make_two_to_the_thirty_members() -> None:
    def struct_type(name: int, member: int, below: int) -> bytes:
        return struct.pack("<III", name, 4 << 24 | 2, 8) + 2 * struct.pack("<III", member, below, 0)

    types = struct_type(0, 1, 1) + b"".join(
        struct_type(1 if number == 30 else 0, 0, number - 1) for number in range(2, 31)
    )
    strings = b"\0s\0"
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    with pytest.raises(DecodeError, match="more than 65536 members"):
        Btf.parse(head + types + strings).layouts()


def opened(data: bytes) -> CoreFile:
    fd = os.memfd_create("core")
    os.write(fd, data)
    return CoreFile(fd, "core", "/proc/self/fdinfo")


def test_a_core_whose_headers_name_the_same_notes_many_times_is_refused() -> None:
    data = bytearray(Core(notes=process(77) + status(77) * 40, areas=[Area(0x1000)] * 20).build())
    headers = 64
    for number in range(1, 21):
        data[headers + 56 * number : headers + 56 * (number + 1)] = data[headers : headers + 56]
    with pytest.raises(DecodeError, match=r"its notes alone would have \d+"):
        opened(bytes(data))


@pytest.mark.parametrize("notes", [process(-1) + status(77), process(77) + status(77) + status(-2)])
def test_a_core_with_a_negative_process_or_thread_id_is_refused(notes: bytes) -> None:
    with pytest.raises(DecodeError, match=r"process or thread id -[12] in its notes"):
        opened(Core(notes=notes, areas=[Area(0x1000)]).build())


def test_reading_across_thousands_of_mappings_needs_no_deep_stack(tmp_path: Path) -> None:
    start, piece, count = 0x400000, 16, 3000
    size = piece * count + 4096
    image = elf_image(Part(".data", bytes(size)), segments=[(1, R | X, 0, 0, size, size)])
    (tmp_path / "program").write_bytes(image)
    table = [(start + piece * n, start + piece * (n + 1), 0, b"/program") for n in range(count)]
    notes = process(77) + status(77) + files(*table)
    fd = os.memfd_create("core")
    os.write(fd, Core(notes=notes, areas=[Area(start, image[:4096], piece * count, R | X)]).build())
    with CoreFile(fd, "core", os.fspath(tmp_path)) as file:
        assert file.memory.read(start, piece * count)[4096:] == image[:piece] * (count - 256)


def test_a_core_where_every_mapping_meets_every_program_header_is_refused() -> None:
    loads = [(1, R, 4096 * n, 0x1000 * n, 4096, 4096) for n in range(60)]
    image = elf_image(Part(".data", bytes(64)), segments=loads)
    start, count = 0x400000, 20_000
    table = [(start + 0x1000 * n, start + 0x1000 * (n + 1), 0x1000 * n, b"/program") for n in range(count)]
    notes = process(77) + status(77) + files(*table)
    with pytest.raises(DecodeError, match="20000 mapped files with more than 1048576 segments"):
        opened(Core(notes=notes, areas=[Area(start, image[:4096], 4096)]).build())
