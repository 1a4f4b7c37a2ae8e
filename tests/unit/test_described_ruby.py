# SPDX-License-Identifier: Apache-2.0
"""A Ruby that is not laid out as its release: by its own debug information, or refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dwarf_images import debug_parts
from elf_images import ALLOC, EXEC, PT_LOAD, SHT_DYNSYM, SHT_STRTAB, Part, elf_image
from ruby_memory import BASE, RubyMemory
from test_detect import MAPPING, context_symbol, stack

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import UnsupportedRuby
from rubyunwind.ruby.detect import describe_runtime
from rubyunwind.ruby.image import ImageSymbol, RubyImage, read_image
from rubyunwind.ruby.layouts import Layout, find_layout
from rubyunwind.ruby.layouts.debug_info import _MEMBERS, offsets_of
from rubyunwind.ruby.layouts.described import with_offsets

VERSION = "3.3.8"
RELEASE = find_layout(VERSION).layout
# What a patch, or a way to configure, moves: a member more in each control frame (VM_DEBUG_BP_CHECK), two in
# front of an iseq's location, one in the execution context and in the location.
PATCHES: dict[str, dict[str, int]] = {
    "control frames": {"cfp_size": 64},
    "iseqs": {
        name: getattr(RELEASE, name) + 16
        for name in (
            "body_location", "body_insns_info", "body_insns_info_size", "body_succ_index_table",
            "body_parent_iseq", "body_local_iseq",
        )
    },
    "contexts": {"ec_cfp": 24, "ec_thread_ptr": 56},
    "pathobj": {"location_pathobj": 8, "location_base_label": 16, "location_label": 24},
}  # fmt: skip


def told_by(layout: Layout) -> dict[str, int]:
    return {name: getattr(layout, name) for name in _MEMBERS if getattr(layout, name) is not None}


def running(layout: Layout, described: Layout | None) -> tuple[RubyMemory, RubyImage]:
    """Return the memory of a Ruby of that layout, and its image, which tells `described`."""
    memory = RubyMemory(layout)
    frames = [memory.iseq(name, lines=memory.one_line(line)) for line, name in enumerate(("c", "b", "a"), 1)]
    made = stack(memory, *frames)
    base, words, newest = (memory.u64(made + 8 * word) for word in range(3))
    # Where it has nothing of these, there is something else.
    context = memory.words(*[memory.place(bytes(64))] * 16)
    members = {layout.ec_vm_stack: base, layout.ec_vm_stack_size: words, layout.ec_cfp: newest}
    for offset, value in members.items():
        memory.poke(context + offset, value)
    symbols = context_symbol(memory, context)
    image = RubyImage(
        path=MAPPING.path,
        bias=BASE,
        symbols={name: ImageSymbol(value - BASE, 100) for name, value in symbols.items()},
        described=told_by(described) if described is not None else {},
    )
    return memory, image


def describe(memory: RubyMemory, image: RubyImage, **more: Any) -> Any:
    return describe_runtime(image, more.pop("version", VERSION), MAPPING, [], memory, **more)


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_release_is_read_by_its_debug_information(patch: str) -> None:
    layout = replace(RELEASE, **PATCHES[patch])
    runtime = describe(*running(layout, layout))
    assert runtime.layout == layout
    assert runtime.layout_version == "its debug information"
    assert (runtime.check.result, runtime.check.frames) == ("good", 3)
    (note,) = (note for note in runtime.notes if "decides" in note)
    for name, offset in PATCHES[patch].items():
        assert f"{name} {offset} instead of {getattr(RELEASE, name)}" in note


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patched_release_that_is_stripped_is_refused(patch: str) -> None:
    with pytest.raises(UnsupportedRuby, match=r"does not have the layout of 3\.3\.8"):
        describe(*running(replace(RELEASE, **PATCHES[patch]), None))


@pytest.mark.parametrize("patch", PATCHES)
def test_debug_information_that_does_not_fit_is_left_alone(patch: str) -> None:
    runtime = describe(*running(RELEASE, replace(RELEASE, **PATCHES[patch])))
    assert runtime.layout == RELEASE
    assert runtime.layout_version == VERSION
    assert runtime.check.result == "good"
    assert "the layout of its debug information does not fit: " in runtime.notes[-1]


def test_neither_fits() -> None:
    memory, image = running(replace(RELEASE, cfp_size=72), replace(RELEASE, cfp_size=64))
    with pytest.raises(UnsupportedRuby, match=r"does not have the layout of 3\.3\.8"):
        describe(memory, image)


def test_debug_information_that_agrees_is_not_spoken_of() -> None:
    runtime = describe(*running(RELEASE, RELEASE))
    assert (runtime.layout, runtime.layout_version) == (RELEASE, VERSION)
    assert not any("debug information" in note for note in runtime.notes)


def test_of_a_release_that_is_not_known_yet_it_decides_too() -> None:
    runtime = describe(*running(RELEASE, RELEASE), version="3.3.99")
    assert runtime.layout == RELEASE
    assert runtime.notes[0] == (
        "Ruby 3.3.99: the layout of its debug information is assumed; the self-check agrees"
    )


def test_a_release_that_is_forced_is_taken_as_it_is() -> None:
    memory, image = running(RELEASE, replace(RELEASE, cfp_size=64))
    assert describe(memory, image, assume_version=VERSION).layout == RELEASE


def test_a_context_that_is_told_is_tried_with_both() -> None:
    memory, image = running(RELEASE, replace(RELEASE, **PATCHES["iseqs"]))
    context = memory.u64(memory.u64(image.address(RELEASE.context_symbol)) + (RELEASE.ractor_running_ec or 0))
    runtime = describe(memory, image, context=context)
    assert (runtime.layout, runtime.context) == (RELEASE, context)


def library(*parts: Part) -> bytes:
    """Return a shared library that defines Ruby's version, and has more sections."""
    entry = b"\1\0\0\0" + bytes([0x11, 0]) + (1).to_bytes(2, "little") + (0xF00).to_bytes(8, "little")
    return elf_image(
        Part(".text", bytes(64), address=0x40, flags=ALLOC | EXEC),
        Part(
            ".dynsym", bytes(24) + entry + (16).to_bytes(8, "little"), type=SHT_DYNSYM, link=3, entry_size=24
        ),
        Part(".dynstr", b"\0ruby_version\0", type=SHT_STRTAB),
        *parts,
        segments=[(PT_LOAD, 5, 0, 0, 0x400, 0x1000)],
    )


@pytest.mark.parametrize("version", [4, 5])
def test_an_image_has_what_its_debug_information_tells(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = told_by(replace(RELEASE, **PATCHES["iseqs"]))
    path = tmp_path / "libruby.so"
    path.write_bytes(library(*debug_parts(told, version=version)))
    mapping = replace(MAPPING, offset=0)
    with ElfFile.open(path) as elf:
        assert read_image(elf, mapping).described == told
        assert with_offsets(RELEASE, told) == replace(RELEASE, **PATCHES["iseqs"])
    assert list((tmp_path / "cache/rubyunwind").glob("layout*"))
    with ElfFile.open(path) as elf:
        assert read_image(elf, mapping).described == told


@pytest.mark.parametrize(
    "lie",
    [{"cfp_size": 256}, {"cfp_size": 0}, {"cfp_size": 60}, {"ec_cfp": 300}, {"body_type": 256}],
    ids=str,
)
def test_what_cannot_be_is_not_told_and_is_in_the_log(
    lie: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "rubyunwind")
    path = tmp_path / "libruby.so"
    path.write_bytes(library(*debug_parts(told_by(RELEASE) | lie)))
    for _ in range(2):
        with ElfFile.open(path) as elf:
            assert read_image(elf, replace(MAPPING, offset=0)).described == {}
    assert len([line for line in caplog.messages if "its debug information says that" in line]) == 1


def test_debug_information_of_something_else_tells_nothing() -> None:
    with ElfFile(elf_image(*debug_parts(told_by(RELEASE), source="other.c"))) as elf:
        assert offsets_of(elf) is None
    some = {"cfp_size": 56, "cfp_pc": 0}
    with ElfFile(elf_image(*debug_parts(some))) as elf:
        assert offsets_of(elf) is None
