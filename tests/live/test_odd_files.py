# SPDX-License-Identifier: Apache-2.0
"""Files of a target that are not what they seem: nothing hangs, and what can be had is exact."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample
from rubyunwind.elf.file import ElfFile
from rubyunwind.process import mapped_files as files_module

from .recorder import hear, process
from .spinning import RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

SPIN = "def spin_here = (nil while true)\nputs; $stdout.flush; spin_here"
RATE = 299


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of libruby, under its own name."""
    needed = subprocess.run(["ldd", RUBY], capture_output=True, text=True, check=True).stdout
    found = [word for word in needed.split() if word.startswith("/") and "/libruby" in word]
    if not found:
        pytest.skip("this Ruby has no library of its own")
    return Path(shutil.copy(found[0], tmp_path / Path(found[0]).name))


@contextmanager
def ruby_of(library: Path) -> Iterator[int]:
    """Run a Ruby that maps that library."""
    command = ("env", f"LD_LIBRARY_PATH={library.parent}", RUBY, "--disable-gems")
    with process(*command, script=SPIN) as target:
        hear(target)
        assert str(library) in Path(f"/proc/{target.pid}/maps").read_text()
        yield target.pid


def last_samples(pid: int) -> list[Sample]:
    began = time.monotonic()
    with Profiler([pid], rate=RATE) as profiler:
        samples = gather(profiler, 150)
        assert time.monotonic() - began < 60
        return list(samples)[-60:]


def labels(samples: list[Sample]) -> set[tuple[str | None, ...]]:
    return {tuple(frame.label for frame in s.frames if frame.kind == "ruby") for s in samples}


@pytest.fixture
def no_map_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without CAP_CHECKPOINT_RESTORE: mapped files are found by their paths only."""
    real = os.open

    def refused(path: str, *arguments: int, **options: int) -> int:
        if "/map_files/" in str(path):
            raise PermissionError(1, "Operation not permitted")
        return real(path, *arguments, **options)

    monkeypatch.setattr(files_module.os, "open", refused)


@pytest.mark.usefixtures("no_map_files")
@pytest.mark.parametrize("instead", ["pipe", "device", "endless", "link", "folder", "nothing"])
def test_something_else_in_the_place_of_a_library_is_not_read(instead: str, library: Path) -> None:
    with ruby_of(library) as pid:
        library.unlink()
        if instead == "pipe":  # nobody ever writes to it
            os.mkfifo(library)
        elif instead == "device":
            os.mknod(library, 0o020666, os.makedev(1, 5))  # zeros without end
        elif instead == "endless":
            library.touch()
            os.truncate(library, 8 << 30)
        elif instead == "link":
            library.symlink_to("/proc/self/mem")
        elif instead == "folder":
            library.mkdir()
        samples = last_samples(pid)
    assert samples
    # No Ruby can be found without its library; what is unwound says where it ends.
    assert not [
        sample for sample in samples if sample.complete and any(f.kind == "ruby" for f in sample.frames)
    ]
    assert {sample.pid for sample in samples} == {pid}


@pytest.mark.parametrize("instead", ["deleted", "pipe"])
def test_the_file_that_is_mapped_is_read_whatever_has_its_name(instead: str, library: Path) -> None:
    with ruby_of(library) as pid:
        library.unlink()
        if instead == "pipe":
            os.mkfifo(library)
        samples = last_samples(pid)
    assert [sample.reason for sample in samples if not sample.complete] == []
    assert labels(samples) == {("spin_here", "<main>")}


# Maps a file as code, leaves it alone, and spins.
MAPS = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
read_and_execute, private = 5, 2
assert libc.mmap(None, 1 << 20, read_and_execute, private, os.open(sys.argv[1], 0), 0) != 2**64 - 1
print(flush=True)
while True:
    pass
"""


def test_a_file_that_shrinks_and_grows_while_it_is_read_is_no_trouble(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, real, turns = library.stat().st_size, ElfFile.read, 0

    def changing(self: ElfFile, offset: int, length: int) -> bytes:
        nonlocal turns
        if self.name == str(library):
            turns += 1
            os.truncate(library, whole // 3 if turns % 2 else whole * 2)
        return real(self, offset, length)

    monkeypatch.setattr(ElfFile, "read", changing)
    with process(sys.executable, "-c", MAPS, str(library)) as target:
        assert target.stdout is not None
        target.stdout.readline()
        samples = last_samples(target.pid)
    assert turns
    assert {sample.pid for sample in samples} == {target.pid}
    assert [sample.reason for sample in samples if not sample.complete] == []
