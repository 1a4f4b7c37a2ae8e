# SPDX-License-Identifier: Apache-2.0
"""Numbers of include/uapi/linux/bpf.h: map types, map flags and program types that are used here."""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = ["MapFlag", "MapType", "ProgramType"]


class MapType(IntEnum):
    """enum bpf_map_type."""

    UNSPEC = 0
    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERF_EVENT_ARRAY = 4
    PERCPU_HASH = 5
    PERCPU_ARRAY = 6
    STACK_TRACE = 7
    CGROUP_ARRAY = 8
    LRU_HASH = 9
    LRU_PERCPU_HASH = 10
    LPM_TRIE = 11
    ARRAY_OF_MAPS = 12
    HASH_OF_MAPS = 13
    QUEUE = 22
    STACK = 23
    TASK_STORAGE = 29
    RINGBUF = 27

    @classmethod
    def of(cls, number: int) -> int:
        """Return the member for `number`, or the number itself if it has none here."""
        try:
            return cls(number)
        except ValueError:
            return number


class MapFlag(IntFlag):
    """Flags of BPF_MAP_CREATE."""

    NO_PREALLOC = 0x1
    RDONLY_PROG = 0x80
    MMAPABLE = 0x400
    INNER_MAP = 0x1000


class ProgramType(IntEnum):
    """enum bpf_prog_type."""

    UNSPEC = 0
    KPROBE = 2
    TRACEPOINT = 5
    PERF_EVENT = 7
    RAW_TRACEPOINT = 17
