# SPDX-License-Identifier: Apache-2.0
"""Which files the kernel reads by itself, by what the tables of mounts say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rubyunwind.process import mounts as module
from rubyunwind.process.mounts import Mounts, MountTable, mounts

DISK, TMP, FUSE, NFS = (os.makedev(254, 0), os.makedev(0, 30), os.makedev(0, 39), os.makedev(0, 41))


def line(number: int, device: int, kind: str, at: str = "/", options: str = "rw") -> str:
    where = f"{os.major(device)}:{os.minor(device)}"
    return f"{number} 1 {where} / {at} rw,relatime shared:1 - {kind} none {options}\n"


TABLE = (
    line(27, DISK, "ext4")
    + line(30, TMP, "tmpfs", "/tmp")
    + line(31, FUSE, "fuse.sshfs", "/home/a\\040b")
    + line(32, NFS, "nfs4", "/srv")
)


def parsed(text: str) -> MountTable:
    return MountTable.parse(text.encode())


def test_disks_and_memory_are_local_and_what_has_a_server_is_not() -> None:
    table = parsed(TABLE)
    assert table.kinds == {27: "ext4", 30: "tmpfs", 31: "fuse.sshfs", 32: "nfs4"}
    assert table.local == {DISK, TMP}


def test_a_type_that_nobody_knows_may_have_a_server() -> None:
    assert parsed(line(9, TMP, "somefs")).local == frozenset()


@pytest.mark.parametrize(
    ("options", "local"),
    [
        ("rw,lowerdir=/var/lib/a:/var/lib/b,upperdir=/tmp/u,workdir=/tmp/w", True),
        ("rw,lowerdir=/var/lib/a:/srv/b,upperdir=/tmp/u,workdir=/tmp/w", False),
        ("rw,lowerdir+=/srv/b,upperdir=/tmp/u", False),
        ("rw,lowerdir=/var/lib/a,upperdir=/srv/u", False),
        ("rw,lowerdir=l/ABC:l/DEF", True),
    ],
)
def test_an_overlay_is_what_its_layers_are(options: str, local: bool) -> None:
    overlay = os.makedev(0, 77)
    table = parsed(TABLE + line(40, overlay, "overlay", "/merged", options))
    assert (overlay in table.local) == local


@pytest.mark.parametrize(
    "text", ["", "27\n", "a b c d e f - g h i\n", "27 1 0:x / / rw - tmpfs none rw\n", "\xff - \n"]
)
def test_lines_that_are_none_are_left_out(text: str) -> None:
    assert parsed(text + TABLE) == parsed(TABLE)


class Served(Mounts):
    """With made-up tables: our own, and that of process 4711."""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Mounts, Path]:
    """Mounts of a machine whose own table is TABLE; a process 4711 has what the test writes to the file."""
    theirs = tmp_path / "theirs"
    theirs.write_text("")

    class Watched:
        def __init__(self, who: str) -> None:
            assert who == "self"

        def table(self) -> MountTable:
            return parsed(TABLE)

    monkeypatch.setattr(module, "_WatchedTable", Watched)
    monkeypatch.setattr(module, "_INITIAL_PID_NAMESPACE", -1)
    monkeypatch.setattr(module, "_read_table", lambda pid: MountTable.parse(theirs.read_bytes()))
    return Mounts(), theirs


def test_an_overlay_in_a_namespace_of_others_is_believed_only_where_it_is_seen_from_here(
    served: tuple[Mounts, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has a user namespace may lay one over a file system that he serves himself."""
    mine, theirs = served
    overlay, disk = os.makedev(0, 88), os.makedev(259, 1)
    theirs.write_text(line(50, overlay, "overlay") + line(51, disk, "xfs", "/data"))
    assert mine.distant(4711, {overlay, disk, DISK, TMP, FUSE}) == {overlay, FUSE}
    monkeypatch.setitem(globals(), "TABLE", TABLE + line(60, overlay, "overlay", "/merged"))
    assert mine.distant(4711, {overlay, disk, DISK, TMP, FUSE}) == {FUSE}


def test_whether_anybody_may_be_asked_where_a_process_runs(served: tuple[Mounts, Path]) -> None:
    mine, theirs = served
    assert not mine.only_local(4711)  # it has ended
    theirs.write_text(line(50, DISK, "ext4") + line(51, os.makedev(0, 5), "cgroup2", "/sys/fs/cgroup"))
    assert mine.only_local(4711)
    theirs.write_text(theirs.read_text() + line(52, os.makedev(0, 6), "fuse", "/mnt"))
    assert not mine.only_local(4711)


def test_paths_of_ours_are_told_by_their_names(served: tuple[Mounts, Path]) -> None:
    mine, _ = served
    assert mine.is_local_path("/usr/lib/debug/x.debug")
    assert mine.is_local_path("/tmp/x")
    assert not mine.is_local_path("/srv/x")


def test_files_and_shared_memory_of_this_machine_are_local(tmp_path: Path) -> None:
    memory = os.memfd_create("x")
    file = os.open("/proc/self/status", os.O_PATH)
    try:
        assert mounts.is_local(os.getpid(), memory)
        assert mounts.is_local(os.getpid(), file)
        assert not mounts.distant(os.getpid(), {os.fstat(memory).st_dev})
    finally:
        os.close(memory)
        os.close(file)


def test_nothing_stays_open() -> None:
    before = sorted(path.name for path in Path("/proc/self/fd").iterdir())
    with mounts, mounts:
        mounts.local_devices()
    mounts.local_devices()
    assert sorted(path.name for path in Path("/proc/self/fd").iterdir()) == before
