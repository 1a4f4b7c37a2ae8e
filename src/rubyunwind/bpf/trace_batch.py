# SPDX-License-Identifier: Apache-2.0
"""Traces that came together: equal stacks once, and of each trace what only it has, in columns."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import Any

from rubyunwind.abi import Trace, decode_trace

__all__ = ["TraceBatch", "TracedThread", "read_batch"]

# Key of group.threads, _c/group.cdef: u32 pid, u32 tid, char comm[16].
_THREAD = struct.Struct("=II16s")


@dataclass(frozen=True, slots=True)
class TracedThread:
    """A thread as a trace names it; its `comm` is decoded as in Trace."""

    pid: int
    tid: int
    comm: str


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """The columns are equally long, a trace each, in the order in which the rings were read.

    `stacks` are the distinct traces with `ktime`, `tid`, `comm` and `offtime` 0; `counts` says how many
    traces each stands for. `stack` and `thread` hold indices into `stacks` and `threads`. `ktime` is
    CLOCK_MONOTONIC in ns, `offtime` ns.
    """

    stacks: tuple[Trace, ...]
    counts: tuple[int, ...]
    threads: tuple[TracedThread, ...]
    ktime: array[int]
    offtime: array[int]
    stack: array[int]
    thread: array[int]
    cpu: array[int]

    def __len__(self) -> int:
        return len(self.ktime)


def read_batch(native: Any, group: Any) -> TraceBatch:
    """Copy what a `struct group` of _c/group.cdef holds; `native` is the ffi that made it."""
    stacks = bytes(native.buffer(group.stacks.bytes, group.stacks.bytes_used))
    threads = bytes(native.buffer(group.threads.bytes, group.threads.bytes_used))
    view = memoryview(stacks)
    found, counts = [], []
    for entry in native.unpack(group.stacks.strings, group.stacks.count):
        found.append(decode_trace(view[entry.at : entry.at + entry.size]))
        counts.append(entry.count)

    def column(kind: str, data: Any) -> array[int]:
        values = array(kind)
        values.frombytes(native.buffer(data, group.samples * values.itemsize) if group.samples else b"")
        return values

    return TraceBatch(
        stacks=tuple(found),
        counts=tuple(counts),
        threads=tuple(
            TracedThread(pid, tid, comm.partition(b"\0")[0].decode("utf-8", "surrogateescape"))
            for pid, tid, comm in _THREAD.iter_unpack(threads)
        ),
        ktime=column("Q", group.time),
        offtime=column("Q", group.offtime),
        stack=column("I", group.stack),
        thread=column("I", group.thread),
        cpu=column("I", group.cpu),
    )
