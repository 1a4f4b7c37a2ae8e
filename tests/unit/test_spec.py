# SPDX-License-Identifier: Apache-2.0
"""Collection specs: parsed without kernel or libbpf, from whole and from damaged objects."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.bpf import spec as spec_module
from rubyunwind.bpf.kinds import MapType, ProgramType
from rubyunwind.bpf.spec import CollectionSpec, load_collection_spec, machine_arch
from rubyunwind.errors import DecodeError, NotSupported

cached_bytes = functools.cache(Path.read_bytes)


@pytest.fixture
def spec(loader_object: Path) -> CollectionSpec:
    return load_collection_spec(path=loader_object)


def test_programs_have_section_type_licence_and_instructions(spec: CollectionSpec) -> None:
    assert set(spec.programs) == {
        "native_tracer_entry",
        "unwind_stop",
        "unwind_native",
        "unwind_ruby",
        "process_exit",
    }
    stop = spec.programs["unwind_stop"]
    assert (stop.section, stop.type, stop.license) == ("perf_event", ProgramType.PERF_EVENT, "GPL")
    assert 0x95 in stop.instructions[::8]  # BPF_JMP | BPF_EXIT
    assert stop.instruction_count * 8 == len(stop.instructions)
    assert spec.programs["process_exit"].type == ProgramType.RAW_TRACEPOINT


def test_maps_have_the_sizes_of_the_source(spec: CollectionSpec) -> None:
    record = spec.maps["per_cpu_records"]
    assert (record.type, record.key_size, record.max_entries) == (MapType.PERCPU_ARRAY, 4, 1)
    inner = spec.maps["tables"].inner
    assert inner is not None
    assert (inner.type, inner.flags) == (MapType.ARRAY, 0x1000)


def test_a_suffix_in_the_section_name_still_gives_the_program_type(rejected_object: Path) -> None:
    program = load_collection_spec(path=rejected_object).programs["out_of_bounds"]
    assert (program.section, program.type) == ("perf_event/with_a_suffix", ProgramType.PERF_EVENT)


def test_parsing_needs_neither_libbpf_nor_cffi_nor_elftools(loader_object: Path) -> None:
    code = (
        "import sys, pathlib; from rubyunwind.bpf import load_collection_spec\n"
        f"load_collection_spec(path=pathlib.Path({str(loader_object)!r}))\n"
        "print(*(m for m in sys.modules if m.split('.')[0] in ('cffi', 'elftools', 'logging', 'asyncio')"
        " or m in ('rubyunwind._libbpf', 'importlib.metadata', 'importlib.resources')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_missing_object_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spec_module, "__file__", str(tmp_path / "bpf" / "spec.py"))
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(NotSupported, match=r"tracer\.ebpf\.debug\.arm64\.o.*make ebpf"):
        load_collection_spec(debug_tracer=True, arch="arm64")


def test_an_unreadable_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match=r"nothing\.o: No such file"):
        load_collection_spec(path=tmp_path / "nothing.o")


def test_machines_without_an_object_are_refused() -> None:
    assert machine_arch("aarch64") == "arm64"
    with pytest.raises(NotSupported, match="riscv64"):
        machine_arch("riscv64")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda data: b"", "begins with nothing"),
        (lambda data: b"#!/bin/sh\n", "begins with 23 21"),
        (lambda data: data[:40], "cut short: 40 bytes"),
        (lambda data: data[:-1], "section table ends at byte"),
        (lambda data: data[:18] + b"\x3e\0" + data[20:], "ELF machine 62"),
        (lambda data: data.replace(b".BTF\0", b".FTB\0"), "no .BTF section"),
        (lambda data: data.replace(b"\0license\0", b"\0maps\0\0\0\0"), "legacy 'maps' section"),
    ],
)
def test_a_damaged_object_is_refused_with_what_was_found(
    loader_object: Path, change: object, found: str
) -> None:
    data = cached_bytes(loader_object)
    with pytest.raises(DecodeError, match=found):
        CollectionSpec.parse(change(data))  # type: ignore[operator]


@given(data=st.data())
def test_a_truncated_object_is_always_a_decode_error(loader_object: Path, data: st.DataObject) -> None:
    whole = cached_bytes(loader_object)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DecodeError, match=r"cut short|begins with"):
        CollectionSpec.parse(whole[:size])


@given(data=st.data())
def test_a_flipped_bit_gives_a_spec_or_a_decode_error(loader_object: Path, data: st.DataObject) -> None:
    whole = bytearray(cached_bytes(loader_object))
    for _ in range(data.draw(st.integers(1, 3))):
        # Half of the damage goes where the structure is: the header and the section table at the end.
        last = len(whole) - 1
        place = data.draw(st.one_of(st.integers(0, 63), st.integers(last - 2200, last), st.integers(0, last)))
        whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        spec = CollectionSpec.parse(bytes(whole))
    except DecodeError:
        return
    assert spec.programs
    assert repr(spec)
