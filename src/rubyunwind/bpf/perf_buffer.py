# SPDX-License-Identifier: Apache-2.0
"""Reads a perf event array: one ring buffer a CPU, drained in C, or handed to callbacks.

Loss is counted, never hidden. The kernel reports lost records only ahead of the next one that fits, so
`lost` lags behind: the exact number of failed outputs is for the eBPF program to count.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.perf_event import PERF_COUNT_SW_BPF_OUTPUT, PERF_SAMPLE_RAW, PERF_TYPE_SOFTWARE
from rubyunwind.bpf.perf_sinks import CallbackSink, RecordSink, Sink, TraceSink
from rubyunwind.bpf.refusals import check, check_pointer

if TYPE_CHECKING:
    from rubyunwind.bpf.trace_batch import TraceBatch

__all__ = ["PerfBuffer"]

_WATERMARK_BIT = 14  # of perf_event_attr's flags, include/uapi/linux/perf_event.h


class PerfBuffer:
    """Ring buffers over a PERF_EVENT_ARRAY map. A context manager; the map's collection closes it too.

    `pages` (a power of two) is the size of each CPU's ring in pages. The reader is woken after
    `wakeup_events` records, or `wakeup_bytes` if given, and by the kernel at half a full ring in any case: a
    reader that batches consumes from a timer as well.

    Without callbacks records wait for `records()`, or with `grouped`, if they are traces, for `traces()`,
    which has equal stacks once. With `on_record(cpu, payload)` each is handed over, with
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
        grouped: bool = False,
    ) -> None:
        if grouped and (on_record or on_lost):
            raise ValueError("records are grouped or handed to callbacks, not both")
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
        if on_record or on_lost:
            sink: Sink = CallbackSink(on_record, on_lost)
        else:
            sink = TraceSink() if grouped else RecordSink()
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
        return self._sink.drain if isinstance(self._sink, RecordSink) else None

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
        if isinstance(self._sink, TraceSink):
            raise TypeError("this buffer groups its records: take them with traces()")
        assert isinstance(self._sink, RecordSink | CallbackSink)
        return self._sink.take()

    def traces(self) -> TraceBatch:
        """Return the traces taken since the last call, equal stacks once. Only with `grouped`."""
        self._resource.check()
        if not isinstance(self._sink, TraceSink):
            raise TypeError("this buffer does not group its records: make it with grouped=True")
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
