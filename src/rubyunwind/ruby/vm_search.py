# SPDX-License-Identifier: Apache-2.0
"""Finding the virtual machine of a Ruby that hides its symbols: by what points to what.

From 3.3 on the variable ruby_current_vm_ptr is no exported symbol, and stripped binaries have no other.
But the VM, its main ractor and its main thread point to each other, which nothing else does by accident.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rubyunwind.process.memory import MemoryReadError

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["MAX_SEARCH", "find_vm_pointer", "is_vm"]

MAX_SEARCH = 4 << 20
"""Bytes of data that are searched; libruby has some 100 KiB."""

_CHUNK = 4096
_HIGHEST = 1 << 56  # above any user address


def find_vm_pointer(memory: Memory, layout: Layout, start: int, length: int) -> int:
    """Return the address of ruby_current_vm_ptr in the data [start, start + length), or 0.

    Needs a Ruby with ractors (3.0). Pages that cannot be read are passed over.
    """
    if layout.vm_main_ractor is None:
        return 0
    seen: set[int] = set()
    begin, end = (start + 7) & ~7, start + min(length, MAX_SEARCH)
    for at in range(begin, end, _CHUNK):
        try:
            chunk = memory.read(at, min(_CHUNK, end - at) & ~7)
        except MemoryReadError:
            continue
        for index, (value,) in enumerate(struct.iter_unpack("<Q", chunk)):
            if value & 7 or not 4096 <= value < _HIGHEST or value in seen:
                continue
            seen.add(value)
            if is_vm(memory, layout, value):
                return at + 8 * index
    return 0


def is_vm(memory: Memory, layout: Layout, vm: int) -> bool:
    """Whether a VM, its main ractor and its main thread, which point to each other, begin at `vm`."""
    if layout.vm_main_ractor is None:
        return False
    try:
        ractor, thread = memory.u64(vm + layout.vm_main_ractor), memory.u64(vm + layout.vm_main_thread)
        if ractor & 7 or thread & 7 or min(ractor, thread) < 4096 or max(ractor, thread) >= _HIGHEST:
            return False
        # struct rb_thread_struct has `ractor` and `vm` side by side (vm_core.h, 3.0 to 4.0).
        if memory.u64(thread + layout.thread_vm) != vm or memory.u64(thread + layout.thread_vm - 8) != ractor:
            return False
        context = memory.u64(thread + layout.thread_ec)
        return memory.u64(context + layout.ec_thread_ptr) == thread
    except MemoryReadError:
        return False
