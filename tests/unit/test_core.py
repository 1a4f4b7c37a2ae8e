# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from core_images import (
    AARCH64,
    ARM_TLS,
    SIGINFO,
    Area,
    Core,
    R,
    X,
    auxv,
    files,
    note,
    process,
    status,
)
from elf_images import elf_image

from rubyunwind.errors import AttachError, DecodeError
from rubyunwind.process.core import CoreFile
from rubyunwind.process.image import CoreProcess, LiveProcess, ProcessImage
from rubyunwind.process.memory import MemoryReadError

PAGE = 4096

Write = Callable[[Core], CoreFile]


@pytest.fixture
def opened(tmp_path: Path) -> Write:
    """Write a core and open it with an empty sysroot."""
    (tmp_path / "root").mkdir()

    def write(core: Core) -> CoreFile:
        path = tmp_path / "core"
        path.write_bytes(core.build())
        return CoreFile.open(path, tmp_path / "root")

    return write


def fails(tmp_path: Path, contents: bytes) -> str:
    path = tmp_path / "core"
    path.write_bytes(contents)
    with pytest.raises(DecodeError) as caught:
        CoreFile.open(path)
    return str(caught.value)


# What is no core, or none that is read here.


def test_an_empty_file_says_how_that_comes_about(tmp_path: Path) -> None:
    assert "is empty: its writer had no disk space, or the limit" in fails(tmp_path, b"")


def test_a_text_file_is_no_core(tmp_path: Path) -> None:
    assert "is no core file: no ELF file at all, it begins b'puts 1\\n'" in fails(tmp_path, b"puts 1\n")


def test_an_executable_is_told_apart_and_gcore_is_named() -> None:
    with pytest.raises(DecodeError, match=r"no core file; `gcore PID` writes one"):
        CoreFile.open(os.path.realpath(sys.executable))


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (Core(elf_class=1, machine=3), r"is a 32-bit ELF file \(i386\)"),
        (Core(elf_class=1), r"is a 32-bit ELF file \(x86_64\)"),
        (Core(machine=243), "is for riscv; only x86_64 and aarch64"),
        (Core(machine=4711), "is for machine 4711;"),
        (Core(machine=22, order=2), "is for s390;"),
        (Core(notes=process(1)), "has no thread's registers"),
    ],
)
def test_cores_of_other_machines_and_without_threads_are_refused_by_name(
    opened: Write, core: Core, reason: str
) -> None:
    with pytest.raises(DecodeError, match=reason):
        opened(core)


def test_a_missing_file_a_directory_and_a_missing_sysroot_are_attach_errors(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match="cannot be opened: No such file"):
        CoreFile.open(tmp_path / "nowhere")
    with pytest.raises(AttachError, match="no regular file"):
        CoreFile.open(tmp_path)
    (tmp_path / "core").write_bytes(Core().build())
    with pytest.raises(AttachError, match=r"the sysroot .* cannot be used"):
        CoreFile.open(tmp_path / "core", tmp_path / "nowhere")


@pytest.mark.parametrize("size", [8, 63, 64, 200])
def test_a_core_that_ends_in_its_headers_is_truncated(tmp_path: Path, size: int) -> None:
    message = fails(tmp_path, Core(areas=[Area(PAGE, b"x")] * 4).build()[:size])
    assert "cut off after" in message or "is truncated: its 5 headers reach to byte 344" in message


def test_a_core_that_ends_in_its_notes_is_truncated(tmp_path: Path) -> None:
    assert "is truncated: 336 bytes at" in fails(tmp_path, Core().build()[:-8])


# Notes.


def test_threads_have_their_registers_by_name(opened: Write) -> None:
    registers = {0: 15, 4: 0xF0, 16: 0xABC, 19: 0x5000, 21: 0x7000}
    notes = status(78, registers=registers) + process(77, b"puma") + status(77)
    with opened(Core(notes=notes)) as core:
        first, second = core.threads
        assert (core.pid, core.comm, core.arguments) == (77, "puma", "ruby app.rb")
        assert (first.tid, first.name, first.signal) == (78, "", 6)
        assert (second.tid, second.name) == (77, "puma")
        assert (first.registers.pc, first.registers.sp, first.registers.fp) == (0xABC, 0x5000, 0xF0)
        assert first.registers["r15"] == 15
        assert first.registers.lr == 0
        assert first.thread_pointer == 0x7000


def test_threads_of_aarch64_have_link_register_and_thread_pointer(opened: Write) -> None:
    notes = b""
    for tid in (1, 2):
        registers = {0: tid, 29: 0x290, 30: 0x300, 31: 0x310, 32: 0x320}
        notes += status(tid, registers=registers, machine=AARCH64)
        notes += note(ARM_TLS, struct.pack("<QQ", 0x1000 * tid, 0), b"LINUX")
    with opened(Core(notes=notes, machine=AARCH64)) as core:
        assert [thread.thread_pointer for thread in core.threads] == [0x1000, 0x2000]
        registers_ = core.threads[1].registers
        assert (registers_.fp, registers_.lr, registers_.sp, registers_.pc) == (0x290, 0x300, 0x310, 0x320)
        assert registers_["x0"] == 2


def test_a_signal_has_an_address_only_when_the_kernel_gave_it_one(opened: Write) -> None:
    for signal, code, expected in ((11, 1, 0xDEAD), (6, -6, 0), (11, 0, 0)):
        info = note(SIGINFO, struct.pack("<iii4xQ", signal, 0, code, 0xDEAD).ljust(128, b"\0"))
        with opened(Core(notes=process(1) + status(1) + info)) as core:
            assert core.signal_info is not None
            assert (core.signal_info.signal, core.signal_info.address) == (signal, expected)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (note(1, bytes(100)), "a thread's status has 100 bytes, 328 are needed"),
        (struct.pack("<III", 5, 1 << 20, 1) + b"CORE\0\0\0\0", "reaches past its segment"),
        (struct.pack("<III", 1 << 20, 8, 1), "reaches past its segment"),
        (note(0x46494C45, struct.pack("<QQ", 1 << 60, 4096)), "says 1152921504606846976 entries"),
        (note(0x46494C45, b"123"), "mapped files has 3 bytes"),
    ],
)
def test_notes_that_do_not_fit_are_refused(opened: Write, bad: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        opened(Core(notes=status(1) + bad))


# Memory and mappings.


def test_a_read_may_span_segments_and_stops_at_what_was_not_dumped(opened: Write) -> None:
    areas = [
        Area(0x10000, b"a" * PAGE),
        Area(0x10000 + PAGE, b"b" * PAGE, size=3 * PAGE),
        Area(0x40000, size=PAGE),
    ]
    with opened(Core(areas=areas)) as core:
        assert core.memory.read(0x10000 + PAGE - 2, 4) == b"aabb"
        assert core.memory.u64(0x10000) == int.from_bytes(b"a" * 8, "little")
        assert core.memory.u32(0x10000 + PAGE) == int.from_bytes(b"b" * 4, "little")
        for address in (0x10000 + 2 * PAGE - 1, 0x40000):
            with pytest.raises(MemoryReadError, match="not dumped"):
                core.memory.read(address, 2)
        for address, length in (
            (0, 8),
            (0xFFFF, 2),
            ((1 << 64) - 4, 8),
            (-8, 8),
            (0x10000, -1),
            (0x10000, 1 << 40),
        ):
            with pytest.raises(MemoryReadError):
                core.memory.read(address, length)


@pytest.mark.parametrize("shape", [{"many": True}, {"sections_only": True}])
def test_segments_are_found_by_section_headers_too(opened: Write, shape: dict[str, bool]) -> None:
    areas = [Area(0x10000, b"a" * PAGE, flags=R | X), Area(0x20000, size=PAGE)]
    with opened(Core(areas=areas, **shape)) as core:  # type: ignore[arg-type]
        assert core.memory.read(0x10000, 2) == b"aa"
        assert [(m.start, m.writable, m.executable) for m in core.mappings] == [
            (0x10000, False, True),
            (0x20000, True, False),
        ]


def test_a_truncated_core_still_gives_what_it_has(tmp_path: Path) -> None:
    contents = Core(areas=[Area(0x10000, b"a" * PAGE), Area(0x20000, b"b" * PAGE)]).build()
    path = tmp_path / "core"
    path.write_bytes(contents[: -PAGE - 10])
    with CoreFile.open(path) as core:
        assert core.memory.read(0x10000, 100) == b"a" * 100
        for address in (0x10000 + PAGE - 10, 0x20000):
            with pytest.raises(MemoryReadError, match="the core file is truncated before it"):
                core.memory.read(address, 8)
        assert f"truncated: it has {len(contents) - PAGE - 10} of at least {len(contents)}" in core.missing[0]


def test_a_core_that_shrinks_while_it_is_read_gives_an_error(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(Core(areas=[Area(0x10000, b"a" * PAGE)]).build())
    with CoreFile.open(path) as core:
        os.truncate(path, 0x1000)
        with pytest.raises(MemoryReadError, match="is truncated"):
            core.memory.read(0x10000, 8)
    with pytest.raises(MemoryReadError, match="is closed"):
        core.memory.read(0x10000, 8)


def test_mappings_have_names_offsets_and_the_vdso(opened: Write) -> None:
    areas = [
        Area(0x10000, b"1" * PAGE, flags=R),
        Area(0x10000 + PAGE, size=PAGE, flags=R | X),
        Area(0x10000 + 2 * PAGE, b"3" * PAGE),
        Area(0x10000 + 3 * PAGE, b"4" * PAGE),
        Area(0x50000, b"5" * PAGE, flags=R | X),
    ]
    table = files(
        (0x10000, 0x10000 + 2 * PAGE, 0, b"/lib/a.so"),
        (0x10000 + 2 * PAGE, 0x10000 + 3 * PAGE, 2 * PAGE, b"/tmp/b (deleted)"),
    )
    with opened(Core(areas=areas, notes=process(1) + status(1) + table + auxv(vdso=0x50000))) as core:
        found = [
            (m.start, m.path, m.offset, m.readable, m.writable, m.executable, m.deleted)
            for m in core.mappings
        ]
        assert found == [
            (0x10000, "/lib/a.so", 0, True, False, False, False),
            (0x10000 + PAGE, "/lib/a.so", PAGE, True, False, True, False),
            (0x10000 + 2 * PAGE, "/tmp/b", 2 * PAGE, True, True, False, True),
            (0x10000 + 3 * PAGE, "", 0, True, True, False, False),
            (0x50000, "[vdso]", 0, True, False, True, False),
        ]
        a, also_a, b, anonymous, _ = core.mappings
        assert a.file_key == also_a.file_key != b.file_key
        assert a.is_file
        assert not anonymous.is_file
    with opened(Core(areas=areas, notes=process(1) + status(1) + table)) as other:
        assert other.mappings[0].file_key != a.file_key


def test_what_a_dump_cut_in_two_is_one_mapping(opened: Write) -> None:
    areas = [
        Area(0x10000, b"1" * PAGE),
        Area(0x10000 + PAGE, size=PAGE),
        Area(0x10000 + 2 * PAGE, b"2" * PAGE),
    ]
    with opened(Core(areas=areas)) as core:
        assert [(m.start, m.end) for m in core.mappings] == [(0x10000, 0x10000 + 3 * PAGE)]


# Live and dead processes alike.


def test_a_live_process_and_a_core_are_used_in_the_same_way(opened: Write) -> None:
    vdso = elf_image()
    area = Area(0x50000, vdso.ljust(PAGE, b"\0"), flags=R | X)
    dead = opened(Core(areas=[area], notes=process(5) + status(5) + auxv(vdso=0x50000)))
    images: list[ProcessImage] = [CoreProcess(dead), LiveProcess(os.getpid())]
    assert [image.pid for image in images] == [5, os.getpid()]
    for image in images:
        mapping = next(one for one in image.mappings() if one.path == "[vdso]")
        with image.open(mapping) as elf:
            assert elf.type == 3
        assert image.memory.read(mapping.start, 4) == b"\x7fELF"
        image.close()
        image.close()
        with pytest.raises(MemoryReadError):
            image.memory.read(mapping.start, 4)
