# SPDX-License-Identifier: Apache-2.0
"""Which thread of the operating system an execution context runs on, from memory alone.

A thread's own pointer to its context lies behind a register that only a stopped thread shows. But from 3.1
on Ruby keeps each native thread's id, in its thread or in a struct that this points to. Where exactly differs
from release to release and platform to platform, so it is found: at that place the main thread has the id of
the process, and every other thread one of the process's threads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.process.memory import MemoryReadError

if TYPE_CHECKING:
    from collections.abc import Container

    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["NativeThreads"]

# Bytes of struct rb_thread_struct that are searched (it has 440 to 600), and of struct rb_native_thread.
_THREAD = 384
_NATIVE_THREAD = 64
_HIGHEST = 1 << 56


class _Place(NamedTuple):
    """Where a thread's id is: at `offset` of its struct, or at `inner` of what `offset` points to."""

    offset: int
    inner: int | None


class NativeThreads:
    """Finds the native thread of execution contexts of one process. `main_tid` is that of its main thread."""

    def __init__(self, memory: Memory, layout: Layout, main_tid: int) -> None:
        self._memory = memory
        self._layout = layout
        self._main_tid = main_tid
        self._places: list[_Place] | None = None
        self._main = 0

    def tid(self, context: int, tids: Container[int]) -> int:
        """Return the id of the native thread that `context` runs on, 0 if that cannot be told.

        `tids` are the threads that the process has. Raises MemoryReadError.
        """
        memory, layout = self._memory, self._layout
        thread = memory.u64(context + layout.ec_thread_ptr)
        if self._places is None:
            vm = memory.u64(thread + layout.thread_vm)
            self._main = memory.u64(vm + layout.vm_main_thread)
            self._places = list(self._search(self._main))
        if thread == self._main:
            return self._main_tid
        # Every thread that is met rules out the places that had the number by accident.
        values = [(place, self._at(thread, place)) for place in self._places]
        fitting = [(place, tid) for place, tid in values if tid in tids and tid != self._main_tid]
        found = {tid for _, tid in fitting}
        if len(found) != 1:
            return 0
        self._places = [place for place, _ in fitting]
        return found.pop()

    def _search(self, thread: int) -> list[_Place]:
        """Return all places where the id of the main thread is."""
        found: list[_Place] = []
        block = self._memory.read(thread, _THREAD)
        found += [_Place(offset, None) for offset in _numbers(block, self._main_tid)]
        for offset in range(0, _THREAD, 8):
            (pointer,) = struct.unpack_from("<Q", block, offset)
            if pointer & 7 or not 4096 <= pointer < _HIGHEST or thread <= pointer < thread + _THREAD:
                continue
            try:
                behind = self._memory.read(pointer, _NATIVE_THREAD)
            except MemoryReadError:
                continue
            found += [_Place(offset, inner) for inner in _numbers(behind, self._main_tid)]
        return found

    def _at(self, thread: int, place: _Place) -> int:
        try:
            if place.inner is None:
                return self._memory.u32(thread + place.offset)
            return self._memory.u32(self._memory.u64(thread + place.offset) + place.inner)
        except MemoryReadError:
            return 0


def _numbers(block: bytes, number: int) -> list[int]:
    """Return the offsets at which an aligned int of `block` is `number`."""
    ints = struct.unpack(f"<{len(block) // 4}I", block)
    return [4 * index for index, value in enumerate(ints) if value == number]
