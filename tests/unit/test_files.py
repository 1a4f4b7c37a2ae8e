# SPDX-License-Identifier: Apache-2.0
"""The files of processes: opened once, by what the maps say and by what they are, and named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
from elf_images import ALLOC, EH_FRAME, EXEC, PT_LOAD, TEXT, X86_CIE, EhFrame, Part, elf_image

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import AttachError
from rubyunwind.process.mappings import Mapping
from rubyunwind.profiler.files import FileCache, is_code

IMAGE = elf_image(Part(".text", bytes(64), TEXT, flags=ALLOC | EXEC))


class Image:
    """Stands for a process: opens what it has mapped, or says that it has gone. `opened` counts."""

    def __init__(self, pid: int = 1, *, gone: bool = False) -> None:
        self.pid, self.gone = pid, gone
        self.opened = 0
        self.memory = cast("Any", None)

    def mappings(self) -> list[Mapping]:
        raise AssertionError("the cache is told which mapping it is")

    def open(self, mapping: Mapping) -> ElfFile:
        self.opened += 1
        if self.gone:
            raise AttachError(f"process {self.pid}: no such process")
        return ElfFile.open(mapping.path)

    def close(self) -> None:
        raise AssertionError("the image belongs to the caller")


def mapping(file: Path, /, **changes: Any) -> Mapping:
    fields = {"inode": file.stat().st_ino, "path": str(file), "executable": True, **changes}
    defaults = {"start": 0x1000, "end": 0x2000, "readable": True, "writable": False, "offset": 0, "device": 1}
    return Mapping(**{**defaults, **fields})


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libx.so"
    path.write_bytes(IMAGE)
    return path


def test_a_file_is_opened_once_for_all_processes(library: Path) -> None:
    cache = FileCache()
    one, two = Image(1), Image(2)
    first = cache.open(one, mapping(library))
    assert first is not None
    assert cache.open(two, mapping(library, start=0x9000, end=0xA000)) is first
    assert cache.by_id(first.file_id) is first
    assert (one.opened, two.opened) == (1, 0)
    cache.close()


def test_a_copy_under_another_name_is_the_same_file(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(IMAGE)
    cache, image = FileCache(), Image()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    first = cache.open(image, mapping(library))
    assert cache.open(image, mapping(copy)) is first
    assert image.opened == 2
    assert len(os.listdir("/proc/self/fd")) == before + 1  # noqa: PTH208
    cache.close()
    cache.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_what_is_no_elf_file_is_not_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("no program at all")
    cache, image = FileCache(), Image()
    assert cache.open(image, mapping(path)) is None
    assert cache.open(image, mapping(path)) is None
    assert image.opened == 1


def test_a_process_that_ended_first_does_not_hide_the_file_from_others(library: Path) -> None:
    cache = FileCache()
    assert cache.open(Image(1, gone=True), mapping(library)) is None
    assert cache.open(Image(2), mapping(library)) is not None
    cache.close()


def test_a_function_without_a_symbol_is_named_by_its_file(library: Path) -> None:
    cache = FileCache()
    file = cache.open(Image(), mapping(library))
    assert file is not None
    frame = file.frame(0x10020)
    assert (frame.kind, frame.name) == ("native", "libx.so+0x10020")
    assert (frame.module, frame.offset) == (str(library), 0x10020)
    assert file.frame(0x10020) is frame
    cache.close()


def test_only_what_lies_in_a_function_is_named_by_where_it_begins(tmp_path: Path) -> None:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE), TEXT + 0x10, 0x10, b"")
    unwind = Part(".eh_frame", bytes(frames.end().data), EH_FRAME, flags=ALLOC)
    path = tmp_path / "libx.so"
    text = Part(".text", bytes(64), TEXT, flags=ALLOC | EXEC)
    loaded = [
        (PT_LOAD, flags, 176 + at, address, 64, 64)
        for flags, at, address in ((5, 0, TEXT), (4, 64, EH_FRAME))
    ]
    path.write_bytes(elf_image(text, unwind, segments=loaded))
    cache = FileCache()
    file = cache.open(Image(), mapping(path))
    assert file is not None
    found = [file.frame(TEXT + at).name for at in (0x08, 0x10, 0x1F, 0x20)]
    assert found == ["libx.so+0x10008", "libx.so+0x10010", "libx.so+0x10010", "libx.so+0x10020"]
    cache.close()


def test_a_function_that_was_found_otherwise_gets_its_name(library: Path) -> None:
    cache = FileCache()
    file = cache.open(Image(), mapping(library))
    assert file is not None
    assert file.frame(0x10020).name == "libx.so+0x10020"
    file.name_function(0x10010, 0x10030, "rb_vm_exec")
    assert [file.frame(at).name for at in (0x10010, 0x10020)] == ["rb_vm_exec", "rb_vm_exec"]
    assert file.frame(0x10030).name == "libx.so+0x10030"
    cache.close()


def test_a_file_that_was_closed_or_shrank_still_names_its_frames(library: Path) -> None:
    cache = FileCache()
    file = cache.open(Image(), mapping(library))
    assert file is not None
    cache.close()
    assert file.frame(0x10020).name == "libx.so+0x10020"


def test_code_is_what_is_executed_from_a_file_or_the_vdso(library: Path) -> None:
    assert is_code(mapping(library))
    assert is_code(mapping(library, inode=0, path="[vdso]"))
    assert not is_code(mapping(library, executable=False))
    assert not is_code(mapping(library, inode=0, path=""))
    assert not is_code(mapping(library, inode=0, path="[vsyscall]"))


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_file_stays_while_somebody_maps_it_and_goes_after(library: Path) -> None:
    cache, before = FileCache(), fds()
    one = mapping(library)
    file = cache.open(Image(), one)
    assert file is not None
    cache.hold([one.file_key])
    cache.hold([one.file_key])
    cache.release([one.file_key])
    assert cache.expire(float("inf")) == []
    cache.release([one.file_key])
    assert cache.expire(0.0) == []  # it was mapped a moment ago
    assert cache.by_id(file.file_id) is file
    assert cache.expire(float("inf")) == [file.file_id]
    assert cache.by_id(file.file_id) is None
    assert (len(cache), fds()) == (0, before)
    assert cache.open(Image(), one) is not file
    cache.close()


def test_a_file_that_nobody_came_to_map_goes(library: Path) -> None:
    cache = FileCache()
    file = cache.open(Image(), mapping(library))
    assert file is not None
    assert cache.expire(float("inf")) == [file.file_id]


def test_a_file_stays_while_a_copy_of_it_is_mapped(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(IMAGE)
    cache = FileCache()
    one, other = mapping(library), mapping(copy)
    file = cache.open(Image(), one)
    assert cache.open(Image(), other) is file
    assert file is not None
    cache.hold([one.file_key, other.file_key])
    cache.release([one.file_key])
    assert cache.expire(float("inf")) == []
    cache.release([other.file_key])
    assert cache.expire(float("inf")) == [file.file_id]


def test_what_is_not_open_is_asked_for_anew_once_nobody_maps_it(library: Path, tmp_path: Path) -> None:
    """Its inode may be another file's by then."""
    other = tmp_path / "other"
    cache, image = FileCache(), Image()
    cache.open(image, mapping(library))
    for text in (b"no program", IMAGE):  # neither what is no ELF file, nor a copy of what is open
        other.write_bytes(text)
        key = mapping(other).file_key
        opened = image.opened
        for _ in range(2):
            cache.open(image, mapping(other))
            cache.hold([key])
            cache.open(image, mapping(other))
            cache.release([key])
        assert image.opened == opened + 2
    cache.close()


def test_no_more_files_are_open_than_may_be(tmp_path: Path) -> None:
    cache = FileCache(most=2)
    found = []
    for number in range(4):
        path = tmp_path / f"{number}.so"
        path.write_bytes(elf_image(Part(".text", bytes([number]) * 64, TEXT, flags=ALLOC | EXEC)))
        found.append(cache.open(Image(), mapping(path)))
    assert [file is None for file in found] == [False, False, True, True]
    assert cache.refused == 2
    assert len(cache.expire(float("inf"))) == 2
    assert cache.open(Image(), mapping(tmp_path / "3.so")) is not None
    cache.close()
