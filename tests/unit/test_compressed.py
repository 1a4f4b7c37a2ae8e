# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import gzip
import importlib
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_images import Area, Core

from rubyunwind.errors import DecodeError, NotSupported
from rubyunwind.process import compressed
from rubyunwind.process.core import CoreFile

needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd program")

PLAIN = Core(areas=[Area(0x10000, b"a" * 4096 + bytes(1 << 20) + b"z" * 4096)]).build()
NOISE = random.Random(1).randbytes(300_000)


def zstd(data: bytes, *options: str) -> bytes:
    return subprocess.run(["zstd", "-q", "-c", *options], input=data, capture_output=True, check=True).stdout


def written(tmp_path: Path, contents: bytes) -> Path:
    path = tmp_path / "core"
    path.write_bytes(contents)
    return path


def check(path: Path) -> None:
    with CoreFile.open(path) as core:
        assert core.pid == 77
        assert core.memory.read(0x10000 + 4090, 12) == b"aaaaaa" + bytes(6)
        assert core.memory.read(0x10000 + 4096 + (1 << 20), 4) == b"zzzz"


@pytest.fixture
def no_zstd_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr("rubyunwind.process.compressed.importlib", SimpleNamespace(import_module=missing))


def test_gzip_is_told_by_its_contents_not_its_name(tmp_path: Path) -> None:
    check(written(tmp_path, gzip.compress(PLAIN)))
    middle = 5000
    check(written(tmp_path, gzip.compress(PLAIN[:middle]) + gzip.compress(PLAIN[middle:])))
    path = tmp_path / "core.gz"
    path.write_bytes(PLAIN)
    check(path)


@needs_zstd
def test_zstd_is_read_by_the_program_without_the_package(tmp_path: Path, no_zstd_package: None) -> None:
    check(written(tmp_path, zstd(PLAIN)))
    check(written(tmp_path, zstd(PLAIN, "--long=31", "--ultra", "-20")))


@needs_zstd
def test_zstd_is_read_by_the_package(tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="the Python package zstandard is not installed")
    check(written(tmp_path, zstd(PLAIN)))
    with pytest.raises(DecodeError, match="compressed data"):
        CoreFile.open(written(tmp_path, zstd(NOISE)[:-100] + bytes(100)))


@pytest.mark.usefixtures("no_zstd_package")
def test_without_any_zstd_the_error_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubyunwind.process.compressed.shutil.which", lambda name: None)
    with pytest.raises(NotSupported, match="package zstandard or the program zstd") as caught:
        CoreFile.open(written(tmp_path, b"\x28\xb5\x2f\xfd" + bytes(100)))
    assert caught.value.feature == "zstd"


@pytest.mark.parametrize(
    ("magic", "command"), [(b"\xfd7zXZ\0", "xz -d"), (b"\x04\x22\x4d\x18", "lz4 -d"), (b"BZh9", "bunzip2")]
)
def test_other_compressions_are_named(tmp_path: Path, magic: bytes, command: str) -> None:
    with pytest.raises(NotSupported, match=f"run `{command}` on it first"):
        CoreFile.open(written(tmp_path, magic + bytes(100)))


def test_damaged_gzip_is_no_crash(tmp_path: Path) -> None:
    packed = gzip.compress(NOISE)
    with pytest.raises(DecodeError, match=r"cut off after \d+ plain bytes"):
        CoreFile.open(written(tmp_path, packed[: len(packed) // 2]))
    with pytest.raises(DecodeError, match="damaged compressed data"):
        CoreFile.open(written(tmp_path, packed[:-8] + bytes(8)))
    with pytest.raises(DecodeError, match="damaged compressed data"):
        CoreFile.open(written(tmp_path, packed[:10] + b"\xff" * 1000))
    with pytest.raises(DecodeError, match="is empty"):
        CoreFile.open(written(tmp_path, gzip.compress(b"")))


@needs_zstd
@pytest.mark.usefixtures("no_zstd_package")
def test_damaged_zstd_is_no_crash(tmp_path: Path) -> None:
    packed = zstd(NOISE)
    with pytest.raises(DecodeError, match=r"damaged compressed data after \d+ bytes: .*premature end"):
        CoreFile.open(written(tmp_path, packed[: len(packed) // 2]))
    with pytest.raises(DecodeError, match="damaged compressed data"):
        CoreFile.open(written(tmp_path, packed[:20] + b"\xff" * 1000))


def test_zeros_take_no_room_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    size = 64 << 20
    path = written(tmp_path, gzip.compress(bytes(size) + b"end", 1))
    fd = compressed.uncompressed(os.open(path, os.O_RDONLY), "core")
    try:
        status = os.fstat(fd)
        assert status.st_size == size + 3
        assert status.st_blocks * 512 <= 2 * compressed.ZERO_BLOCK
        assert status.st_nlink == 0
        assert os.pread(fd, 8, size - 5) == bytes(5) + b"end"
        assert list(folder.iterdir()) == []
    finally:
        os.close(fd)


def test_a_disk_without_room_is_an_error_that_names_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rubyunwind.process.compressed.os.fstatvfs", lambda fd: SimpleNamespace(f_bavail=0, f_frsize=4096)
    )
    with pytest.raises(DecodeError, match=r"no room in .* to decompress it .*; set TMPDIR"):
        CoreFile.open(written(tmp_path, gzip.compress(PLAIN)))


def test_descriptors_are_closed_when_decompressing_fails(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for contents in (gzip.compress(NOISE)[:-9], b"BZh", gzip.compress(b"text"), b"", PLAIN[:100]):
        with pytest.raises((DecodeError, NotSupported)):
            CoreFile.open(written(tmp_path, contents))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
