# SPDX-License-Identifier: Apache-2.0
"""Separate debug files: found by build id or link, used only when the program has hardly any rules."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from elf_images import ALLOC, EXEC, SHT_NOTE, TEXT, X86_CIE, EhFrame, Part, elf_image, image_of

from rubyunwind.elf import deltas as deltas_module
from rubyunwind.elf.debuglink import open_debug_file
from rubyunwind.elf.deltas import extract_stack_deltas, load_stack_deltas
from rubyunwind.elf.file import ElfFile

IDENTITY = bytes(range(1, 21))


def note(identity: bytes) -> Part:
    data = struct.pack("<III4s", 4, len(identity), 3, b"GNU\0") + identity
    return Part(".note.gnu.build-id", data, type=SHT_NOTE)


def link(name: bytes, checksum: int) -> Part:
    padded = name + b"\0"
    return Part(".gnu_debuglink", padded + bytes(-len(padded) % 4) + struct.pack("<I", checksum))


def debug_image(functions: int = 30, identity: bytes = IDENTITY, machine: int = 62) -> bytes:
    frames = EhFrame()
    cie = frames.cie(X86_CIE)
    for number in range(functions):
        frames.fde(cie, TEXT + 64 * number, 32, bytes([0x0E, 16 + 8 * (number % 2)]))
    return image_of(bytes(frames.end().data), machine=machine, more=(note(identity),))


def stripped(path: Path, *parts: Part) -> ElfFile:
    path.write_bytes(elf_image(Part(".text", bytes(0x10000), TEXT, flags=ALLOC | EXEC), *parts))
    return ElfFile.open(path)


def place(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "debug"


def by_id(root: Path) -> Path:
    return root / ".build-id" / IDENTITY.hex()[:2] / f"{IDENTITY.hex()[2:]}.debug"


def test_the_build_id_names_the_debug_file(tmp_path: Path, root: Path) -> None:
    place(by_id(root), debug_image())
    with stripped(tmp_path / "program", note(IDENTITY), link(b"program.debug", 0)) as elf:
        found = open_debug_file(elf, root)
        assert found is not None
        with found:
            assert found.path == str(by_id(root))


def test_the_link_names_a_file_below_the_root_with_the_right_checksum(tmp_path: Path, root: Path) -> None:
    data = debug_image(identity=b"another one")
    place(root / tmp_path.relative_to("/") / "program.debug", data)
    with stripped(tmp_path / "program", link(b"program.debug", zlib.crc32(data))) as elf:
        found = open_debug_file(elf, root)
        assert found is not None
        found.close()
    with stripped(tmp_path / "program", link(b"program.debug", 1)) as elf:
        assert open_debug_file(elf, root) is None


@pytest.mark.parametrize("name", [b"../program.debug", b"/etc/passwd", b"..", b"", b"sub/x"])
def test_a_link_that_leaves_its_directory_is_not_followed(name: bytes, tmp_path: Path, root: Path) -> None:
    data = debug_image()
    place(root / tmp_path.parent.relative_to("/") / "program.debug", data)
    with stripped(tmp_path / "program", link(name, zlib.crc32(data))) as elf:
        assert open_debug_file(elf, root) is None


def test_files_that_do_not_belong_are_left_alone(tmp_path: Path, root: Path) -> None:
    place(by_id(root), debug_image(identity=bytes(20)))
    with stripped(tmp_path / "program", note(IDENTITY), link(b"program.debug", 0)) as elf:
        assert open_debug_file(elf, root) is None
        by_id(root).write_bytes(debug_image(machine=183))
        assert open_debug_file(elf, root) is None
        by_id(root).write_text("no ELF file")
        assert open_debug_file(elf, root) is None
    with stripped(tmp_path / "program", note(IDENTITY)) as elf:
        by_id(root).write_bytes(debug_image())
        assert open_debug_file(elf, root) is None  # no link, so it was never separated


def test_rules_come_from_the_debug_file_only_when_there_are_few(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(by_id(root), debug_image())
    monkeypatch.setattr(deltas_module, "open_debug_file", lambda elf: open_debug_file(elf, root))
    separate = link(b"program.debug", 0)
    with stripped(tmp_path / "program", note(IDENTITY), separate) as elf:
        assert extract_stack_deltas(elf).count == 60
        assert extract_stack_deltas(elf, use_debug_file=False).count == 0
    complete = EhFrame()
    cie = complete.cie(X86_CIE)
    for number in range(15):
        complete.fde(cie, TEXT + 64 * number, 32, b"")
    image = image_of(bytes(complete.end().data), more=(note(IDENTITY), separate))
    assert extract_stack_deltas(ElfFile(image)).count == 30


def test_a_small_table_is_not_kept_while_a_debug_file_may_come(tmp_path: Path) -> None:
    with stripped(tmp_path / "program", note(bytes(20)), link(b"nosuch.debug", 0)) as elf:
        assert load_stack_deltas(elf, tmp_path / "cache").count == 0
    assert not (tmp_path / "cache").exists()
