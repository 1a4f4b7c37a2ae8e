# SPDX-License-Identifier: Apache-2.0
"""Hidden variables in a process: from what the code of a file tells of them to places that were checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.image import ImageSymbol
from rubyunwind.ruby.selfcheck import check_stack
from rubyunwind.ruby.tls import CONTEXT_VARIABLE, resolve, thread_context, uses_musl
from rubyunwind.ruby.vm_search import is_vm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.abi import RubyTLSInfo
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.hidden import Pointer
    from rubyunwind.ruby.image import RubyImage
    from rubyunwind.ruby.layouts import Layout

__all__ = ["VM_POINTER", "CollectorPlace", "Uncovered", "collector_place", "hidden_context", "uncover"]

VM_POINTER = "ruby_current_vm_ptr"
_MAIN_RACTOR = "ruby_single_main_ractor"
_LOOP = "rb_vm_exec"

_CHECKS = 8


@dataclass(frozen=True, slots=True)
class Uncovered:
    """An image with the symbols that were found added, their names, and why others were not."""

    image: RubyImage
    found: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectorPlace:
    """Where a process says that it collects garbage: `vm_pointer` is the address of ruby_current_vm_ptr.

    The VM has its object space at `objspace`, and bit `bit` of the u32 at `flags` in that is during_gc.
    """

    vm_pointer: int
    objspace: int
    flags: int
    bit: int


def uncover(image: RubyImage, memory: Memory, layout: Layout) -> Uncovered:
    """Add to `image` the symbols that its file does not name but whose places its code tells.

    A variable must lie in the file's data, and hold what it is there for as far as that can be seen.
    """
    hidden = image.hidden
    found: dict[str, ImageSymbol] = {}
    reasons = list(hidden.reasons)
    if image.symbol(VM_POINTER) is None and hidden.vm is not None:
        address, reason = _variable(image, memory, hidden.vm)
        if address and not reason:
            reason = _no_vm(memory, layout, address)
        if reason:
            reasons.append(f"{VM_POINTER}: {reason}")
        else:
            found[VM_POINTER] = ImageSymbol(address - image.bias, 8)
    wanted = layout.context_symbol == _MAIN_RACTOR and image.symbol(_MAIN_RACTOR) is None
    if wanted and hidden.main_ractor is not None:
        address, reason = _variable(image, memory, hidden.main_ractor)
        if not reason and hidden.running_thread != layout.ractor_running_ec:
            reason = (
                f"rb_thread_main has running_ec at {hidden.running_thread}, not {layout.ractor_running_ec}"
            )
        if reason:
            reasons.append(f"{_MAIN_RACTOR}: {reason}")
        else:
            found[_MAIN_RACTOR] = ImageSymbol(address - image.bias, 8)
    if layout.interpreter_symbol == _LOOP and image.symbol(_LOOP) is None and hidden.loop is not None:
        found[_LOOP] = ImageSymbol(*hidden.loop)
    if found:
        image = replace(image, symbols={**image.symbols, **found})
    return Uncovered(image, tuple(found), tuple(reasons))


def _variable(image: RubyImage, memory: Memory, pointer: Pointer) -> tuple[int, str]:
    address = image.bias + pointer.address
    if pointer.indirect:
        try:
            address = memory.u64(address)
        except MemoryReadError as error:
            return 0, str(error)
    inside = address - image.bias
    if not any(start <= inside <= start + size - 8 for start, size in image.writable):
        return 0, f"{inside:#x} is not in the data of the file"
    return address, ""


def _no_vm(memory: Memory, layout: Layout, address: int) -> str:
    """Say why there is no VM behind a variable; "" when there is one, or none yet, or nobody can tell."""
    if layout.vm_main_ractor is None:
        return ""
    try:
        vm = memory.u64(address)
        # Its main thread comes last.
        if not vm or not memory.u64(vm + layout.vm_main_thread) or is_vm(memory, layout, vm):
            return ""
    except MemoryReadError as error:
        return str(error)
    return "what rb_during_gc reads is no VM"


def collector_place(image: RubyImage) -> CollectorPlace | None:
    """Return where the process says that it collects garbage, None when the file does not tell."""
    found, pointer = image.hidden.collector, image.address(VM_POINTER)
    if found is None or not pointer:
        return None
    return CollectorPlace(pointer, found.objspace, found.flags, found.bit)


def hidden_context(
    image: RubyImage, memory: Memory, mappings: Iterable[Mapping], layout: Layout
) -> tuple[RubyTLSInfo | None, str]:
    """Return how to reach the hidden ruby_current_ec from a thread pointer, or None and why not.

    All functions that were looked at have to mean the same place, and it must hold the context of the main
    thread in that one, if it can be seen.
    """
    if not image.hidden.context:
        return None, ""
    if image.hidden.thread_ptr != layout.ec_thread_ptr:
        return (
            None,
            f"rb_thread_current has thread_ptr at {image.hidden.thread_ptr}, not {layout.ec_thread_ptr}",
        )
    musl = uses_musl(mappings)
    try:
        ways = {resolve(image, memory, way, musl) for way in image.hidden.context}
    except MemoryReadError as error:
        return None, str(error)
    if len(ways) != 1:
        return None, f"functions that read it mean {len(ways)} different places"
    (tls,) = ways
    if tls is None:
        return None, "the dynamic linker has not filled in its place yet"
    reason = ""
    for _ in range(_CHECKS):
        reason = _misses(image, memory, layout, tls)
        if not reason:
            return tls, ""
    return None, reason


def _misses(image: RubyImage, memory: Memory, layout: Layout, tls: RubyTLSInfo) -> str:
    """Say what is wrong with the context of the main thread; "" when it is right or cannot be seen."""
    pointer = image.address(VM_POINTER)
    # glibc and musl have the thread pointer itself as pthread_t on x86_64; on aarch64 it lies behind.
    if image.aarch64 or layout.thread_native is None or layout.thread_tid is None or not pointer:
        return ""
    try:
        vm = memory.u64(pointer)
        thread = memory.u64(vm + layout.vm_main_thread) if vm else 0
        native = memory.u64(thread + layout.thread_native) if thread else 0
        # rb_native_thread.thread_id (thread_pthread.h) is the word before tid.
        thread_pointer = memory.u64(native + layout.thread_tid - 8) if native else 0
        if not thread_pointer:
            return ""  # it is being set up
        context = thread_context(memory, tls, thread_pointer)
        if not context:
            return ""
        if memory.u64(context + layout.ec_thread_ptr) != thread:
            return f"{CONTEXT_VARIABLE} of the main thread is not a context of that thread"
    except MemoryReadError as error:
        return str(error)
    check = check_stack(memory, layout, context)
    return check.reason if check.result == "bad" else ""
