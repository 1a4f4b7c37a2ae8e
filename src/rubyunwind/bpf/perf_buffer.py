# SPDX-License-Identifier: Apache-2.0
"""Reads a perf event array: one ring buffer a CPU, drained in C, or handed to callbacks.

Loss is counted, never hidden. The kernel reports lost records only ahead of the next one that fits, so
`lost` lags behind: the exact number of failed outputs is for the eBPF program to count.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.perf_event import PERF_COUNT_SW_BPF_OUTPUT, PERF_SAMPLE_RAW, PERF_TYPE_SOFTWARE
from rubyunwind.bpf.refusals import check, check_pointer

__all__ = ["PerfBuffer"]

# struct drain_record of _c/drain.cdef: payload length and CPU; the payload follows, padded to 8 bytes.
_RECORD = struct.Struct("=II")
_DRAIN_SIZE = 1 << 18
# include/uapi/linux/perf_event.h: record types; struct perf_event_header is 8 bytes.
PERF_RECORD_LOST, PERF_RECORD_SAMPLE = 2, 9
_WATERMARK_BIT = 14
_HEADER = 8
CONTINUE = -2  # LIBBPF_PERF_EVENT_CONT


# A sink is where libbpf delivers: it calls `function` with `context`. After each poll, outside of C, `finish`
# raises what went wrong inside; `take` returns and forgets the records kept so far.


class _CSink:
    """The drain of _c/drain.c: no Python runs per record, and the GIL stays free."""

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
        return int(self.drain.lost)

    @property
    def malformed(self) -> int:
        return int(self.drain.malformed)

    @property
    def total(self) -> int:
        return int(self.drain.records)

    def finish(self) -> None:
        if self.drain.error:
            raise MemoryError("perf records could not be taken: records() must be called more often")

    def take(self) -> list[tuple[int, memoryview]]:
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
        self._lib.drain_free(self.drain)
        self.drain = self._native.NULL


class _CallbackSink:
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
        kept, self._kept = self._kept, []
        return kept

    def free(self) -> None:
        self._waiting.clear()


class PerfBuffer:
    """Ring buffers over a PERF_EVENT_ARRAY map. A context manager; the map's collection closes it too.

    `pages` (a power of two) is the size of each CPU's ring in pages. The reader is woken after
    `wakeup_events` records, or `wakeup_bytes` if given, and by the kernel at half a full ring in any case: a
    reader that batches consumes from a timer as well.

    Without callbacks records wait for `records()`. With `on_record(cpu, payload)` each is handed over, with
    `on_lost(cpu, count)` each loss, from inside poll and consume, in order; exceptions pass to their caller.
    Payloads are as the kernel pads them (to 8 bytes less 4): decoders must go by a length inside. One
    thread may read at a time. Raises BpfError if rings cannot be made.
    """

    def __init__(
        self,
        source: Map,
        pages: int = 64,
        *,
        wakeup_events: int = 1,
        wakeup_bytes: int | None = None,
        on_record: Callable[[int, bytes], object] | None = None,
        on_lost: Callable[[int, int], object] | None = None,
    ) -> None:
        if pages < 1 or pages & (pages - 1):
            raise ValueError(f"pages is {pages}, must be a power of two")
        if wakeup_events < 1 or (wakeup_bytes is not None and wakeup_bytes < 1):
            raise ValueError("wakeup_events and wakeup_bytes must be at least 1")
        lib = self._lib = source._lib
        self._source = source  # keeps the collection alive
        attr = ffi.new("struct perf_event_attr *")
        attr.size = ffi.sizeof("struct perf_event_attr")
        attr.type, attr.config, attr.sample_type = (
            PERF_TYPE_SOFTWARE,
            PERF_COUNT_SW_BPF_OUTPUT,
            PERF_SAMPLE_RAW,
        )
        attr.sample_period = 1
        attr.wakeup_events = wakeup_events
        if wakeup_bytes is not None:
            attr.flags, attr.wakeup_events = 1 << _WATERMARK_BIT, wakeup_bytes
        map_fd = source.fd
        sink: _CSink | _CallbackSink = _CallbackSink(on_record, on_lost) if on_record or on_lost else _CSink()
        self._sink = sink
        pointer = lib.perf_buffer__new_raw(map_fd, pages, attr, sink.function, sink.context, ffi.NULL)
        try:
            check_pointer(
                pointer,
                f"make perf buffers for map {source.name}",
                f"{pages} pages a CPU; without CAP_IPC_LOCK kernel.perf_event_mlock_kb limits them",
            )
        except BaseException:
            sink.free()
            raise
        self._pointer = pointer

        def release() -> None:
            # `sink` in here also keeps the callback alive for as long as libbpf may call it.
            lib.perf_buffer__free(pointer)
            sink.free()

        self._resource = Resource(
            f"perf buffer of map {source.name}", release, parent=source._resource, owner=self
        )
        self._final = (0, 0)

    @property
    def drain(self) -> Any:
        """The C drain (`struct drain *` of rubyunwind._native), for readers in C; None with callbacks."""
        self._resource.check()
        return self._sink.drain if isinstance(self._sink, _CSink) else None

    @property
    def lost(self) -> int:
        """Records the kernel has reported as lost, on all CPUs so far."""
        return self._final[0] if self._resource.closed else self._sink.lost

    @property
    def malformed(self) -> int:
        """Records whose sizes contradict each other; they are left out."""
        return self._final[1] if self._resource.closed else self._sink.malformed

    @property
    def rings(self) -> int:
        """Number of ring buffers: CPUs that were online when they were made."""
        self._resource.check()
        return int(self._lib.perf_buffer__buffer_cnt(self._pointer))

    def fileno(self) -> int:
        """Return an epoll descriptor, readable when a wake-up is due; borrowed, never close it."""
        self._resource.check()
        return int(self._lib.perf_buffer__epoll_fd(self._pointer))

    def poll(self, timeout_ms: int = 100) -> int:
        """Wait up to `timeout_ms` for a wake-up, take what is there, return the number of records.

        Python serves signals only between polls: keep the time short. A signal ends the wait early.
        """
        self._resource.check()
        return self._run(lambda: self._lib.perf_buffer__poll(self._pointer, timeout_ms))

    def consume(self) -> int:
        """Take what is in all rings without waiting, woken or not; return the number of records."""
        self._resource.check()
        return self._run(lambda: self._lib.perf_buffer__consume(self._pointer))

    def records(self) -> list[tuple[int, memoryview]]:
        """Return (cpu, payload) of the records taken since the last call; the views stay valid."""
        self._resource.check()
        return self._sink.take()

    def close(self) -> None:
        """Free the rings; `lost` and `malformed` stay. Closing twice is harmless."""
        if not self._resource.closed:
            self._final = (self._sink.lost, self._sink.malformed)
        self._resource.close()

    def __enter__(self) -> PerfBuffer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, read: Callable[[], int]) -> int:
        before = self._sink.total
        result = read()
        self._sink.finish()
        if result < 0 and result != -errno.EINTR:
            check(result, f"read perf buffers of map {self._source.name}")
        return self._sink.total - before


def _cast(native: Any, kind: str, pointer: Any) -> Any:
    return ffi.cast(kind, int(native.cast("uintptr_t", pointer)))
