# SPDX-License-Identifier: Apache-2.0
"""The files a dead process had mapped: believed when they are the same, else what was dumped stands in."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from core_images import Area, Core, R, W, X, files, process, status
from elf_images import PT_LOAD, PT_NOTE, elf_image
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubyunwind.elf.ids import build_id
from rubyunwind.errors import AttachError, DecodeError, RubyUnwindError
from rubyunwind.process.core import CoreFile
from rubyunwind.process.memory import MemoryReadError

PAGE = 4096
BIAS = 0x7F0000000000

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


def program(identity: bytes = b"12345678", data: bytes = b"data") -> bytes:
    """A library of three pages: headers and build id, code, writable data."""
    owner = struct.pack("<III", 4, len(identity), 3) + b"GNU\0" + identity
    headers = elf_image(
        segments=[
            (PT_LOAD, R, 0, 0, PAGE, PAGE),
            (PT_LOAD, R | X, PAGE, PAGE, PAGE, PAGE),
            (PT_LOAD, R | W, 2 * PAGE, 2 * PAGE, PAGE, PAGE),
            (PT_NOTE, R, 0x800, 0x800, len(owner), len(owner)),
        ]
    )
    assert len(headers) < 0x800
    return (
        (headers.ljust(0x800, b"\0") + owner).ljust(PAGE, b"\0")
        + b"code".ljust(PAGE, b"c")
        + data.ljust(PAGE, b"d")
    )


def cut_core(contents: bytes, path: bytes = b"/lib/a.so", *, listed: int = 3) -> Core:
    """What the default filter leaves of a process with that library: its first page and its data."""
    ranges = [(BIAS + n * PAGE, BIAS + (n + 1) * PAGE, n * PAGE, path) for n in range(listed)]
    areas = [Area(BIAS, contents[:PAGE], flags=R), Area(BIAS + 2 * PAGE, b"changed".ljust(PAGE, b"!"))]
    return Core(areas=areas, notes=process(1) + status(1) + files(*ranges))


def put(root: Path, path: str, contents: bytes) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(contents)


@pytest.mark.parametrize("listed", [1, 3])
def test_pages_that_were_left_out_come_from_the_same_file(opened: Write, tmp_path: Path, listed: int) -> None:
    put(tmp_path / "root", "/lib/a.so", program())
    with opened(cut_core(program(), listed=listed)) as core:
        assert core.memory.read(BIAS + PAGE, 5) == b"codec"
        assert core.memory.read(BIAS + PAGE - 1, 2) == b"\0c"
        assert core.memory.read(BIAS + 2 * PAGE, 7) == b"changed"
        code = next(m for m in core.mappings if m.executable)
        assert (code.start, code.offset, code.path) == (BIAS + PAGE, PAGE, "/lib/a.so")
        with core.image(code) as elf:
            assert elf.read_virtual(PAGE, 4) == b"code"
            assert elf.path == "/lib/a.so"
        fd = core.open_mapped(code)
        assert os.pread(fd, 4, PAGE) == b"code"
        os.close(fd)
        assert core.missing == []


def test_a_stripped_or_unstripped_copy_of_the_same_build_is_the_same_file(
    opened: Write, tmp_path: Path
) -> None:
    other = bytearray(program())
    struct.pack_into("<Q", other, 40, 0x2345)  # e_shoff: there are sections elsewhere
    put(tmp_path / "root", "/lib/a.so", bytes(other))
    with opened(cut_core(program())) as core:
        assert core.memory.read(BIAS + PAGE, 4) == b"code"


def test_another_build_is_not_believed_and_what_was_dumped_stands_in(opened: Write, tmp_path: Path) -> None:
    put(tmp_path / "root", "/lib/a.so", program(b"another1"))
    with opened(cut_core(program())) as core:
        with pytest.raises(MemoryReadError, match=r"not dumped; '/lib/a.so' below .* is another build"):
            core.memory.read(BIAS + PAGE, 4)
        mapping = core.mappings[0]
        with pytest.raises(AttachError, match="another build than the core's"):
            core.open_mapped(mapping)
        with core.image(mapping) as elf:
            assert build_id(elf) == b"12345678"
            assert elf.read_virtual(2 * PAGE, 7) == b"changed"
            with pytest.raises(DecodeError, match="not dumped"):
                elf.read_virtual(PAGE, 4)
        assert len(core.missing) == 1
        assert core.missing[0].startswith("code of /lib/a.so not dumped; '/lib/a.so' below ")


def test_a_file_without_build_id_counts_only_with_the_same_first_page(opened: Write, tmp_path: Path) -> None:
    contents = program().replace(b"GNU\0", b"NOT\0")
    put(tmp_path / "root", "/lib/a.so", contents)
    with opened(cut_core(contents)) as core:
        assert core.memory.read(BIAS + PAGE, 4) == b"code"
    with opened(cut_core(contents.replace(b"12345678", b"12345679"))) as core, pytest.raises(MemoryReadError):
        core.memory.read(BIAS + PAGE, 4)


def test_nothing_is_believed_when_the_core_has_no_first_page(opened: Write, tmp_path: Path) -> None:
    put(tmp_path / "root", "/lib/a.so", program())
    core_ = cut_core(program())
    core_.areas[0].data, core_.areas[0].size = b"", PAGE
    with opened(core_) as core:
        with pytest.raises(MemoryReadError, match="does not hold its first page"):
            core.memory.read(BIAS + PAGE, 4)
        with pytest.raises(DecodeError, match="does not hold its first page"):
            core.image(core.mappings[0])


def test_writable_data_never_comes_from_the_file(opened: Write, tmp_path: Path) -> None:
    put(tmp_path / "root", "/lib/a.so", program())
    core_ = cut_core(program())
    core_.areas[1].data, core_.areas[1].size = b"", PAGE
    with opened(core_) as core, pytest.raises(MemoryReadError, match=r"changed data of '/lib/a\.so'"):
        core.memory.read(BIAS + 2 * PAGE, 4)


def test_no_link_leads_out_of_the_sysroot(opened: Write, tmp_path: Path) -> None:
    outside = tmp_path / "outside.so"
    outside.write_bytes(program())
    (tmp_path / "root" / "lib").mkdir()
    (tmp_path / "root" / "lib" / "a.so").symlink_to(outside)
    with opened(cut_core(program())) as core, pytest.raises(AttachError, match="No such file"):
        core.open_mapped(core.mappings[0])
    with opened(cut_core(program(), b"/../outside.so")) as core, pytest.raises(AttachError):
        core.open_mapped(core.mappings[0])


def test_a_link_inside_the_sysroot_is_followed_there(opened: Write, tmp_path: Path) -> None:
    put(tmp_path / "root", "/usr/lib/a.so", program())
    (tmp_path / "root" / "lib").symlink_to("/usr/lib")
    with opened(cut_core(program())) as core:
        assert core.memory.read(BIAS + PAGE, 4) == b"code"


def test_a_fifo_in_the_place_of_a_file_does_not_block(opened: Write, tmp_path: Path) -> None:
    (tmp_path / "root" / "lib").mkdir()
    os.mkfifo(tmp_path / "root" / "lib" / "a.so")
    with opened(cut_core(program())) as core, pytest.raises(AttachError, match="no regular file"):
        core.open_mapped(core.mappings[0])


def test_anonymous_memory_is_no_file(opened: Write) -> None:
    with opened(Core(areas=[Area(0x10000, b"x" * PAGE)])) as core:
        with pytest.raises(AttachError, match="anonymous memory is no file"):
            core.open_mapped(core.mappings[0])
        with pytest.raises(AttachError, match="anonymous memory is no ELF file"):
            core.image(core.mappings[0])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.lists(st.tuples(st.integers(0, 0x1400), st.integers(0, 255)), min_size=1, max_size=6),
    keep=st.integers(0, 1 << 15),
)
def test_a_damaged_core_gives_errors_of_ours_or_a_core(
    tmp_path: Path, damage: list[tuple[int, int]], keep: int
) -> None:
    contents = bytearray(cut_core(program()).build())
    for at, value in damage:
        contents[at] = value
    path = tmp_path / "damaged"
    path.write_bytes(contents[: max(keep, 0x400)])
    with contextlib.suppress(RubyUnwindError), CoreFile.open(path, tmp_path) as core:
        assert all(mapping.start < mapping.end for mapping in core.mappings)
        assert all(core.missing)
        for mapping in core.mappings:
            with contextlib.suppress(RubyUnwindError), core.image(mapping) as elf:
                assert build_id(elf) is None or elf.segments
                assert elf.sections
            with contextlib.suppress(MemoryReadError):
                assert len(core.memory.read(mapping.start, 16)) == 16
