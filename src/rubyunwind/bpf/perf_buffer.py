# SPDX-License-Identifier: Apache-2.0
"""Reads a perf event array: one ring buffer a CPU, drained in C, or handed to callbacks.

Loss is counted, never hidden. The kernel reports lost records only ahead of the next one that fits, so
`lost` lags behind: the exact number of failed outputs is for the eBPF program to count.
"""

from __future__ import annotations

import errno
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.maps import Map
from rubyunwind.bpf.perf_event import PERF_COUNT_SW_BPF_OUTPUT, PERF_SAMPLE_RAW, PERF_TYPE_SOFTWARE
from rubyunwind.bpf.perf_sinks import CallbackSink, RecordSink, Sink, TraceSink
from rubyunwind.bpf.refusals import check, check_pointer
from rubyunwind.errors import BpfError

if TYPE_CHECKING:
    from rubyunwind.bpf.trace_batch import TraceBatch

__all__ = ["PerfBuffer"]

# include/uapi/linux/perf_event.h: a bit of perf_event_attr's flags, read_format, and what read(2) gives then:
# the value of the event, and the ns for which it has been enabled.
_WATERMARK_BIT = 14
_TOTAL_TIME_ENABLED = 1 << 0
_READING = struct.Struct("=QQ")
# Tries to make the first rings while CPUs go offline.
_ATTEMPTS = 5


@dataclass(slots=True)
class _Ring:
    """The ring of a CPU: the descriptor of its event, which is libbpf's, and for how many ns that has been
    enabled at a time by the clock.
    """

    fd: int
    time: int
    enabled: int = 0


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

    There is a ring for each CPU that is online when it is made; `live`, `add` and `retire` are for those
    that come and go later.
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
        attr.sample_period, attr.read_format = 1, _TOTAL_TIME_ENABLED
        attr.wakeup_events = wakeup_events
        if wakeup_bytes is not None:
            attr.flags, attr.wakeup_events = 1 << _WATERMARK_BIT, wakeup_bytes
        self._attr, self._pages = attr, pages
        if on_record or on_lost:
            sink: Sink = CallbackSink(on_record, on_lost)
        else:
            sink = TraceSink() if grouped else RecordSink()
        self._sink = sink
        self._rings: dict[int, _Ring] = {}
        try:
            self._pointer = pointer = self._first_rings()
        except BaseException:
            sink.free()
            raise
        # libbpf makes rings and frees them, but adds none: who comes later has a perf_buffer of its own.
        self._late: dict[int, Any] = {}
        late = self._late

        def release() -> None:
            # `sink` in here also keeps the callback alive for as long as libbpf may call it.
            for one in (*late.values(), pointer):
                lib.perf_buffer__free(one)
            sink.free()

        self._resource = Resource(
            f"perf buffer of map {source.name}", release, parent=source._resource, owner=self
        )
        self._final = (0, 0)

    def _first_rings(self) -> Any:
        for attempt in range(_ATTEMPTS):
            cpus = [cpu for cpu in online_cpus() if cpu < self._source.max_entries]
            try:
                return self._make(cpus)
            except BpfError as error:
                if error.errno != errno.ENODEV or attempt == _ATTEMPTS - 1:  # one went offline meanwhile
                    raise
        raise AssertionError("unreachable")

    def _make(self, cpus: Sequence[int]) -> Any:
        """Make rings for CPUs and put them into the map, in place of those that were there."""
        options = ffi.new("struct perf_buffer_raw_opts *")
        numbers = ffi.new("int[]", list(cpus))
        options.sz = ffi.sizeof("struct perf_buffer_raw_opts")
        options.cpu_cnt, options.cpus, options.map_keys = len(cpus), numbers, numbers
        pointer = check_pointer(
            self._lib.perf_buffer__new_raw(
                self._source.fd, self._pages, self._attr, self._sink.function, self._sink.context, options
            ),
            f"make perf buffers for map {self._source.name}",
            f"{self._pages} pages a CPU; without CAP_IPC_LOCK kernel.perf_event_mlock_kb limits them",
        )
        for index, cpu in enumerate(cpus):
            fd = int(self._lib.perf_buffer__buffer_fd(pointer, index))
            self._rings[cpu] = _Ring(fd, time.monotonic_ns())
        return pointer

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs that have a ring which was not retired."""
        return frozenset(self._rings)

    def live(self) -> set[int]:
        """Return the CPUs whose rings take records.

        The kernel ends a ring's event when its CPU goes offline, and its clock stands still from then on. One
        that has missed half of the time since the last call has stopped; a CPU that went only just now is
        noticed by the next call.
        """
        self._resource.check()
        found = set()
        for cpu, ring in self._rings.items():
            # No more than what lies between the two readings: whatever keeps us, none counts as dead for it.
            passed = time.monotonic_ns() - ring.time
            reading = os.read(ring.fd, _READING.size)
            ring.time = time.monotonic_ns()
            # There is nothing to read of an event in an error state.
            enabled = _READING.unpack(reading)[1] if len(reading) == _READING.size else ring.enabled
            if enabled - ring.enabled >= passed // 2:
                found.add(cpu)
            ring.enabled = enabled
        return found

    def add(self, cpu: int) -> int:
        """Make a ring for a CPU that has come online; a former one of it must have been retired.

        Returns its epoll descriptor: `fileno` does not stand for it, nor does `poll` wait for it. Borrowed,
        until it is retired. Raises BpfError; ENODEV: it is offline.
        """
        self._resource.check()
        if cpu in self._rings:
            raise ValueError(f"CPU {cpu} has a ring")
        self._late[cpu] = self._make([cpu])
        return int(self._lib.perf_buffer__epoll_fd(self._late[cpu]))

    def retire(self, cpu: int) -> None:
        """Let go of the ring of a CPU that went offline; what is in it is taken first, as by `consume`."""
        self._resource.check()
        ring = self._rings.get(cpu)
        if ring is None:
            return
        late = self._late.get(cpu)
        self._run(lambda: self._lib.perf_buffer__consume(self._pointer if late is None else late))
        del self._rings[cpu]
        if late is not None:
            del self._late[cpu]
            self._lib.perf_buffer__free(late)
            return
        # It stays where it is until all are freed, but newer kernels report an event that has ended as ready,
        # for ever.
        with select.epoll.fromfd(os.dup(self.fileno())) as waiting:
            waiting.unregister(ring.fd)

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
        """Number of ring buffers: CPUs that have one."""
        self._resource.check()
        return len(self._rings)

    def fileno(self) -> int:
        """Return an epoll descriptor, readable when a wake-up is due; borrowed, never close it."""
        self._resource.check()
        return int(self._lib.perf_buffer__epoll_fd(self._pointer))

    def poll(self, timeout_ms: int = 100) -> int:
        """Wait up to `timeout_ms` for a wake-up, take what is there, return the number of records.

        Rings that were added later are not waited for, but taken with the others. Python serves signals only
        between polls: keep the time short. A signal ends the wait early.
        """
        self._resource.check()
        return self._run(lambda: self._take(self._lib.perf_buffer__poll(self._pointer, timeout_ms)))

    def consume(self) -> int:
        """Take what is in all rings without waiting, woken or not; return the number of records."""
        self._resource.check()
        return self._run(lambda: self._take(self._lib.perf_buffer__consume(self._pointer)))

    def _take(self, result: int) -> int:
        """Take what is in the rings that were added later; return the first error of libbpf, or what was."""
        for one in self._late.values():
            taken = int(self._lib.perf_buffer__consume(one))
            result = min(result, taken) if taken < 0 else result
        return result

    def records(self) -> list[tuple[int, memoryview]]:
        """Return (cpu, payload) of the records taken since the last call; the views stay valid."""
        self._resource.check()
        if isinstance(self._sink, TraceSink):
            raise TypeError("this buffer groups its records: take them with traces()")
        assert isinstance(self._sink, RecordSink | CallbackSink)
        return self._sink.take()

    @property
    def waiting(self) -> int:
        """How many traces were taken out of the rings and wait for `traces()`. Only with `grouped`."""
        return self._sink.waiting if isinstance(self._sink, TraceSink) else 0

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
