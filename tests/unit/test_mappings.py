# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rubyunwind.errors import AttachError
from rubyunwind.process import mapped_files as module
from rubyunwind.process.mapped_files import open_in_root, open_mapped
from rubyunwind.process.mappings import Mapping, parse_mappings, read_mappings

MAPS = b"""\
55d0c0a00000-55d0c0a01000 r--p 00000000 08:01 1234                       /usr/bin/ruby3.1
7f1000000000-7f1000021000 rw-p 00000000 00:00 0
7f2000000000-7f2000100000 r-xp 00033000 fd:10 99                         /usr/lib/lib ruby (deleted)
7f2000200000-7f2000300000 r--s 00000000 00:05 7                          /srv/a\\012b\\101\xff.so
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc00100000-7ffc00102000 r-xp 00000000 00:00 0                          [vdso]
7ffc00200000-7ffc0"""


def test_every_column_of_a_line_is_parsed() -> None:
    first = parse_mappings(MAPS)[0]
    assert first == Mapping(
        start=0x55D0C0A00000,
        end=0x55D0C0A01000,
        readable=True,
        writable=False,
        executable=False,
        offset=0,
        device=os.makedev(8, 1),
        inode=1234,
        path="/usr/bin/ruby3.1",
    )


def test_names_with_spaces_newlines_and_odd_bytes_are_whole() -> None:
    paths = [mapping.path for mapping in parse_mappings(MAPS)]
    # The kernel escapes newlines only: \101 is four characters of the name.
    assert paths == [
        "/usr/bin/ruby3.1",
        "",
        "/usr/lib/lib ruby",
        "/srv/a\nb\\101\udcff.so",
        "[stack]",
        "[vdso]",
    ]


def test_deleted_is_a_flag_not_a_part_of_the_name() -> None:
    assert [mapping.deleted for mapping in parse_mappings(MAPS)] == [False, False, True, False, False, False]


def test_offset_device_and_permissions_of_a_code_mapping() -> None:
    code = parse_mappings(MAPS)[2]
    assert (code.offset, code.device) == (0x33000, os.makedev(0xFD, 0x10))
    assert (code.readable, code.writable, code.executable) == (True, False, True)


def test_only_named_inodes_are_files() -> None:
    assert [mapping.is_file for mapping in parse_mappings(MAPS)] == [True, False, True, True, False, False]


def test_a_line_that_was_cut_is_left_out() -> None:
    assert len(parse_mappings(MAPS)) == 6
    assert parse_mappings(b"") == []
    assert parse_mappings(b"\n7f00") == []


def test_the_vdso_and_the_program_are_among_our_own_mappings() -> None:
    found = read_mappings(os.getpid())
    assert any(mapping.path == "[vdso]" and mapping.executable for mapping in found)
    assert any(mapping.is_file and mapping.executable for mapping in found)
    assert [mapping.start for mapping in found] == sorted(mapping.start for mapping in found)


def test_no_such_process_is_an_attach_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(AttachError, match="no such process"):
        read_mappings(process.pid)


def map_file(path: Path) -> tuple[mmap.mmap, Mapping]:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    inode = path.stat().st_ino
    return mapped, next(m for m in read_mappings(os.getpid()) if m.inode == inode and m.path == str(path))


def contents(fd: int) -> bytes:
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


@pytest.fixture
def without_map_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader without CAP_SYS_ADMIN and CAP_CHECKPOINT_RESTORE sees it."""
    real_open = os.open

    def refuse(path: str, *arguments: int, **keywords: int) -> int:
        if "/map_files/" in str(path):
            raise PermissionError(1, "Operation not permitted")
        return real_open(path, *arguments, **keywords)

    monkeypatch.setattr(module.os, "open", refuse)


def test_a_mapped_file_is_opened_by_its_path(tmp_path: Path, without_map_files: None) -> None:
    file = tmp_path / "a b.so"
    file.write_bytes(b"contents")
    mapped, mapping = map_file(file)
    with mapped:
        assert contents(open_mapped(os.getpid(), mapping)) == b"contents"


def test_a_replaced_file_is_not_taken_for_the_mapped_one(tmp_path: Path, without_map_files: None) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"mapped")
    mapped, mapping = map_file(file)
    other = tmp_path / "new"
    other.write_bytes(b"another")
    other.rename(file)
    with mapped, pytest.raises(AttachError, match="replaced"):
        open_mapped(os.getpid(), mapping)


def test_deleted_and_replaced_files_are_opened_through_map_files(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"mapped")
    mapped, mapping = map_file(file)
    if not os.access(f"/proc/self/map_files/{mapping.start:x}-{mapping.end:x}", os.R_OK):
        pytest.skip("/proc/PID/map_files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")
    file.unlink()
    file.write_bytes(b"another")
    with mapped:
        assert contents(open_mapped(os.getpid(), mapping)) == b"mapped"


@pytest.mark.parametrize("kind", ["fifo", "directory", "device"])
def test_only_regular_files_are_opened_and_nothing_blocks(
    tmp_path: Path, without_map_files: None, kind: str
) -> None:
    path = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path = Path("/dev/null")
    found = path.stat()
    mapping = replace(parse_mappings(MAPS)[0], path=str(path), device=found.st_dev, inode=found.st_ino)
    with pytest.raises(AttachError, match="no regular file"):
        open_mapped(os.getpid(), mapping)


def test_a_file_above_the_limit_is_refused(
    tmp_path: Path, without_map_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "big"
    file.write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "MAX_FILE_SIZE", 99)
    mapped, mapping = map_file(file)
    with mapped, pytest.raises(AttachError, match="limit of 99"):
        open_mapped(os.getpid(), mapping)


def test_anonymous_memory_is_no_file() -> None:
    for index in (1, 4, 5):
        with pytest.raises(AttachError, match="no file that can be opened"):
            open_mapped(os.getpid(), parse_mappings(MAPS)[index])


def inside(root: Path, path: str, *, openat2: bool, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Open `path` in a process whose root is `root`, played by a directory under a made-up /proc."""
    real_open = os.open

    def redirect(name: str | bytes, flags: int, *arguments: int, **keywords: int) -> int:
        if str(name) == "/proc/4711/root":
            name = str(root)
        return real_open(name, flags, *arguments, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(module.os, "open", redirect)
        if not openat2:
            patched.setattr(module, "_openat2", lambda *arguments: None)
        fd = open_in_root(4711, path)
    reading = real_open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return contents(reading)


@pytest.mark.parametrize("openat2", [True, False])
def test_symlinks_never_lead_out_of_the_targets_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openat2: bool
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "libruby.so").write_bytes(b"ruby")
    (root / "lib" / "up").symlink_to("../../secret")
    (root / "lib" / "absolute").symlink_to(tmp_path / "secret")
    (root / "usr").symlink_to("..")
    assert inside(root, "/lib/libruby.so", openat2=openat2, monkeypatch=monkeypatch) == b"ruby"
    for path in ("/lib/up", "/lib/absolute", "/usr/secret", "/../secret", "/lib/../../secret", "/lib/nul\0"):
        with pytest.raises(AttachError, match="inside its root"):
            inside(root, path, openat2=openat2, monkeypatch=monkeypatch)


def test_a_chroots_prefix_is_taken_off_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Path, "readlink", lambda self: Path("/srv/jail"))
    assert module._inside_root(1, "/srv/jail/usr/lib/libruby.so") == "/usr/lib/libruby.so"
    assert module._inside_root(1, "/srv/jailbreak/libruby.so") == "/srv/jailbreak/libruby.so"
    monkeypatch.setattr(module.Path, "readlink", lambda self: Path("/"))
    assert module._inside_root(1, "/usr/lib/libruby.so") == "/usr/lib/libruby.so"
