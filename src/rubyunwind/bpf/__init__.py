# SPDX-License-Identifier: Apache-2.0
"""eBPF without a compiler: objects parsed, loaded through libbpf, read through maps and perf buffers.

`load_collection_spec` parses on any machine. Names that need libbpf are imported when first used, so
parsing needs neither libbpf nor rights.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rubyunwind.bpf.spec import CollectionSpec, MapSpec, ProgramSpec, load_collection_spec

if TYPE_CHECKING:
    from rubyunwind.bpf.collection import Collection
    from rubyunwind.bpf.lifetime import LifetimeError
    from rubyunwind.bpf.map_factory import create_array, create_map
    from rubyunwind.bpf.maps import Map
    from rubyunwind.bpf.perf_buffer import PerfBuffer
    from rubyunwind.bpf.perf_event import PerfEvent, perf_event_open
    from rubyunwind.bpf.program import Link, Program

__all__ = [
    "Collection",
    "CollectionSpec",
    "LifetimeError",
    "Link",
    "Map",
    "MapSpec",
    "PerfBuffer",
    "PerfEvent",
    "Program",
    "ProgramSpec",
    "create_array",
    "create_map",
    "load_collection_spec",
    "perf_event_open",
]

_ROOMS = {
    "Collection": "collection",
    "LifetimeError": "lifetime",
    "Link": "program",
    "Map": "maps",
    "PerfBuffer": "perf_buffer",
    "PerfEvent": "perf_event",
    "Program": "program",
    "create_array": "map_factory",
    "create_map": "map_factory",
    "perf_event_open": "perf_event",
}


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{room}"), name)
