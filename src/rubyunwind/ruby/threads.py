# SPDX-License-Identifier: Apache-2.0
"""The threads that Ruby itself knows of: of the main ractor, or before 3.0 of the VM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rubyunwind.errors import RubyUnwindError
from rubyunwind.ruby.strings import read_string

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.detect import RubyRuntime
    from rubyunwind.ruby.layouts import Layout

__all__ = ["RubyThread", "context_tid", "ruby_threads"]

_MOST = 100_000
_VM_POINTER = "ruby_current_vm_ptr"
_NIL = (0, 4, 8)  # Qfalse, and Qnil before and since 3.2


@dataclass(frozen=True, slots=True)
class RubyThread:
    """A thread as Ruby keeps it. `tid` is the kernel's id, 0 where this version does not store it."""

    context: int
    tid: int
    name: str


def ruby_threads(memory: Memory, runtime: RubyRuntime) -> list[RubyThread]:
    """Return the threads in the order of their start, those that wait included.

    The process may run meanwhile: the list is bounded, and ends at what cannot be read. On aarch64, where
    the list's place is not known, it is empty, as it is for a binary that hides the VM.
    """
    layout = runtime.layout
    if runtime.image.aarch64:
        return []
    found: list[RubyThread] = []
    try:
        owner = memory.u64(runtime.image.address(_VM_POINTER)) if runtime.image.address(_VM_POINTER) else 0
        if owner and layout.vm_main_ractor is not None:
            owner = memory.u64(owner + layout.vm_main_ractor)
        if not owner:
            return []
        head = owner + layout.threads
        thread = memory.u64(head)
        seen: set[int] = set()
        while thread != head and thread not in seen and len(found) < _MOST:
            seen.add(thread)
            found.append(_thread(memory, runtime, thread))
            thread = memory.u64(thread)
    except RubyUnwindError:
        pass
    return found


def _thread(memory: Memory, runtime: RubyRuntime, thread: int) -> RubyThread:
    layout = runtime.layout
    tid = _native_id(memory, layout, thread)
    name = ""
    value = memory.u64(thread + layout.thread_name)
    if value not in _NIL:
        try:
            name = read_string(memory, layout, value)
        except RubyUnwindError:
            name = ""
    return RubyThread(memory.u64(thread + layout.thread_ec), tid, name)


def context_tid(memory: Memory, layout: Layout, context: int) -> int:
    """Return the kernel's id of the thread that runs `context`; 0 where that is not known.

    Raises MemoryReadError.
    """
    thread = memory.u64(context + layout.ec_thread_ptr)
    return _native_id(memory, layout, thread) if thread else 0


def _native_id(memory: Memory, layout: Layout, thread: int) -> int:
    if layout.thread_tid is None:
        return 0
    holder = memory.u64(thread + layout.thread_native) if layout.thread_native is not None else thread
    return memory.u32(holder + layout.thread_tid) if holder else 0  # none: not on a native thread now
