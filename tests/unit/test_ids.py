# SPDX-License-Identifier: Apache-2.0
"""Build ids and file ids."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from elf_images import PT_NOTE, SHT_NOTE, Part, elf_image
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.ids import build_id, file_id


def note(name: bytes, kind: int, data: bytes) -> bytes:
    padded = [part + bytes(-len(part) % 4) for part in (name, data)]
    return struct.pack("<III", len(name), len(data), kind) + b"".join(padded)


def notes(*data: bytes, kind: int = SHT_NOTE) -> ElfFile:
    return ElfFile(elf_image(Part(".notes", b"".join(data), type=kind)))


def test_the_build_id_is_found_among_other_notes() -> None:
    identity = bytes(range(20))
    others = note(b"GNU\0", 1, b"abcd"), note(b"stapsdt\0", 3, b"x" * 33), note(b"", 0, b"")
    assert build_id(notes(*others, note(b"GNU\0", 3, identity))) == identity


def test_a_file_without_one_has_none() -> None:
    assert build_id(notes()) is None
    assert build_id(notes(note(b"GNU\0", 1, b"abcd"))) is None
    assert build_id(notes(note(b"GNU\0", 3, b""))) is None
    assert build_id(notes(note(b"GNU\0", 3, b"x" * 65))) is None
    assert build_id(notes(note(b"GNU\0", 3, b"abcdefgh")[:-1], kind=1)) is None


def test_segments_are_looked_at_when_there_are_no_sections() -> None:
    data = note(b"GNU\0", 3, b"identity")
    image = bytearray(
        elf_image(Part(".notes", data, type=1), segments=[(PT_NOTE, 4, 120, 0, len(data), len(data))])
    )
    image[40:48] = bytes(8)
    assert build_id(ElfFile(bytes(image))) == b"identity"


@given(st.binary(max_size=100))
def test_any_notes_are_survived(data: bytes) -> None:
    found = build_id(notes(data))
    assert found is None or found in data


def rule(data: bytes) -> int:
    tail = data[-min(len(data), 4096) :]
    digest = hashlib.sha256(data[:4096] + tail + struct.pack(">Q", len(data))).hexdigest()
    return int(digest[:16], 16)


def test_the_file_id_covers_both_ends_and_the_size(tmp_path: Path) -> None:
    for size in (200, 5000, 100_000):
        data = elf_image(Part(".data", bytes(size)))
        assert file_id(ElfFile(data)) == rule(data)
        (tmp_path / "file").write_bytes(data)
        with ElfFile.open(tmp_path / "file") as elf:
            assert file_id(elf) == rule(data)


def test_the_file_id_of_a_known_file() -> None:
    data = elf_image()
    assert len(data) == 208
    assert hashlib.sha256(data).hexdigest()[:8] == "592d48b6"
    assert f"{file_id(ElfFile(data)):016x}" == "b1e9b907a13c6608"
