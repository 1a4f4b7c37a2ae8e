# SPDX-License-Identifier: Apache-2.0
"""The built objects: their programs and maps, and that release ones hold nothing of a debug print."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

import pytest
from architectures import ARCHITECTURES, KINDS, object_bytes

from rubyunwind.bpf.kinds import MapFlag, MapType, ProgramType
from rubyunwind.bpf.objectfile import ObjectFile
from rubyunwind.bpf.spec import CollectionSpec, load_collection_spec

SOURCES = Path(__file__).parents[2] / "support/ebpf"
# include/uapi/linux/bpf.h: instruction classes, opcodes, src_reg of a call of a helper; enum bpf_func_id.
# bpf_common.h: BPF_MAXINSNS.
CLASS, JMP, JMP32, GOTO, CALL, EXIT, LOAD_64, FROM_HELPERS = 0x07, 0x05, 0x06, 0x05, 0x85, 0x95, 0x18, 0
BPF_MAXINSNS = 4096
TRACE_PRINTK, GET_STACK = 6, 67

PROGRAMS = {
    "native_tracer_entry": "perf_event",
    "unwind_native": "perf_event",
    "unwind_ruby": "perf_event",
    "unwind_stop": "perf_event",
    "process_exit": "raw_tp/sched_process_exit",
    "process_exec": "raw_tp/sched_process_exec",
    "process_fork": "raw_tp/sched_process_fork",
}
# Not of the legacy object.
WALKER_PROGRAMS = {
    "native_tracer_walker": "?perf_event",
    "native_tracer_walker_loop": "?perf_event",
    "off_cpu_walker": "?raw_tp/sched_switch",
    "off_cpu_walker_loop": "?raw_tp/sched_switch",
    "off_cpu_exit": "?raw_tp/sched_process_exit",
}
# Of the legacy object, and loaded on request only.
LEGACY_PROGRAMS = {"unwind_native_long": "?perf_event", "analyze_system": "?perf_event"}
RECORD_SIZE = {"amd64": 4352, "arm64": 4328}
# type, key bytes, value bytes, entries in the object (0: one per CPU, set at load)
MAPS = {
    "progs": (MapType.PROG_ARRAY, 4, 4, 9),
    "metrics": (MapType.PERCPU_ARRAY, 4, 8, 97),
    "report_events": (MapType.PERF_EVENT_ARRAY, 4, 4, 0),
    "trace_events": (MapType.PERF_EVENT_ARRAY, 4, 4, 0),
    "reported_pids": (MapType.LRU_HASH, 4, 8, 65536),
    "pid_events": (MapType.HASH, 4, 1, 65536),
    "inhibit_events": (MapType.HASH, 4, 1, 2),
    "pid_page_to_mapping_info": (MapType.LPM_TRIE, 16, 16, 1 << 19),
    "interpreter_offsets": (MapType.HASH, 8, 24, 32),
    "stack_delta_page_to_info": (MapType.HASH, 16, 8, 40000),
    "unwind_info_array": (MapType.ARRAY, 4, 12, 16384),
    "kernel_stackmap": (MapType.STACK_TRACE, 4, 127 * 8, 16384),
    "ruby_procs": (MapType.HASH, 4, 32, 1024),
    "php_procs": (MapType.HASH, 4, 24, 1024),
    "dotnet_procs": (MapType.HASH, 4, 4, 1024),
    "apm_int_procs": (MapType.HASH, 4, 8, 128),
    "system_config": (MapType.ARRAY, 4, 32, 1),
    "system_analysis": (MapType.ARRAY, 4, 144, 1),
    "sched_times": (MapType.LRU_PERCPU_HASH, 8, 8, 256),
    **{f"exe_id_to_{bits}_stack_deltas": (MapType.HASH_OF_MAPS, 8, 4, 4096) for bits in range(8, 24)},
    # Beside the ABI.
    "interpreter_cold_offsets": (MapType.HASH, 8, 24, 32),
    "ruby_tls": (MapType.HASH, 4, 24, 1024),
    "ruby_vms": (MapType.HASH, 4, 24, 1024),
    "counters": (MapType.PERCPU_ARRAY, 4, 8, 22),
    "followed_pids": (MapType.HASH, 4, 4, 65536),
    "kernel_stack_scratch": (MapType.PERCPU_ARRAY, 4, 127 * 8, 1),
    "task_offsets": (MapType.ARRAY, 4, 8, 1),
}
# An entry a CPU, set at load.
WALKER_MAPS = {
    "iseq_cache": (MapType.ARRAY, 4, 2048 * 40, 1),
    "walker_config": (MapType.ARRAY, 4, 16, 1),
    "pid_namespace": (MapType.ARRAY, 4, 4, 1),
    "pid_mappings": (MapType.LPM_TRIE, 16, 48, 1 << 19),
    "flat_rows": (MapType.ARRAY, 4, 8, 1 << 21),
    "flat_pages": (MapType.ARRAY, 4, 8, 1 << 19),
    "off_cpu_last": (MapType.PERCPU_ARRAY, 4, 8, 1),
    "off_cpu_threads": (MapType.HASH, 4, 16, 5632),
    "off_cpu_traces_few": (MapType.HASH, 4, 80 + 24 * 128, 4096),
    "off_cpu_traces_some": (MapType.HASH, 4, 80 + 24 * 640, 1024),
    "off_cpu_traces_many": (MapType.HASH, 4, 80 + 24 * 2600, 64),
}
# Declared since the ABI has them, or for BTF; no program of ours uses them.
NOT_CREATED = {
    "php_procs",
    "dotnet_procs",
    "apm_int_procs",
    "system_analysis",
    "sched_times",
    "abi_types",
    "task_offsets",
}
ONLY_LEGACY_CREATES = {"task_offsets", "system_analysis"}
# Created where they are given a size.
ON_REQUEST = {name for name in WALKER_MAPS if name.startswith("off_cpu_")}

each_object = pytest.mark.parametrize(
    ("kind", "arch"), [(kind, arch) for kind in KINDS for arch in ARCHITECTURES]
)


@functools.cache
def spec(kind: str, arch: str) -> CollectionSpec:
    return load_collection_spec(kind == "debug", arch=arch, legacy=kind == "legacy")


@functools.cache
def parsed(kind: str, arch: str) -> ObjectFile:
    return ObjectFile.parse(object_bytes(kind, arch))


def helpers(kind: str, arch: str) -> set[int]:
    """Numbers of the kernel helpers that any instruction calls, in subprograms too."""
    called = set()
    for function in parsed(kind, arch).functions():
        for opcode, registers, _, immediate in struct.iter_unpack("<BBhi", function.instructions):
            if opcode == CALL and registers >> 4 == FROM_HELPERS:
                called.add(immediate)
    return called


def relocations_by_type(kind: str, arch: str) -> int:
    """Return the bytes of CO-RE relocations: core_relo_len of struct btf_ext_header (libbpf, btf.h)."""
    section = parsed(kind, arch).find(".BTF.ext")
    assert section is not None
    hdr_len, *_, core_relo_len = struct.unpack_from("<IIIIIII", section.data, 4)
    return int(core_relo_len) if hdr_len >= 32 else 0


def has_loop(code: list[tuple[int, int, int, int]]) -> bool:
    """Whether an instruction leads to itself. A jump back alone is none: blocks lie in any order."""

    def following(at: int) -> list[int]:
        opcode, _, offset, _ = code[at]
        if opcode & CLASS not in (JMP, JMP32) or opcode == CALL:
            return [at + (2 if opcode == LOAD_64 else 1)]
        return [] if opcode == EXIT else [at + 1 + offset] if opcode == GOTO else [at + 1, at + 1 + offset]

    open_, done = set(), set()
    path = [(0, iter(following(0)))]
    while path:
        at, left = path[-1]
        open_.add(at)
        successor = next(left, None)
        if successor is None:
            done.add(at)
            open_.discard(at)
            path.pop()
        elif successor in open_:
            return True
        elif successor not in done:
            path.append((successor, iter(following(successor))))
    return False


def test_a_loop_is_seen() -> None:
    move, back = (0xB7, 0, 0, 0), (GOTO, 0, -2, 0)
    assert has_loop([move, back])
    assert not has_loop([(GOTO, 0, 1, 0), (EXIT, 0, 0, 0), (GOTO, 0, -2, 0)])


@functools.cache
def debug_formats() -> tuple[bytes, ...]:
    texts = [path.read_text() for path in sorted(SOURCES.glob("*.h")) + sorted(SOURCES.glob("*.c"))]
    found = [text for source in texts for text in re.findall(r'DEBUG_PRINT\(\s*"([^"]+)"', source)]
    return tuple(text.encode() for text in found)


@each_object
def test_the_programs_are_those_and_in_those_sections(kind: str, arch: str) -> None:
    programs = spec(kind, arch).programs
    expected = {**PROGRAMS, **(LEGACY_PROGRAMS if kind == "legacy" else WALKER_PROGRAMS)}
    assert {name: program.section for name, program in programs.items()} == expected
    for name, program in programs.items():
        perf = expected[name].endswith("perf_event")
        assert program.type == (ProgramType.PERF_EVENT if perf else ProgramType.RAW_TRACEPOINT)
        assert program.load == (name in PROGRAMS)


@each_object
def test_the_licence_is_one_the_kernel_takes_for_gpl(kind: str, arch: str) -> None:
    assert {program.license for program in spec(kind, arch).programs.values()} == {"Dual BSD/GPL"}


@each_object
def test_every_map_of_the_abi_is_declared_with_its_sizes(kind: str, arch: str) -> None:
    maps = spec(kind, arch).maps
    expected = {**MAPS, "per_cpu_records": (MapType.PERCPU_ARRAY, 4, RECORD_SIZE[arch], 1)}
    found = {
        name: (item.type, item.key_size, item.value_size, item.max_entries) for name, item in maps.items()
    }
    assert {name: found.get(name) for name in expected} == expected
    if kind != "legacy":
        expected |= WALKER_MAPS
        assert found.pop("walk_records")[3] == 1
    assert {name: found.get(name) for name in expected} == expected
    assert set(found) - set(expected) == {"abi_types"}


@each_object
def test_maps_that_no_program_uses_are_not_created(kind: str, arch: str) -> None:
    assert {name for name, item in spec(kind, arch).maps.items() if not item.create} == (
        NOT_CREATED - ONLY_LEGACY_CREATES if kind == "legacy" else NOT_CREATED | ON_REQUEST
    )


@each_object
def test_the_rows_of_files_go_into_arrays_of_any_size_or_of_the_buckets(kind: str, arch: str) -> None:
    for bits in range(8, 24):
        inner = spec(kind, arch).maps[f"exe_id_to_{bits}_stack_deltas"].inner
        assert inner is not None
        assert (inner.type, inner.key_size, inner.value_size) == (MapType.ARRAY, 4, 4)
        if kind == "legacy":  # kernels before 5.10 want them all of one size
            assert (inner.flags, inner.max_entries) == (0, 1 << bits)
        else:
            assert inner.flags & MapFlag.INNER_MAP


@each_object
def test_the_trie_is_not_allocated_ahead(kind: str, arch: str) -> None:
    # The kernel refuses an LPM trie without BPF_F_NO_PREALLOC.
    assert spec(kind, arch).maps["pid_page_to_mapping_info"].flags & MapFlag.NO_PREALLOC


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_debug_objects_print(arch: str) -> None:
    assert TRACE_PRINTK not in helpers("release", arch)
    assert TRACE_PRINTK in helpers("debug", arch)
    assert helpers("debug", arch) - helpers("release", arch) == {TRACE_PRINTK}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_legacy_object_asks_nothing_of_its_kernel_that_is_younger_than_linux_4_19(arch: str) -> None:
    """No data but the licence (5.2), no CO-RE, no subprogram beside tail calls, no loop, no new helper."""
    elf = parsed("legacy", arch)
    with_data = {
        section.name for section in elf.sections if section.name.startswith((".rodata", ".data", ".bss"))
    }
    assert with_data == set()
    assert {function.section for function in elf.functions()} == {
        *PROGRAMS.values(),
        *LEGACY_PROGRAMS.values(),
    }
    assert max(helpers("legacy", arch)) <= GET_STACK
    for function in elf.functions():
        code = list(struct.iter_unpack("<BBhi", function.instructions))
        assert not [1 for opcode, source, _, _ in code if opcode == CALL and source >> 4 != FROM_HELPERS]
        assert not has_loop(code), function.name
        assert not [opcode for opcode, *_ in code if opcode & CLASS == JMP32], (
            f"{function.name}: jmp32 came in 5.1"
        )
        if function.name not in LEGACY_PROGRAMS:
            assert len(code) <= BPF_MAXINSNS, function.name
    assert relocations_by_type("legacy", arch) == 0 < relocations_by_type("release", arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_only_debug_objects_hold_the_texts_of_debug_prints(arch: str) -> None:
    if not SOURCES.is_dir():
        pytest.skip(f"no source tree here: {SOURCES} does not exist")
    assert debug_formats()
    release, debug = object_bytes("release", arch), object_bytes("debug", arch)
    assert [text for text in debug_formats() if text in release] == []
    assert [text for text in debug_formats() if text + b"\0" not in debug] == []
    assert not [section.name for section in parsed("release", arch).sections if "rodata" in section.name]
