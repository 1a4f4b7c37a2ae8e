# SPDX-License-Identifier: Apache-2.0
"""A Ruby stack read while its thread runs: believed only if it held still for the moment of a copy."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.abi import ErrorCode, FrameMarker
from rubyunwind.bpf.hosted import HostTask

if TYPE_CHECKING:
    from rubyunwind.abi import RubyProcInfo, RubyVMInfo
    from rubyunwind.bpf.hosted import HostedCollection, HostMemory

__all__ = ["ContextReader"]

# Copies until one is good. A method that does nothing but call itself takes a few dozen; each takes some
# microseconds.
_ATTEMPTS = 200
# struct Trace up to its frames, and struct Frame; types.h.
_HEAD, _FRAME = 80, struct.Struct("<3Q")


class ContextReader:
    """Walks execution contexts of process `pid`, which is not stopped.

    `collection` walks and `memory` is the process's; neither is owned. `info` and `vm` are put into the
    collection's maps, until `forget`.
    """

    def __init__(
        self,
        collection: HostedCollection,
        memory: HostMemory,
        info: RubyProcInfo,
        pid: int,
        vm: RubyVMInfo | None = None,
    ) -> None:
        self._collection = collection
        self._memory = memory
        self._pid = pid
        self._key = pid.to_bytes(4, "little")
        collection.maps["ruby_procs"][self._key] = bytes(info)
        if vm is not None:
            collection.maps["ruby_vms"][self._key] = bytes(vm)

    def forget(self) -> None:
        """Take the process out of the collection's maps."""
        for name in ("ruby_procs", "ruby_vms"):
            self._collection.maps[name].pop(self._key, None)

    def read(self, context: int, tid: int, comm: str, ktime: int) -> bytes | None:
        """Return the trace record of a context, None if it changed all the time or makes no sense.

        `tid` and `comm` are those of the thread, `ktime` is ns of the monotonic clock. A record may say that
        it was cut by the limit; other errors come of memory that changes, and give None.
        """
        task = HostTask(self._pid, tid, comm=comm, ktime=ktime)
        record = self._collection.run_steady(context, task, self._memory, _ATTEMPTS)
        if record is None or len(record) < _HEAD + _FRAME.size:
            return None
        _, error, kind = _FRAME.unpack_from(record, len(record) - _FRAME.size)
        if kind & 0xFF == FrameMarker.ABORT and error != ErrorCode.STACK_LENGTH_EXCEEDED:
            return None
        return record
