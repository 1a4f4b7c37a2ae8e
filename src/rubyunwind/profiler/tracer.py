# SPDX-License-Identifier: Apache-2.0
"""Loads the tracer in the flavour that this kernel takes, and tells it what it has to know of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rubyunwind.abi import MAX_DEEP_FRAMES, PIDNamespace, WalkerConfig
from rubyunwind.bpf.features import FLAVOURS, LEGACY, LONG_PROGRAMS, YES, features
from rubyunwind.bpf.flavour import choose_flavour
from rubyunwind.bpf.kinds import ProgramType
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.spec import LONG_SUFFIX, load_collection_spec
from rubyunwind.errors import NotSupported
from rubyunwind.profiler.backends import CHAIN, UNWINDERS, WALKER
from rubyunwind.profiler.system import ANALYSIS_MAP, pid_namespace, system_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.abi import Struct
    from rubyunwind.bpf.collection import Collection
    from rubyunwind.bpf.program import Program
    from rubyunwind.bpf.spec import CollectionSpec
    from rubyunwind.profiler.off_cpu import OffCPU

__all__ = ["OFF_CPU_EXIT", "entry_of", "load_tracer", "off_cpu_of", "tracer_spec"]

WALKER_ENTRY, CHAIN_ENTRY = "native_tracer_walker", "native_tracer_entry"
# The walker with bpf_loop, which the verifier has less work with.
WALKER_LOOP_ENTRY = "native_tracer_walker_loop"
_ENTRIES = (WALKER_LOOP_ENTRY, WALKER_ENTRY, CHAIN_ENTRY)

# Maps of maps.h that one of them reads: all of the walker's, those of an entry a CPU, and (the beginnings of
# the names of) the chain's.
_WALKERS = ("walk_records", "iseq_cache", "walker_config", "pid_mappings", "flat_rows", "flat_pages")
_PER_CPU = ("walk_records", "iseq_cache")
OFF_CPU_ENTRY, OFF_CPU_LOOP_ENTRY, OFF_CPU_EXIT = "off_cpu_walker", "off_cpu_walker_loop", "off_cpu_exit"
# Threads that are off the CPU at once, by the number of frames that they leave it with; and all of them.
_OFF_CPU = {
    "off_cpu_last": 1,
    "off_cpu_threads": 1296,
    "off_cpu_traces_few": 1024,
    "off_cpu_traces_some": 256,
    "off_cpu_traces_many": 16,
}
_CHAINS = (
    "exe_id_to_",
    "stack_delta_page_to_info",
    "progs",
    "per_cpu_records",
    "kernel_stackmap",
    "kernel_stack_scratch",
)


def tracer_spec(flavour: str | None = None, *, debug: bool = False) -> CollectionSpec:
    """Return the object of a flavour, by default of the best one that this kernel takes.

    Raises ValueError for an unknown flavour, NotSupported if the kernel takes none, or has no debug build.
    """
    if flavour is None:
        flavour = choose_flavour()
    elif flavour not in FLAVOURS:
        raise ValueError(f"flavour {flavour!r}: it must be one of {', '.join(FLAVOURS)}")
    if flavour == LEGACY and debug:
        raise NotSupported(
            "the legacy programs, for kernels before 5.10 and those without type information, have no debug "
            "build: leave debug_tracer out",
            feature="debug build of the legacy programs",
            needs="Linux 5.10 with CONFIG_DEBUG_INFO_BTF",
        )
    return load_collection_spec(debug, legacy=flavour == LEGACY)


def load_tracer(
    spec: CollectionSpec,
    *,
    unwinder: str | None = None,
    max_frames: int = MAX_DEEP_FRAMES,
    max_entries: Mapping[str, int] | None = None,
    off_cpu: OffCPU | None = None,
) -> Collection:
    """Load a tracer's object and fill `system_config`; the caller owns the collection.

    `unwinder` is "walker", one program that takes all steps of a stack, or "chain", the programs of the
    tail-call array; by default the walker where the object has it. `entry_of` is what a clock is to run.
    `max_frames` are as many as the walker puts into a trace. With `off_cpu` the program for switches is
    loaded, too: `off_cpu_of`. Raises BpfError, and NotSupported where rights are missing, the kernel's layout
    is not found, or the legacy object, which has the chain only, is asked for the walker.
    """
    if unwinder not in (None, *UNWINDERS):
        raise ValueError(f"unwinder {unwinder!r}: it must be one of {', '.join(UNWINDERS)}")
    if not 2 <= max_frames <= MAX_DEEP_FRAMES:
        raise ValueError(f"max_frames is {max_frames}, must be 2 to {MAX_DEEP_FRAMES}")
    has_walker = WALKER_ENTRY in spec.programs
    if unwinder == WALKER and not has_walker:
        raise NotSupported(
            "the legacy programs, for kernels before 5.10 or without type information, have no walker: "
            "use the chain",
            feature="the walker",
            needs="Linux 5.10 with CONFIG_DEBUG_INFO_BTF",
        )
    if off_cpu is not None and (unwinder == CHAIN or not has_walker):
        raise NotSupported(
            "off-CPU stacks are taken by the walker only: "
            + ("leave the unwinder out" if has_walker else "the legacy programs, for old kernels, have none"),
            feature="off-CPU stacks",
            needs="Linux 5.10 with CONFIG_DEBUG_INFO_BTF",
        )
    config = system_config()
    if off_cpu is not None:
        config = config.replace(off_cpu_threshold=off_cpu.threshold)
    values: dict[str, Struct] = {"system_config": config}
    namespace = pid_namespace()
    if has_walker:
        values["pid_namespace"] = PIDNamespace(inode=namespace)
    elif namespace:
        raise NotSupported(
            "this is a private pid namespace (a container), and the legacy programs, for kernels before 5.10 "
            "or without type information, know the host's process ids only: run in the host's pid namespace, "
            "for instance with `docker run --pid=host`",
            feature="private pid namespaces with the legacy programs",
            needs="Linux 5.10 with CONFIG_DEBUG_INFO_BTF, or the initial pid namespace",
        )
    sizes = dict(max_entries or {})
    if has_walker and unwinder != CHAIN:
        spec, unused = _walker_only(spec, off_cpu=off_cpu is not None)
        cpus = load_library().lib.libbpf_num_possible_cpus()
        # The program for switches shares nothing: it has records and caches behind those of the clock's.
        values["walker_config"] = WalkerConfig(
            max_frames=max_frames,
            off_cpu_slot=cpus,
            off_cpu_shortest=off_cpu.shortest_ns if off_cpu is not None else 0,
        )
        sizes = {
            **dict.fromkeys(_PER_CPU, 2 * cpus if off_cpu is not None else cpus),
            **(_OFF_CPU if off_cpu is not None else {}),
            **{name: n for name, n in sizes.items() if name not in unused},
        }
    elif has_walker:
        unused = set(_WALKERS)
        sizes = {name: n for name, n in sizes.items() if name not in unused}
    else:
        from rubyunwind.profiler.task_layout import find_task_layout  # old kernels only

        values["system_config"], values["task_offsets"] = find_task_layout(spec)
        unused = {ANALYSIS_MAP}
        sizes = {name: n for name, n in sizes.items() if name in spec.maps}
        spec = _with_long_programs(spec)
    collection = spec.load(max_entries=sizes, without_maps=unused)
    try:
        for name, value in values.items():
            collection.maps[name][0] = bytes(value)
    except BaseException:
        collection.close()
        raise
    return collection


def entry_of(collection: Collection) -> Program:
    """Return the program that takes a sample."""
    return next(collection.programs[name] for name in _ENTRIES if name in collection.programs)


def off_cpu_of(collection: Collection) -> Program:
    """Return the program for switches, of a collection that was loaded with it."""
    names = (OFF_CPU_LOOP_ENTRY, OFF_CPU_ENTRY)
    return next(collection.programs[name] for name in names if name in collection.programs)


def _walker_only(spec: CollectionSpec, *, off_cpu: bool) -> tuple[CollectionSpec, set[str]]:
    """Return the spec with the walker in place of the chain, and the maps that only the chain reads."""
    loop = _has("helper loop")
    entries = {WALKER_LOOP_ENTRY if loop else WALKER_ENTRY}
    if off_cpu:
        entries |= {OFF_CPU_LOOP_ENTRY if loop else OFF_CPU_ENTRY, OFF_CPU_EXIT}
    programs = {
        name: replace(
            program, load=name in entries or (program.load and program.type != ProgramType.PERF_EVENT)
        )
        for name, program in spec.programs.items()
    }
    return replace(spec, programs=programs), {name for name in spec.maps if name.startswith(_CHAINS)}


def _with_long_programs(spec: CollectionSpec) -> CollectionSpec:
    """Let each program NAME_long take the place of NAME where the kernel loads it: it walks more a run."""
    if not _has(LONG_PROGRAMS):
        return spec
    programs = dict(spec.programs)
    for name, program in spec.programs.items():
        if name.endswith(LONG_SUFFIX):
            short = name.removesuffix(LONG_SUFFIX)
            programs[name] = replace(program, load=True)
            programs[short] = replace(programs[short], load=False)
    return replace(spec, programs=programs)


def _has(feature: str) -> bool:
    return any(found.name == feature and found.answer == YES for found in features())
