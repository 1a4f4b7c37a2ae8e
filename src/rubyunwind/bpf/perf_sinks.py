# SPDX-License-Identifier: Apache-2.0
"""Where libbpf delivers the records of a perf buffer: kept whole, grouped in C, or handed to callbacks.

libbpf calls a sink's `function` with its `context`. After each poll, outside of C, `finish` raises what went
wrong inside.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any, Protocol

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.trace_batch import TraceBatch, read_batch

__all__ = ["PERF_RECORD_LOST", "PERF_RECORD_SAMPLE", "CallbackSink", "RecordSink", "Sink", "TraceSink"]

# struct drain_record of _c/drain.cdef: payload length and CPU; the payload follows, padded to 8 bytes.
_RECORD = struct.Struct("=II")
_DRAIN_SIZE = 1 << 18
# include/uapi/linux/perf_event.h: record types; struct perf_event_header is 8 bytes.
PERF_RECORD_LOST, PERF_RECORD_SAMPLE = 2, 9
_HEADER = 8
CONTINUE = -2  # LIBBPF_PERF_EVENT_CONT


class Sink(Protocol):
    """What a PerfBuffer reads into. `total`, `lost` and `malformed` count records since it was made."""

    function: Any
    context: Any

    @property
    def total(self) -> int:
        """Records taken."""

    @property
    def lost(self) -> int:
        """Records that the kernel reported as lost."""

    @property
    def malformed(self) -> int:
        """Records that were left out because their sizes contradict each other."""

    def finish(self) -> None:
        """Raise what went wrong since the last call."""

    def free(self) -> None:
        """Let go of memory. The sink is not used any more."""


class RecordSink:
    """Keeps whole records: the drain of _c/drain.c: no Python runs per record, and the GIL stays free."""

    def __init__(self) -> None:
        from rubyunwind._native import ffi as native
        from rubyunwind._native import lib

        self._native, self._lib = native, lib
        self.drain = lib.drain_new(_DRAIN_SIZE)
        if self.drain == native.NULL:
            raise MemoryError(f"{_DRAIN_SIZE} bytes for perf records")
        # Two cffi modules do not share types: addresses cross as integers.
        self.function = _cast(native, "perf_buffer_event_fn", native.addressof(lib, "drain_event"))
        self.context = _cast(native, "void *", self.drain)

    @property
    def lost(self) -> int:
        """See Sink."""
        return int(self.drain.counts.lost)

    @property
    def malformed(self) -> int:
        """See Sink."""
        return int(self.drain.counts.malformed)

    @property
    def total(self) -> int:
        """See Sink."""
        return int(self.drain.counts.records)

    def finish(self) -> None:
        """See Sink."""
        if self.drain.error:
            raise MemoryError("perf records could not be taken: records() must be called more often")

    def take(self) -> list[tuple[int, memoryview]]:
        """Return and forget (cpu, payload) of the records kept so far."""
        # One copy, so that what is returned stays valid while the drain is filled anew.
        block = memoryview(bytes(self._native.buffer(self.drain.data, self.drain.used)))
        self._lib.drain_reset(self.drain)
        found: list[tuple[int, memoryview]] = []
        at = 0
        while at < len(block):
            length, cpu = _RECORD.unpack_from(block, at)
            at += _RECORD.size
            found.append((cpu, block[at : at + length]))
            at += (length + 7) & ~7
        return found

    def free(self) -> None:
        """See Sink."""
        self._lib.drain_free(self.drain)
        self.drain = self._native.NULL


class TraceSink:
    """Groups traces: _c/group.c keeps equal stacks once. Records that are no traces are malformed."""

    def __init__(self) -> None:
        from rubyunwind._native import ffi as native
        from rubyunwind._native import lib

        self._native, self._lib = native, lib
        self.group = lib.group_new(int.from_bytes(os.urandom(8), "little"))
        if self.group == native.NULL:
            raise MemoryError("to group traces")
        self.function = _cast(native, "perf_buffer_event_fn", native.addressof(lib, "group_event"))
        self.context = _cast(native, "void *", self.group)

    @property
    def lost(self) -> int:
        """See Sink."""
        return int(self.group.counts.lost)

    @property
    def malformed(self) -> int:
        """See Sink."""
        return int(self.group.counts.malformed)

    @property
    def total(self) -> int:
        """See Sink."""
        return int(self.group.counts.records)

    @property
    def waiting(self) -> int:
        """Traces taken since the last `take`."""
        return int(self.group.samples)

    def finish(self) -> None:
        """See Sink."""
        if self.group.error:
            raise MemoryError("traces could not be taken: traces() must be called more often")

    def take(self) -> TraceBatch:
        """Return the traces taken since the last call, and forget them."""
        batch = read_batch(self._native, self.group)
        self._lib.group_clear(self.group)
        return batch

    def free(self) -> None:
        """See Sink."""
        self._lib.group_free(self.group)
        self.group = self._native.NULL


class CallbackSink:
    """Copies records and losses in order, and hands them on once libbpf is out of the way."""

    def __init__(
        self,
        on_record: Callable[[int, bytes], object] | None,
        on_lost: Callable[[int, int], object] | None,
    ) -> None:
        self._on_record, self._on_lost = on_record, on_lost
        self._waiting: list[tuple[int, bytes | int]] = []
        self._kept: list[tuple[int, memoryview]] = []
        self.lost = self.malformed = self.total = 0
        self.context = ffi.NULL
        self.function = ffi.callback(
            "int(void *, int, struct perf_event_header *)",
            self._receive,
            error=CONTINUE,
            onerror=self._failed,
        )
        self._error: BaseException | None = None

    def _receive(self, context: Any, cpu: int, event: Any) -> int:
        size = event.size
        body = bytes(ffi.buffer(ffi.cast("char *", event), size))[_HEADER:]
        if event.type == PERF_RECORD_LOST and len(body) >= 16:
            lost = int(struct.unpack_from("=Q", body, 8)[0])  # u64 id, u64 lost
            self.lost += lost
            self._waiting.append((cpu, lost))
        elif event.type == PERF_RECORD_SAMPLE:
            length = struct.unpack_from("=I", body)[0] if len(body) >= 4 else len(body)
            if length > len(body) - 4:
                self.malformed += 1
            else:
                self.total += 1
                self._waiting.append((cpu, body[4 : 4 + length]))
        return CONTINUE

    def _failed(self, kind: Any, value: BaseException, trace: Any) -> int:
        self._error = value
        return CONTINUE

    def finish(self) -> None:
        """See Sink."""
        waiting, self._waiting = self._waiting, []
        for cpu, item in waiting:
            if isinstance(item, int):
                if self._on_lost is not None:
                    self._on_lost(cpu, item)
            elif self._on_record is not None:
                self._on_record(cpu, item)
            else:
                self._kept.append((cpu, memoryview(item)))
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def take(self) -> list[tuple[int, memoryview]]:
        """Return and forget (cpu, payload) of the records kept so far."""
        kept, self._kept = self._kept, []
        return kept

    def free(self) -> None:
        """See Sink."""
        self._waiting.clear()


def _cast(native: Any, kind: str, pointer: Any) -> Any:
    return ffi.cast(kind, int(native.cast("uintptr_t", pointer)))
