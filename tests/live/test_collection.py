# SPDX-License-Identifier: Apache-2.0
"""Loading: sizes, what is left out, the tail-call table, and what a refusal says."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.compound_maps import ProgArray
from rubyunwind.bpf.kinds import MapType
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.map_factory import create_array
from rubyunwind.bpf.messages import LOGGER_NAME
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.spec import CollectionSpec, MapSpec, load_collection_spec
from rubyunwind.errors import BpfError, NotSupported

from .loader_program import (
    EMPTY_SLOT,
    EXITS,
    RAN_ENTRY,
    RAN_NATIVE,
    RAN_RUBY,
    RAN_STOP,
    configure,
    metric,
    spin_until,
)

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("bpf")]


@pytest.fixture
def spec(loader_object: Path) -> CollectionSpec:
    return load_collection_spec(path=loader_object)


@pytest.fixture
def collection(spec: CollectionSpec) -> Iterator[Collection]:
    with spec.load() as loaded:
        yield loaded


def test_perf_arrays_get_a_slot_per_cpu_and_a_value_size(collection: Collection) -> None:
    cpus = load_library().lib.libbpf_num_possible_cpus()
    for name in ("trace_events", "report_events"):
        events = collection.maps[name]
        assert (events.max_entries, events.key_size, events.value_size) == (cpus, 4, 4)


def test_progs_is_filled_by_program_number(collection: Collection) -> None:
    progs = collection.maps["progs"]
    assert isinstance(progs, ProgArray)
    assert dict(progs.items()) == {
        slot: collection.programs[name].stats().id
        for slot, name in ((0, "unwind_stop"), (1, "unwind_native"), (6, "unwind_ruby"))
    }


@pytest.mark.parametrize(
    ("slot", "reached"), [(0, RAN_STOP), (1, RAN_NATIVE), (6, RAN_RUBY), (8, EMPTY_SLOT)]
)
def test_a_sample_jumps_to_the_slot(collection: Collection, slot: int, reached: int) -> None:
    configure(collection, slot)
    with perf_event_open(pid=0, frequency=999, disabled=True) as event:
        event.attach(collection.programs["native_tracer_entry"])
        event.enable()
        spin_until(collection, reached)
        event.disable()
    assert metric(collection, RAN_ENTRY) >= 1


def test_a_program_that_is_left_out_leaves_its_slot_empty(spec: CollectionSpec) -> None:
    with spec.load(without_programs={"unwind_ruby", "process_exit"}) as collection:
        assert set(collection.programs) == {"native_tracer_entry", "unwind_stop", "unwind_native"}
        assert set(collection.maps["progs"]) == {0, 1}


def test_a_map_that_is_left_out_is_not_created(spec: CollectionSpec) -> None:
    for program in ("unwind_ruby", "unwind_stop"):
        spec.programs[program].load = False
    spec.maps["small_hash"].create = False
    with spec.load(without_maps={"kernel_stackmap"}) as collection:
        assert not {"kernel_stackmap", "small_hash"} & set(collection.maps)


def test_sizes_can_be_edited_in_the_spec_and_at_the_load(spec: CollectionSpec) -> None:
    spec.maps["small_hash"].max_entries = 9
    with spec.load(max_entries={"pid_page_to_mapping_info": 77, "report_events": 1}) as collection:
        sizes = {name: item.max_entries for name, item in collection.maps.items()}
    assert (sizes["small_hash"], sizes["pid_page_to_mapping_info"], sizes["report_events"]) == (9, 77, 1)


def test_an_inner_template_can_be_replaced(spec: CollectionSpec) -> None:
    spec.maps["tables"].inner = MapSpec("rows", MapType.ARRAY, 4, 4, max_entries=64)
    with (
        spec.load(without_programs={"unwind_native"}) as collection,
        create_array(64, 4, flags=0) as right,
        create_array(65, 4, flags=0) as wrong,
    ):
        collection.maps["tables"][1] = right
        with pytest.raises(BpfError, match="differs from the template"):
            collection.maps["tables"][2] = wrong


def test_a_map_of_maps_without_a_template_is_explained(spec: CollectionSpec) -> None:
    spec.maps["tables"].inner = None
    with pytest.raises(ValueError, match=r"map tables .* set spec\.maps\['tables'\]\.inner"):
        spec.load()


def test_unknown_names_are_refused_before_anything_is_created(spec: CollectionSpec) -> None:
    with pytest.raises(KeyError, match="has no map nonsense"):
        spec.load(max_entries={"nonsense": 1})
    with pytest.raises(KeyError, match="has no program nonsense"):
        spec.load(without_programs=["nonsense"])


def test_an_object_for_the_other_architecture_is_refused(spec: CollectionSpec) -> None:
    spec.arch = "amd64" if os.uname().machine == "aarch64" else "arm64"
    with pytest.raises(NotSupported, match=f"compiled for {spec.arch}"):
        spec.load()


def test_a_verifier_failure_is_summed_up_and_its_log_kept(
    rejected_object: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BpfError) as caught:
        load_collection_spec(path=rejected_object).load()
    text, log = str(caught.value), caught.value.log
    assert "load program out_of_bounds (" in text
    assert "invalid access to map value, value_size=8 off=32 size=8" in text
    assert "instructions)" in text
    assert len(text) < 400
    assert "R0" in log
    assert "processed" in log
    assert capfd.readouterr() == ("", ""), "libbpf printed past our callback"


def test_without_the_refused_program_the_object_loads(rejected_object: Path) -> None:
    with load_collection_spec(path=rejected_object).load(without_programs={"out_of_bounds"}) as collection:
        assert set(collection.programs) == {"fine"}


def test_a_map_the_kernel_refuses_is_named(spec: CollectionSpec) -> None:
    with pytest.raises(BpfError, match="small_hash"):
        spec.load(max_entries={"small_hash": 0xFFFFFFFF})


def test_an_object_that_libbpf_refuses_is_an_error_not_a_crash(spec: CollectionSpec) -> None:
    spec.data = spec.data[:64] + bytes(len(spec.data) - 64)
    with pytest.raises(BpfError, match="open loader"):
        spec.load()


def test_what_libbpf_prints_reaches_logging_with_its_arguments(
    spec: CollectionSpec, caplog: pytest.LogCaptureFixture
) -> None:
    """A va_list crosses the callback: names and numbers must come out right."""
    with caplog.at_level(logging.DEBUG, LOGGER_NAME):
        spec.load(max_entries={"small_hash": 1234}).close()
    lines = [record.message for record in caplog.records]
    assert any("map 'small_hash': created successfully, fd=" in line for line in lines), lines[-20:]
    assert any("sec 'perf_event': found program 'unwind_stop' at insn offset" in line for line in lines)


def test_without_rights_the_capabilities_are_named(loader_object: Path) -> None:
    """In a child that drops root; loading anew after fork is allowed, and must be refused by the kernel."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            data = loader_object.read_bytes()
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            try:
                CollectionSpec.parse(data).load()
                answer = "loaded"
            except Exception as error:
                answer = f"{type(error).__name__} {error}"
            os.write(writer, answer.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read().decode()
    os.waitpid(child, 0)
    assert answer.startswith("NotSupported load ")
    assert "lacks CAP_BPF and CAP_PERFMON. Run it as root" in answer


def child_exits(collection: Collection) -> None:
    """Let a child exit while the program looks for it."""
    start, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(start, 1)
        os._exit(0)
    configure(collection, slot=0, pid=child)
    os.write(go, b"x")
    os.waitpid(child, 0)
    os.close(start)
    os.close(go)


def test_a_raw_tracepoint_runs_until_its_link_is_closed(collection: Collection) -> None:
    with collection.programs["process_exit"].attach_raw_tracepoint():
        child_exits(collection)
        assert metric(collection, EXITS) == 1
    child_exits(collection)
    assert metric(collection, EXITS) == 1


def test_an_unknown_raw_tracepoint_is_named(collection: Collection) -> None:
    with pytest.raises(BpfError, match="raw tracepoint no_such_point") as caught:
        collection.programs["process_exit"].attach_raw_tracepoint("no_such_point")
    assert caught.value.errno == 2


def test_a_program_tells_what_the_verifier_walked(collection: Collection) -> None:
    stats = collection.programs["unwind_stop"].stats()
    assert stats.jited_bytes >= 0
    assert stats.verified_instructions == 0 or stats.verified_instructions > 64


def test_kernel_memory_of_a_map_is_told(collection: Collection) -> None:
    # The entries of a hash are allocated when it is made.
    assert collection.maps["small_hash"].memory_bytes() >= 4 * 12


def test_maps_that_no_program_uses_are_created_only_on_request() -> None:
    unused = {"php_procs", "dotnet_procs", "apm_int_procs", "system_analysis", "sched_times", "abi_types"}
    unused.add("task_offsets")  # of the legacy flavour
    spec = load_collection_spec()
    unused |= {name for name in spec.maps if name.startswith("off_cpu_")}
    assert {item.name for item in spec.maps.values() if not item.create} == unused
    with spec.load() as collection:
        assert set(collection.maps) == set(spec.maps) - unused
    spec.maps["php_procs"].create = True
    with spec.load(max_entries={"dotnet_procs": 7}) as collection:
        assert {"php_procs", "dotnet_procs"} <= set(collection.maps)
        assert collection.maps["dotnet_procs"].max_entries == 7
