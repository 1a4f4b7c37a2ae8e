# SPDX-License-Identifier: Apache-2.0
"""RubyVMInfo: what the BPF side must know of the virtual machine beside RubyProcInfo.

With it a garbage collection that is in progress becomes a frame, and before Ruby 3.0, where one global
pointer names the context that holds the lock, a thread that waits for it is told from the one that has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.abi import RubyVMInfo
from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rubyunwind.elf.file import ElfFile
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout
    from rubyunwind.ruby.uncover import CollectorPlace

__all__ = ["GC_PHASES", "make_vm_info", "pthread_offset"]

# enum gc_mode, gc.c (3.4: gc/default/default.c). The first is that of a collection that only begins.
GC_PHASES = ("starting", "marking", "sweeping", "compacting")

# Bit of during_gc in those flags, for which the kernel side looks.
_DURING_GC = 5

# glibc's nptl_db describes struct pthread to debuggers: the distance from its start, which is what
# pthread_self returns, to the thread pointer behind it (TLS_TCB_AT_TP is not so on x86_64: there it is 0).
_PTHREAD_SIZE = "_thread_db_sizeof_pthread"
_LIBC_NAMES = ("libc.so.6", "libc-2.", "libpthread.so.0", "libpthread-2.")


def make_vm_info(
    memory: Memory,
    layout: Layout,
    vm_pointer: int,
    context_pointer: int,
    from_thread_pointer: int | None,
    collector: CollectorPlace | None = None,
) -> RubyVMInfo:
    """Return the value of ruby_vms for a process.

    `vm_pointer` is where ruby_current_vm_ptr lies, `context_pointer` the variable with the running execution
    context of a Ruby before 3.0; 0: not known. `from_thread_pointer` is what pthread_offset returns.
    Where the code itself tells of the collector, that is believed rather than the layout.
    """
    objspace, flags = layout.vm_objspace, layout.objspace_flags
    if collector is not None and collector.bit == _DURING_GC:
        vm_pointer, objspace, flags = collector.vm_pointer, collector.objspace, collector.flags
    checked = layout.thread_pthread is not None and from_thread_pointer is not None
    return RubyVMInfo(
        gc_flags=_gc_flags(memory, layout, vm_pointer, context_pointer, objspace, flags),
        pthread_offset=from_thread_pointer or 0,
        ec_thread=layout.ec_thread_ptr,
        thread_pthread=(layout.thread_pthread or 0) if checked else 0,
        thread_ractor=layout.thread_ractor or 0,
    )


def _gc_flags(
    memory: Memory, layout: Layout, vm_pointer: int, context_pointer: int, objspace: int, flags: int | None
) -> int:
    """Return the address of the flags in rb_objspace, which stays the same; 0 if it cannot be told."""
    if flags is None:
        return 0
    try:
        vm = memory.u64(vm_pointer) if vm_pointer else 0
        if not vm and context_pointer and layout.ractor_running_ec is None:
            context = memory.u64(context_pointer)
            thread = memory.u64(context + layout.ec_thread_ptr) if context else 0
            vm = memory.u64(thread + layout.thread_vm) if thread else 0
        space = memory.u64(vm + objspace) if vm else 0
        if not space or space & 7:
            return 0
        memory.u32(space + flags)
        return space + flags
    except MemoryReadError:
        return 0


def pthread_offset(
    aarch64: bool, mappings: Iterable[Mapping], open_elf: Callable[[Mapping], ElfFile]
) -> int | None:
    """Return what pthread_self() is relative to the thread pointer, in bytes; None if that is not known."""
    if not aarch64:
        return 0  # psABI: the thread pointer is the address of the TCB, with which struct pthread begins
    from rubyunwind.elf.symbols import SymbolTable

    for mapping in mappings:
        if not mapping.path.rpartition("/")[2].startswith(_LIBC_NAMES):
            continue
        try:
            with open_elf(mapping) as elf:
                symbol = SymbolTable(elf).find(_PTHREAD_SIZE)
                if symbol is not None:
                    return -int.from_bytes(elf.read_virtual(symbol.value, 4), "little")
        except (RubyUnwindError, OSError):
            continue
    return None
