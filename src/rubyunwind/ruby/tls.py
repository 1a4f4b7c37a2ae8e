# SPDX-License-Identifier: Apache-2.0
"""Where each thread keeps its own execution context: the thread-local variable ruby_current_ec (Ruby 3.0+).

How a thread-local variable is reached depends on how the file that defines it was linked, and that shows
in its relocations, whose slots the dynamic linker has filled in in the live process:

* DTPMOD64: the slot holds the module id; the thread's DTV (a vector of blocks by module id) does the rest.
* TLSDESC (aarch64's way, and x86_64's with -mtls-dialect=gnu2): the descriptor's second word is the
  variable's offset from the thread pointer, or a pointer to module id and offset.
* TPOFF64: the slot holds the offset from the thread pointer.
* none, in a statically linked ruby: the offset follows from the size of the program's TLS segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.abi import RubyTLSInfo, RubyTLSKind
from rubyunwind.process.memory import MemoryReadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.process.mappings import Mapping
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.hidden import ThreadVariable
    from rubyunwind.ruby.image import Relocation, RubyImage

__all__ = ["CONTEXT_VARIABLE", "find_tls", "resolve", "thread_context", "uses_musl"]

CONTEXT_VARIABLE = "ruby_current_ec"

# Relocation types, elf.h: (x86_64, aarch64).
_DTPMOD = (16, 1028)
_TPOFF = (18, 1030)
_TLSDESC = (36, 1031)

# Offsets above this are no distance inside the static TLS block but an address (of a dynamic descriptor).
_STATIC_REACH = 1 << 24

# The thread control block lies at the thread pointer on aarch64 (two words, ABI), behind the TLS
# segments on x86_64.
_AARCH64_TCB = 16

_MOST_MODULES = 1 << 16


def find_tls(image: RubyImage, memory: Memory, mappings: Iterable[Mapping]) -> RubyTLSInfo | None:
    """Return how to reach ruby_current_ec from a thread pointer, or None when the binary does not tell.

    None: a Ruby before 3.0, one whose symbol is hidden in a stripped file (see uncover.py), or a process in
    which the dynamic linker has not run yet.
    """
    symbol = image.symbol(CONTEXT_VARIABLE)
    if symbol is None:
        return None
    if image.is_program:
        return RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=_executable_offset(image, symbol.value))
    try:
        return _from_relocations(image, memory, symbol.value, uses_musl(mappings))
    except MemoryReadError:
        return None


def _from_relocations(image: RubyImage, memory: Memory, offset: int, musl: bool) -> RubyTLSInfo | None:
    machine = 1 if image.aarch64 else 0
    own = [entry for entry in image.tls_relocations if _concerns(entry)]
    for entry in own:
        slot = image.bias + entry.offset
        if entry.kind == _TPOFF[machine]:
            if entry.symbol != CONTEXT_VARIABLE and entry.addend != offset:
                continue
            value = _signed(memory.u64(slot))
            if value:
                return RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=value)
        elif entry.kind == _TLSDESC[machine]:
            # Without a symbol the addend is the offset of the variable in the module.
            if entry.symbol != CONTEXT_VARIABLE and entry.addend != offset:
                continue
            found = _from_descriptor(image, memory, slot, musl)
            if found is not None:
                return found
    # Any DTPMOD64 of this file gives this file's module id.
    for entry in own:
        if entry.kind == _DTPMOD[machine]:
            module = memory.u64(image.bias + entry.offset)
            if 0 < module < _MOST_MODULES:
                return _dtv(image, module, offset, musl)
    return None


def resolve(image: RubyImage, memory: Memory, variable: ThreadVariable, musl: bool) -> RubyTLSInfo | None:
    """Return how to reach a variable that was seen in code; None when its slot is not filled in yet.

    Raises MemoryReadError.
    """
    if variable.model == "offset":
        return RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=variable.offset)
    slot = image.bias + variable.slot
    if variable.model == "slot":
        value = _signed(memory.u64(slot))
        return RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=value + variable.offset) if value else None
    if variable.model == "descriptor":
        return _from_descriptor(image, memory, slot, musl, variable.offset)
    module = memory.u64(slot)
    if not 0 < module < _MOST_MODULES:
        return None
    # tls_index (psABI): what __tls_get_addr is given. The offset is 0 where one slot serves a whole file.
    return _dtv(image, module, memory.u64(slot + 8) + variable.offset, musl)


def _concerns(entry: Relocation) -> bool:
    return entry.symbol in ("", CONTEXT_VARIABLE)


def _from_descriptor(
    image: RubyImage, memory: Memory, slot: int, musl: bool, more: int = 0
) -> RubyTLSInfo | None:
    """Read a TLS descriptor {function, argument} that the dynamic linker has resolved; `more` is added."""
    function, argument = memory.u64(slot), memory.u64(slot + 8)
    if not function:
        return None
    value = _signed(argument)
    if -_STATIC_REACH < value < _STATIC_REACH:
        return RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=value + more) if value else None
    # glibc's struct tlsdesc_dynamic_arg and musl's new_tls entry both begin with module id and offset.
    module, offset = memory.u64(argument), memory.u64(argument + 8)
    return _dtv(image, module, offset + more, musl) if 0 < module < _MOST_MODULES else None


def _dtv(image: RubyImage, module: int, offset: int, musl: bool) -> RubyTLSInfo:
    # glibc: tcbhead_t.dtv, second word of the block on x86_64, first on aarch64; entries are pairs (dtv_t).
    # musl: struct pthread.dtv (pthread_impl.h), the second word on x86_64; on aarch64 the struct lies below
    # the thread pointer and ends with it. Entries are single words, the first is the number of modules.
    where = (-8 if musl else 0) if image.aarch64 else 8
    return RubyTLSInfo(
        kind=RubyTLSKind.DTV,
        module_id=module,
        offset=offset,
        dtv_offset=where,
        dtv_entry_size=8 if musl else 16,
    )


def _executable_offset(image: RubyImage, value: int) -> int:
    """Return a variable's distance from the thread pointer in the main program (TLS variants I and II)."""
    segment = image.tls_segment
    if segment is None:
        return value
    alignment = max(segment.alignment, 1)
    skew = segment.address % alignment
    if image.aarch64:
        return _AARCH64_TCB + (skew - _AARCH64_TCB) % alignment + value
    blocks = (segment.size + skew + alignment - 1) // alignment
    return value - blocks * alignment + skew


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def uses_musl(mappings: Iterable[Mapping]) -> bool:
    """Whether the C library of a process is musl, whose thread-local storage is arranged in another way.

    It is its own dynamic linker, ld-musl-ARCH.so.1; the file behind that link is called so on Alpine, libc.so
    on Debian and others. glibc's file of this name is a linker script, which nobody maps.
    """
    names = (mapping.path.rpartition("/")[2] for mapping in mappings)
    return any(name == "libc.so" or name.startswith(("ld-musl-", "libc.musl-")) for name in names)


def thread_context(memory: Memory, tls: RubyTLSInfo, thread_pointer: int) -> int:
    """Return the execution context of the thread with this thread pointer (fs_base, tpidr_el0), or 0.

    A thread that never touched the variable has no block for it yet (glibc marks that with -1), and one that
    is no Ruby thread has a null context. Raises MemoryReadError.
    """
    if tls.kind == RubyTLSKind.STATIC:
        return memory.u64(thread_pointer + tls.offset)
    if tls.kind != RubyTLSKind.DTV:
        return 0
    vector = memory.u64(thread_pointer + tls.dtv_offset)
    block = memory.u64(vector + tls.module_id * tls.dtv_entry_size)
    if block in (0, (1 << 64) - 1):
        return 0
    return memory.u64(block + tls.offset)
