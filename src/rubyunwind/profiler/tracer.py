# SPDX-License-Identifier: Apache-2.0
"""Loads the tracer in the flavour that this kernel takes, and tells it what it has to know of the machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rubyunwind.bpf.features import FLAVOURS, LEGACY, LONG_PROGRAMS, YES, features
from rubyunwind.bpf.flavour import choose_flavour
from rubyunwind.bpf.spec import LONG_SUFFIX, load_collection_spec
from rubyunwind.errors import NotSupported
from rubyunwind.profiler.system import ANALYSIS_MAP, ANALYSIS_PROGRAM, system_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.abi import Struct
    from rubyunwind.bpf.collection import Collection
    from rubyunwind.bpf.spec import CollectionSpec

__all__ = ["load_tracer", "tracer_spec"]


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


def load_tracer(spec: CollectionSpec, *, max_entries: Mapping[str, int] | None = None) -> Collection:
    """Load a tracer's object and fill `system_config`; the caller owns the collection.

    Raises BpfError, and NotSupported where rights are missing or the kernel's layout is not found.
    """
    values: dict[str, Struct] = {"system_config": system_config()}
    unused: set[str] = set()
    if ANALYSIS_PROGRAM in spec.programs:
        from rubyunwind.profiler.task_layout import find_task_layout  # old kernels only

        values["system_config"], values["task_offsets"] = find_task_layout(spec)
        unused = {ANALYSIS_MAP}
        spec = _with_long_programs(spec)
    collection = spec.load(max_entries=max_entries, without_maps=unused)
    try:
        for name, value in values.items():
            collection.maps[name][0] = bytes(value)
    except BaseException:
        collection.close()
        raise
    return collection


def _with_long_programs(spec: CollectionSpec) -> CollectionSpec:
    """Let each program NAME_long take the place of NAME where the kernel loads it: it walks more a run."""
    if {feature.name: feature.answer for feature in features()}[LONG_PROGRAMS] != YES:
        return spec
    programs = dict(spec.programs)
    for name, program in spec.programs.items():
        if name.endswith(LONG_SUFFIX):
            short = name.removesuffix(LONG_SUFFIX)
            programs[name] = replace(program, load=True)
            programs[short] = replace(programs[short], load=False)
    return replace(spec, programs=programs)
