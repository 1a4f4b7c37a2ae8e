# SPDX-License-Identifier: Apache-2.0
"""Which files the kernel reads by itself, and for which it asks somebody who may never answer.

A file of a network file system, or of one that a program serves (FUSE), is read only when its server
answers: whoever opens or reads it, or touches memory that it is mapped to, waits in the kernel, and not even
a signal ends that. Which files are such ones has to be known without a question to the server, so not by
stat(2): the tables of mounts tell.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["MountTable", "Mounts", "mounts"]

# File systems that need nobody but the kernel and a disk, as /proc/filesystems calls them. Any other one may
# have a server; what is missing here is read all the same, by a deputy.
_OF_THE_KERNEL = frozenset(
    (
        "bcachefs", "btrfs", "cramfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs",
        "hugetlbfs", "iso9660", "jfs", "msdos", "nilfs2", "ntfs3", "proc", "ramfs", "reiserfs", "romfs",
        "rootfs", "squashfs", "sysfs", "tmpfs", "ubifs", "udf", "vfat", "xfs", "zfs",
    )
)  # fmt: skip
_OVERLAY = "overlay"
# Options of an overlay that name its layers.
_LAYERS = ("lowerdir=", "lowerdir+=", "datadir+=", "upperdir=")

# include/linux/proc_ns.h: PROC_PID_INIT_INO. Process 1 of that namespace is the machine's own.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC


@dataclass(frozen=True, slots=True)
class MountTable:
    """What a mountinfo file says.

    `kinds` are the types of file systems by mount id, `devices` those by device (an os.makedev() number),
    `places` those by where they are mounted; `device_of` are devices by mount id.
    `local` are the devices that the kernel serves by itself, overlays of such layers included.
    """

    kinds: dict[int, str] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    device_of: dict[int, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    local: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: bytes) -> MountTable:
        """Parse a mountinfo file (proc(5)); a line that is cut short is left out."""
        table = cls()
        places = table.places
        overlays: list[tuple[int, str]] = []
        for line in text.split(b"\n"):
            fields = line.split(b" ")
            try:
                rest = fields.index(b"-")
                kind, options = os.fsdecode(fields[rest + 1]), os.fsdecode(fields[rest + 3])
                major, _, minor = fields[2].partition(b":")
                device, number = os.makedev(int(major), int(minor)), int(fields[0])
            except (ValueError, IndexError, OverflowError):
                continue
            table.kinds[number] = kind
            table.devices[device] = kind
            table.device_of[number] = device
            places[os.fsdecode(fields[4])] = kind
            if kind == _OVERLAY:
                overlays.append((device, options))
        local = {device for device, kind in table.devices.items() if kind in _OF_THE_KERNEL}
        local |= {device for device, options in overlays if not _asks_somebody(options, places)}
        return replace(table, local=frozenset(local))


class Mounts:
    """The mounts of this machine, as far as those vouch for them who may mount here.

    Those are our own mount namespace, and that of the machine's first process. In those of others anybody may
    have mounted anything, an overlay over a file system of his own, too; there, only a type that needs no
    server is believed. A context manager: while it is entered, by several even, it holds descriptors, and
    reads only what has changed.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._users = 0
        self._tables: list[_WatchedTable] = []
        self._unnamed = (-1, -1)  # mount and device of shared memory that has no name (memfd_create)

    def local_devices(self) -> frozenset[int]:
        """Return the devices that the kernel serves by itself, as of this moment."""
        with self:
            first, *others = self._tables
            found = first.table().local
            for watched in others:
                found |= watched.table().local
            return found

    def is_local(self, pid: int, fd: int) -> bool:
        """Whether the kernel alone answers for the file behind an O_PATH descriptor, found through `pid`."""
        mount = _mount_of(fd)
        with self:
            for watched in self._tables:
                table = watched.table()
                if mount in table.kinds:
                    return table.device_of[mount] in table.local
            if mount == self._unnamed[0]:
                return True
            theirs = _read_table(pid)
            if mount not in theirs.kinds:
                return False
            kind, device = theirs.kinds[mount], theirs.device_of[mount]
            return kind in _OF_THE_KERNEL or (kind == _OVERLAY and device in self.local_devices())

    def is_local_path(self, path: str) -> bool:
        """Whether the kernel alone answers for what is at a path of ours, which nobody else can have chosen.

        By its name alone: no link is followed.
        """
        with self:
            places = self._tables[0].table().places
        return not places or _kind_at(path, places) in (*_OF_THE_KERNEL, _OVERLAY)

    def only_local(self, pid: int) -> bool:
        """Whether the kernel alone answers for whatever is mounted where `pid` runs."""
        devices, trusted = _read_table(pid).devices, self.local_devices()
        return bool(devices) and all(
            kind in _OF_THE_KERNEL or device in trusted or kind in _WITHOUT_FILES
            for device, kind in devices.items()
        )

    def distant(self, pid: int, devices: set[int]) -> set[int]:
        """Return those of the devices of files that `pid` has mapped for which somebody else may be asked."""
        with self:
            unknown = devices - self.local_devices() - {self._unnamed[1]}
        if not unknown:
            return unknown
        theirs = _read_table(pid).devices
        return {device for device in unknown if theirs.get(device) not in _OF_THE_KERNEL}

    def __enter__(self) -> Mounts:
        if self._owner != os.getpid():  # of a parent that forked us
            self._owner, self._users, self._tables = os.getpid(), 0, []
        self._users += 1
        if not self._tables:
            self._watch()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._owner == os.getpid():
            self._users -= 1
            if not self._users:
                self._tables = []

    def _watch(self) -> None:
        self._tables = [_WatchedTable("self")]
        with suppress(OSError):
            initial = Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
            ours, first = (Path(f"/proc/{who}/ns/mnt").stat().st_ino for who in ("self", "1"))
            if initial and ours != first:
                self._tables.append(_WatchedTable("1"))
        if self._unnamed[0] < 0:
            with suppress(OSError):
                memory = os.memfd_create("")
                self._unnamed = (_mount_of(memory), os.fstat(memory).st_dev)
                os.close(memory)


class _WatchedTable:
    """A mountinfo file that is read again when it has changed. Keeps it open."""

    def __init__(self, who: str) -> None:
        self._fd = -1
        self._table: MountTable | None = None
        with suppress(OSError):
            self._fd = os.open(f"/proc/{who}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        if self._fd >= 0:
            self._changes.register(self._fd, select.POLLPRI)

    def table(self) -> MountTable:
        if self._table is None or (self._fd >= 0 and self._changes.poll(0)):
            self._table = MountTable.parse(_contents(self._fd)) if self._fd >= 0 else MountTable()
        return self._table

    def __del__(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)


# What is mounted in every container, and has no file that is ever mapped.
_WITHOUT_FILES = frozenset(
    (
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs",
        "fusectl", "mqueue", "nsfs", "pstore", "rpc_pipefs", "securityfs", "selinuxfs", "tracefs",
    )
)  # fmt: skip

mounts = Mounts()
"""Those of this process."""


def _read_table(pid: int) -> MountTable:
    """Return the mounts where a process runs; an empty table once it has ended, or may not be looked at."""
    try:
        fd = os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return MountTable()
    try:
        return MountTable.parse(_contents(fd))
    finally:
        os.close(fd)


def _contents(fd: int) -> bytes:
    with suppress(OSError):
        os.lseek(fd, 0, os.SEEK_SET)
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    return b""


def _mount_of(fd: int) -> int:
    """Return the id of the mount through which a descriptor was opened; -1 if that cannot be told."""
    with suppress(OSError, ValueError):
        # proc(5): the number, and nothing of the file itself, is said of every descriptor since Linux 3.15.
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for line in os.read(info, 4096).split(b"\n"):
                if line.startswith(b"mnt_id:"):
                    return int(line[7:])
        finally:
            os.close(info)
    return -1


def _asks_somebody(options: str, places: dict[str, str]) -> bool:
    """Whether a layer of an overlay lies where the kernel does not answer by itself.

    `places` are types of file systems by where they are mounted. A layer that is not named from the root is
    taken for a local one: who may mount here has put it there.
    """
    for option in options.split(","):
        for name in _LAYERS:
            if option.startswith(name) and any(
                _kind_at(layer, places) not in (*_OF_THE_KERNEL, _OVERLAY, "")
                for layer in option.removeprefix(name).split(":")
            ):
                return True
    return False


def _kind_at(path: str, places: dict[str, str]) -> str:
    while path.startswith("/"):
        if path in places:
            return places[path]
        above = path.rpartition("/")[0]
        if not above:
            return places.get("/", "")
        path = above
    return ""
