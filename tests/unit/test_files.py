# SPDX-License-Identifier: Apache-2.0
"""The files of processes: opened once, by what the maps say and by what they are, and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
from elf_images import ALLOC, EXEC, TEXT, Part, elf_image

from rubyunwind.errors import AttachError
from rubyunwind.process.mappings import Mapping
from rubyunwind.profiler import files as files_module
from rubyunwind.profiler.files import FileCache, is_code

IMAGE = elf_image(Part(".text", bytes(64), TEXT, flags=ALLOC | EXEC))
NO_MEMORY = cast("Any", None)


class Opener:
    """Stands for open_mapped: opens a path, or says that the process has gone."""

    def __init__(self) -> None:
        self.calls = 0
        self.gone = False

    def __call__(self, pid: int, mapping: Mapping) -> int:
        self.calls += 1
        if self.gone:
            raise AttachError(f"process {pid}: no such process")
        return os.open(mapping.path, os.O_RDONLY)


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    opener = Opener()
    monkeypatch.setattr(files_module, "open_mapped", opener)
    return opener


def mapping(file: Path, /, **changes: Any) -> Mapping:
    fields = {"inode": file.stat().st_ino, "path": str(file), "executable": True, **changes}
    defaults = {"start": 0x1000, "end": 0x2000, "readable": True, "writable": False, "offset": 0, "device": 1}
    return Mapping(**{**defaults, **fields})


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libx.so"
    path.write_bytes(IMAGE)
    return path


def test_a_file_is_opened_once_for_all_processes(opener: Opener, library: Path) -> None:
    cache = FileCache()
    first = cache.open(1, mapping(library), NO_MEMORY)
    assert first is not None
    assert cache.open(2, mapping(library, start=0x9000, end=0xA000), NO_MEMORY) is first
    assert cache.by_id(first.file_id) is first
    assert opener.calls == 1
    cache.close()


def test_a_copy_under_another_name_is_the_same_file(opener: Opener, library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(IMAGE)
    cache = FileCache()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    first = cache.open(1, mapping(library), NO_MEMORY)
    assert cache.open(1, mapping(copy), NO_MEMORY) is first
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208
    cache.close()
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_no_elf_file_is_not_opened_again(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no program at all")
    cache = FileCache()
    assert cache.open(1, mapping(path), NO_MEMORY) is None
    assert cache.open(1, mapping(path), NO_MEMORY) is None
    assert opener.calls == 1


def test_a_process_that_ended_first_does_not_hide_the_file_from_others(opener: Opener, library: Path) -> None:
    cache = FileCache()
    opener.gone = True
    assert cache.open(1, mapping(library), NO_MEMORY) is None
    opener.gone = False
    assert cache.open(2, mapping(library), NO_MEMORY) is not None
    cache.close()


def test_a_function_without_a_symbol_is_named_by_its_file(opener: Opener, library: Path) -> None:
    cache = FileCache()
    file = cache.open(1, mapping(library), NO_MEMORY)
    assert file is not None
    frame = file.frame(0x10020)
    assert (frame.kind, frame.name) == ("native", "libx.so+0x10020")
    assert (frame.module, frame.offset) == (str(library), 0x10020)
    assert file.frame(0x10020) is frame
    cache.close()


def test_a_file_that_was_closed_or_shrank_still_names_its_frames(opener: Opener, library: Path) -> None:
    cache = FileCache()
    file = cache.open(1, mapping(library), NO_MEMORY)
    assert file is not None
    cache.close()
    assert file.frame(0x10020).name == "libx.so+0x10020"


def test_code_is_what_is_executed_from_a_file_or_the_vdso(library: Path) -> None:
    assert is_code(mapping(library))
    assert is_code(mapping(library, inode=0, path="[vdso]"))
    assert not is_code(mapping(library, executable=False))
    assert not is_code(mapping(library, inode=0, path=""))
    assert not is_code(mapping(library, inode=0, path="[vsyscall]"))
