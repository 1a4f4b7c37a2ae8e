# SPDX-License-Identifier: Apache-2.0
"""Unwind tables kept on disk: found again, never trusted, never in the way."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from elf_images import SHT_NOTE, TEXT, X86_CIE, EhFrame, Part, image_of

from rubyunwind.elf import cache as cache_module
from rubyunwind.elf import deltas as deltas_module
from rubyunwind.elf.cache import TableCache, default_cache_dir
from rubyunwind.elf.deltas import StackDeltas, extract_stack_deltas, load_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError

DIGEST = bytes(range(32))
IDENTITY = bytes.fromhex("0123456789abcdef0123456789abcdef01234567")


def program(length: int = 64, *, with_id: bool = True) -> ElfFile:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE), TEXT, length, bytes([0x41, 0x0E, 16]))
    note = struct.pack("<III4s", 4, len(IDENTITY), 3, b"GNU\0") + IDENTITY
    more = (Part(".note.gnu.build-id", note, type=SHT_NOTE),) if with_id else ()
    return ElfFile(image_of(bytes(frames.end().data), more=more))


@pytest.fixture
def no_extraction(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> StackDeltas:
        raise AssertionError("the table was extracted again")

    monkeypatch.setattr(deltas_module, "extract_stack_deltas", refuse)


def entry(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_a_second_load_comes_from_the_disk(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    first = load_stack_deltas(program(), tmp_path)
    assert entry(tmp_path).name == f"{IDENTITY.hex()}.deltas"
    request.getfixturevalue("no_extraction")
    second = load_stack_deltas(program(), tmp_path)
    assert second.to_bytes() == first.to_bytes() == extract_stack_deltas(program()).to_bytes()
    assert (second.pages(), second.infos) == (first.pages(), first.infos)


def test_a_file_without_build_id_is_known_by_its_file_id(tmp_path: Path) -> None:
    load_stack_deltas(program(with_id=False), tmp_path)
    assert entry(tmp_path).name.startswith("file")


def test_another_file_that_claims_the_build_id_gets_its_own_table(tmp_path: Path) -> None:
    load_stack_deltas(program(64), tmp_path)
    other = load_stack_deltas(program(48), tmp_path)
    assert other.addresses()[-1] == TEXT + 48


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "flip", "version", "magic", "longer", "directory", "link"]
)
def test_a_damaged_entry_is_ignored_and_rebuilt(damage: str, tmp_path: Path) -> None:
    expected = load_stack_deltas(program(), tmp_path).to_bytes()
    path = entry(tmp_path)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    elif damage == "magic":
        data[0] ^= 1
    elif damage == "version":
        data[8] += 1
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    else:
        length = {"cut": len(data) - 5, "empty": 0}.get(damage, len(data))
        path.write_bytes(bytes(data[:length]) + (b"x" if damage == "longer" else b""))
    assert load_stack_deltas(program(), tmp_path).to_bytes() == expected
    if damage != "directory":
        assert not path.is_symlink()
        assert TableCache(tmp_path).get(IDENTITY.hex(), b"") is None
        assert path.read_bytes()[8] == cache_module.FORMAT_VERSION
        assert load_stack_deltas(program(), tmp_path).to_bytes() == expected


def test_a_well_formed_entry_with_a_senseless_table_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load_stack_deltas(program(), tmp_path).to_bytes()
    bad = StackDeltas(bytes(8), struct.pack("<H", 7), [(0, 0, 0, 0, 0)]).to_bytes()
    monkeypatch.setattr(TableCache, "get", lambda *_: bad)
    assert load_stack_deltas(program(), tmp_path).to_bytes() == expected


def test_tables_of_wrong_sizes_are_refused() -> None:
    data = extract_stack_deltas(program()).to_bytes()
    for broken in (b"", data[:-1], data + b"x", data[:5]):
        with pytest.raises(DecodeError):
            StackDeltas.from_bytes(broken)


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    assert load_stack_deltas(program(), tmp_path / "file").count == 2
    assert load_stack_deltas(program(), tmp_path / "file" / "below").count == 2
    assert not TableCache(Path("/proc/nosuch")).put("00", DIGEST, b"payload")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_left_alone(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    cache = TableCache(tmp_path)
    assert not cache.put("00", DIGEST, b"payload")
    assert list(tmp_path.iterdir()) == []


def test_an_entry_is_replaced_whole_and_no_temporary_file_stays(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    assert cache.get("00", DIGEST) is None
    assert cache.put("00", DIGEST, b"first")
    assert cache.put("00", DIGEST, b"second")
    assert cache.get("00", DIGEST) == b"second"
    assert cache.get("00", bytes(32)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["00.deltas"]
    with pytest.raises(ValueError, match="cache keys"):
        cache.get("../00", DIGEST)


def test_a_failed_rename_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    assert not TableCache(tmp_path).put("00", DIGEST, b"payload")
    assert list(tmp_path.iterdir()) == []


def test_the_default_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "rubyunwind"
    load_stack_deltas(program())
    assert entry(tmp_path / "rubyunwind").suffix == ".deltas"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "rubyunwind"


def test_what_was_not_used_for_longest_goes_when_the_room_is_used_up(tmp_path: Path) -> None:
    cache = TableCache(tmp_path, max_total=10_000)
    for number in range(8):
        assert cache.put(f"{number:02}", DIGEST, bytes(1000))
        os.utime(tmp_path / f"{number:02}.deltas", (number, number))
    assert cache.get("00", DIGEST) == bytes(1000)  # noted as used just now
    other = tmp_path / "notes.txt"
    other.write_text("not ours " * 1000)
    assert cache.put("08", DIGEST, bytes(2000))
    left = {path.stem for path in tmp_path.glob("*.deltas")}
    assert {"00", "08"} <= left
    assert left - {"00", "08"} == {"04", "05", "06", "07"}
    assert sum(path.stat().st_size for path in tmp_path.glob("*.deltas")) <= 7_500
    assert other.exists()


def test_an_entry_that_is_larger_than_the_room_is_kept_until_the_next(tmp_path: Path) -> None:
    cache = TableCache(tmp_path, max_total=100)
    for key in ("aa", "bb"):
        assert cache.put(key, DIGEST, bytes(1000))
        assert cache.get(key, DIGEST) == bytes(1000)
    assert [path.stem for path in tmp_path.iterdir()] == ["bb"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    old, fresh = tmp_path / ".cc.deltas.1.abcd", tmp_path / ".dd.deltas.2.abcd"
    old.write_bytes(b"half")
    os.utime(old, (1, 1))
    fresh.write_bytes(b"half")
    assert TableCache(tmp_path).put("ee", DIGEST, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == [fresh.name, "ee.deltas"]
