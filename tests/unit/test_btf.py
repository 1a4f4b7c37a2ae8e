# SPDX-License-Identifier: Apache-2.0
"""BTF of compiled objects against what cffi computes from the same header, and damaged BTF."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind._native import ffi
from rubyunwind.bpf.btf import Btf
from rubyunwind.bpf.objectfile import ObjectFile
from rubyunwind.errors import DecodeError


@functools.cache
def btf_section(path: Path) -> bytes:
    section = ObjectFile.parse(path.read_bytes()).find(".BTF")
    assert section is not None
    return bytes(section.data)


@pytest.fixture(scope="session")
def btf(loader_object: Path) -> Btf:
    return Btf.parse(btf_section(loader_object))


def flat_offsets(ctype: object, base: int = 0) -> dict[str, int]:
    """Byte offsets as C names them: members of unnamed structs and unions belong to the outer one."""
    found: dict[str, int] = {}
    for name, field in ctype.fields:  # type: ignore[attr-defined]
        if name:
            found[name] = base + field.offset
        else:
            found |= flat_offsets(field.type, base + field.offset)
    return found


@pytest.mark.parametrize("name", ["PerCPURecord", "Trace", "Frame", "UnwindState", "RubyUnwindState"])
def test_layout_in_the_object_equals_the_compilers(btf: Btf, name: str) -> None:
    layout = btf.layouts()[name]
    assert layout.size == ffi.sizeof(name)
    assert layout.offsets == flat_offsets(ffi.typeof(name))


def test_members_of_unnamed_unions_appear_under_their_own_names(btf: Btf) -> None:
    offsets = btf.layouts()["PerCPURecord"].offsets
    assert offsets["hotspotUnwindScratch"] == offsets["v8UnwindScratch"] > offsets["rubyUnwindState"]


def test_the_other_architectures_object_differs_where_registers_are(
    compile_ebpf: Callable[..., Path],
) -> None:
    sizes = {
        define: Btf.parse(btf_section(compile_ebpf("loader", define))).layouts()["PerCPURecord"].size
        for define in ("-D__x86_64__", "-D__aarch64__")
    }
    assert sizes == {"-D__x86_64__": 4352, "-D__aarch64__": 4328}


def test_enum_values_are_the_headers(btf: Btf) -> None:
    enum = btf.enums()["TraceOrigin"]
    assert enum == {"TRACE_ORIGIN_UNKNOWN": 0, "TRACE_ORIGIN_SAMPLING": 1, "TRACE_ORIGIN_OFF_CPU": 2}


def test_map_definitions_carry_sizes_from_types_and_from_numbers(btf: Btf) -> None:
    maps = {item.name: item for item in btf.map_definitions()}
    tables = maps["tables"]
    assert (tables.type, tables.key_size, tables.value_size, tables.max_entries) == (13, 8, 4, 8)
    assert tables.inner is not None
    assert (tables.inner.type, tables.inner.key_size, tables.inner.value_size) == (2, 4, 4)
    assert (tables.inner.max_entries, tables.inner.flags) == (1, 0x1000)
    trie = maps["pid_page_to_mapping_info"]
    assert (trie.type, trie.key_size, trie.value_size, trie.flags) == (11, 16, 16, 1)
    assert maps["per_cpu_records"].value_size == ffi.sizeof("PerCPURecord")
    assert maps["trace_events"].value_size == 0


def test_definitions_agree_with_bpftool(loader_object: Path, btf: Btf) -> None:
    """An independent reader of the same section finds as many types."""
    try:
        run = subprocess.run(
            ["bpftool", "btf", "dump", "file", loader_object], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("bpftool is not installed")
    theirs = [line for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(btf._types) - 1 == len(theirs)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (b"\0" * 24, "0x0000"),
        (b"\x9f\xeb\x02\0" + b"\0" * 20, "version 2"),
        (b"\x9f\xeb\x01\0\x18\0\0\0" + b"\0\0\0\0\xff\0\0\0" + b"\0" * 8, "types end at byte 279"),
    ],
)
def test_what_is_no_btf_is_refused_with_what_was_found(data: bytes, found: str) -> None:
    with pytest.raises(DecodeError, match=found):
        Btf.parse(data)


@given(data=st.data())
def test_damaged_btf_parses_or_is_a_decode_error(loader_object: Path, data: st.DataObject) -> None:
    whole = bytearray(btf_section(loader_object))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(DecodeError):
        btf = Btf.parse(bytes(whole))
        assert all(item.name is not None for item in btf.map_definitions())
        assert all(layout.size >= 0 for layout in btf.layouts().values())
        btf.enums()
