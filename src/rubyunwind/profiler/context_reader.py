# SPDX-License-Identifier: Apache-2.0
"""A Ruby stack read while its thread runs: by the unwinders' C code, and believed only if it held still.

Control frames are an array, the newest lowest. Whatever Ruby calls or returns from changes either how many
there are or the pc of a caller. So the frames are read before and after the walk: if they are the same, and
what the walk saw is what they say, it saw one stack and no mixture of two.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.abi import ErrorCode, FrameMarker
from rubyunwind.bpf.hosted import HostTask
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.stack_walk import MAX_STACK_WORDS

if TYPE_CHECKING:
    from rubyunwind.abi import RubyProcInfo
    from rubyunwind.bpf.hosted import HostedCollection, HostMemory
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["ContextReader"]

# Control frames that are read beside a walk: as many as fill a trace, and some that Ruby does not show.
_MOST_FRAMES = 192
# Where struct Trace has its frames, and struct Frame's three words; types.h.
_FRAMES = 80
_METHOD_ENTRY = (1 << 48) - 1


class ContextReader:
    """Walks execution contexts of one process that is not stopped.

    `memory` and `host_memory` are the process's, `collection` and `host_memory` do the walk; nothing is owned.
    """

    def __init__(
        self,
        collection: HostedCollection,
        host_memory: HostMemory,
        memory: Memory,
        layout: Layout,
        info: RubyProcInfo,
        pid: int,
    ) -> None:
        self._collection = collection
        self._host_memory = host_memory
        self._memory = memory
        self._layout = layout
        collection.maps["ruby_procs"][pid.to_bytes(4, "little")] = bytes(info)
        self._pid = pid
        fields = (layout.ec_vm_stack, layout.ec_vm_stack_size, layout.ec_cfp)
        self._first = min(fields)
        self._length = max(fields) + 8 - self._first
        self._words = layout.cfp_size // 8
        self._pc, self._iseq, self._ep = (
            field // 8 for field in (layout.cfp_pc, layout.cfp_iseq, layout.cfp_ep)
        )

    def read(self, context: int, tid: int, comm: str, ktime: int, *, strict: bool = True) -> bytes | None:
        """Return the trace record of a context, None if it changed meanwhile or makes no sense.

        `tid` and `comm` are those of the thread, `ktime` is ns of the monotonic clock. A record may say that
        it was cut by the limit; other errors come of memory that changes, and give None. So do, if `strict`,
        frames whose pc is no place in their code: that may be a torn read, or code that was compiled (YJIT).
        """
        try:
            head = self._memory.read(context + self._first, self._length)
            newest, count = self._extent(head)
            if count <= 0:
                return None
            length = count * self._layout.cfp_size
            before = self._memory.read(newest, length)
            task = HostTask(self._pid, tid, comm=comm, ktime=ktime)
            record = self._collection.run_context(context, task, self._host_memory)
            if record is None:
                return None
            after = self._memory.read(newest, length)
            # What may change in the leaf (pc, sp) is not compared, so look at what it runs.
            leaf_runs = self._leaf_runs(after)
            if self._memory.read(context + self._first, self._length) != head:
                return None
        except MemoryReadError:
            return None
        return record if self._agree(before, after, leaf_runs, record, strict) else None

    def _extent(self, head: bytes) -> tuple[int, int]:
        """Return the newest control frame and how many there are to read; 0 for numbers that contradict."""
        layout = self._layout
        stack, words, newest = (
            struct.unpack_from("<Q", head, field - self._first)[0]
            for field in (layout.ec_vm_stack, layout.ec_vm_stack_size, layout.ec_cfp)
        )
        end = stack + 8 * words
        count, rest = divmod(end - newest, layout.cfp_size)
        if rest or words > MAX_STACK_WORDS or not stack <= newest < end:
            return 0, 0
        return newest, min(count - 1, _MOST_FRAMES)  # the oldest is a dummy

    def _leaf_runs(self, frames: bytes) -> int:
        """Return what the newest control frame runs: an iseq body, a C function's method entry, or 0."""
        leaf = struct.unpack_from(f"<{self._words}Q", frames)
        if leaf[self._iseq]:
            return self._memory.u64(leaf[self._iseq] + self._layout.iseq_body) if leaf[self._pc] else 0
        return self._memory.u64(leaf[self._ep] - 16) & _METHOD_ENTRY

    def _agree(self, before: bytes, after: bytes, leaf_runs: int, record: bytes, strict: bool) -> bool:
        """Whether the frames before and after the walk are the same, and those that the walk saw."""
        size = self._layout.cfp_size
        words = struct.unpack(f"<{len(before) // 8}Q", before)
        leaf = struct.unpack_from(f"<{self._words}Q", after)
        if (
            before[size:] != after[size:]
            or words[self._iseq] != leaf[self._iseq]
            or words[self._ep] != leaf[self._ep]
        ):
            return False
        seen = struct.unpack_from(f"<{(len(record) - _FRAMES) // 8}Q", record, _FRAMES)
        kinds = [word & 0xFF for word in seen[2::3]]
        if not kinds or (leaf_runs and seen[0] != leaf_runs):
            return False
        cut = kinds[-1] == FrameMarker.ABORT
        if cut and seen[-2] != ErrorCode.STACK_LENGTH_EXCEEDED:
            return False
        pcs, iseqs = words[self._pc :: self._words], words[self._iseq :: self._words]
        expected = [pc for pc, iseq in zip(pcs, iseqs, strict=True) if pc and iseq]
        walked = [pc for pc, kind in zip(seen[1::3], kinds, strict=True) if kind == FrameMarker.RUBY]
        if pcs[0] and iseqs[0] and walked and walked[0]:  # the leaf's pc runs on
            expected[0] = walked[0]
        if 0 in walked:
            # These have no pc that could be compared; the others come in the same order.
            rest = iter(expected)
            return not strict and all(pc in rest for pc in walked if pc)
        if cut or len(pcs) == _MOST_FRAMES:
            shorter = min(len(expected), len(walked))
            expected, walked = expected[:shorter], walked[:shorter]
        return expected == walked
