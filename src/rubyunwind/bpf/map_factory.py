# SPDX-License-Identifier: Apache-2.0
"""Makes maps: the right class for a descriptor, and new maps that stand alone (inner maps, templates)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.compound_maps import MapOfMaps, PerCPUMap, ProgArray, StackTraceMap
from rubyunwind.bpf.kinds import MapFlag, MapType
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.refusals import check

if TYPE_CHECKING:
    from rubyunwind.bpf.spec import MapSpec

__all__ = ["create_array", "create_map", "wrap_map"]

_CLASSES: dict[int, type[Map]] = {
    MapType.PROG_ARRAY: ProgArray,
    MapType.PERCPU_ARRAY: PerCPUMap,
    MapType.PERCPU_HASH: PerCPUMap,
    MapType.LRU_PERCPU_HASH: PerCPUMap,
    MapType.ARRAY_OF_MAPS: MapOfMaps,
    MapType.HASH_OF_MAPS: MapOfMaps,
    MapType.STACK_TRACE: StackTraceMap,
}


def wrap_map(lib: Any, fd: int, *, template: MapSpec | None = None, **shape: Any) -> Map:
    """Make the Map of the right class for descriptor `fd`; `shape` is what Map takes.

    `template` is what the kernel compares the inner maps of a map of maps with.
    """
    made = _CLASSES.get(shape["kind"], Map)(lib, fd, **shape)
    if isinstance(made, MapOfMaps):
        made.template = template
    return made


def create_map(
    kind: int, *, key_size: int, value_size: int, max_entries: int, flags: int = 0, name: str = ""
) -> Map:
    """Create a map that owns its descriptor. `name` may have 15 bytes of [A-Za-z0-9_.]."""
    lib = load_library().lib
    opts = ffi.new("struct bpf_map_create_opts *")
    opts.sz = ffi.sizeof("struct bpf_map_create_opts")
    opts.map_flags = flags
    label = name.encode() if name else ffi.NULL
    result = lib.bpf_map_create(int(kind), label, key_size, value_size, max_entries, opts)
    detail = (
        f"type {int(kind)}, key {key_size}, value {value_size}, max_entries {max_entries}, flags {flags:#x}"
    )
    fd = check(result, f"create map {name}".rstrip(), detail)
    resource = Resource(f"map {name or fd}", lambda: os.close(fd))
    made = wrap_map(
        lib,
        fd,
        name=name or f"fd {fd}",
        kind=int(kind),
        key_size=key_size,
        value_size=value_size,
        max_entries=max_entries,
        flags=flags,
        resource=resource,
    )
    resource.guard(made)
    return made


def create_array(max_entries: int, value_size: int, flags: int = MapFlag.INNER_MAP, *, name: str = "") -> Map:
    """Create an ARRAY that owns its descriptor, by default one whose size may differ from its template's."""
    return create_map(
        MapType.ARRAY, key_size=4, value_size=value_size, max_entries=max_entries, flags=flags, name=name
    )
