# SPDX-License-Identifier: Apache-2.0
"""Where threads begin in a C library without unwind rows, such as musl's as distributions build it.

Its functions cannot be unwound, but those at the root need not be: there a function that the program gave is
called by its pointer, and what it returns goes straight to exit or pthread_exit, which never return. In musl:
libc_start_main_stage2 (__libc_start_main.c), start and start_c11 (pthread_create.c).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rubyunwind.elf.file import EM_AARCH64, EM_X86_64
from rubyunwind.elf.symbols import SymbolTable
from rubyunwind.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rubyunwind.elf.file import ElfFile

__all__ = ["thread_roots"]

_STARTS_PROGRAMS = b"__libc_start_main\0"
_ENDS = ("exit", "pthread_exit")

MAX_CODE = 16 << 20
"""Bytes of one file that are looked through."""

# Intel SDM, volume 2: call by a register or by memory at a register with no, one or four bytes of distance;
# the result as the argument, in 32 or 64 bits or widened; call.
_X86_64 = re.compile(
    rb"\xff(?:[\xd0-\xd7\x10-\x13\x16\x17]|[\x50-\x53\x55-\x57].|[\x90-\x93\x95-\x97].{4})"
    rb"(?:\x89\xc7|\x48\x89\xc7|\x48\x63\xf8)\xe8(.{4})",
    re.DOTALL,
)
# Arm ARM, C6.2: blr xN; perhaps sxtw x0, w0; bl. The result's register is the argument's.
_AARCH64 = re.compile(
    rb"[\x00\x20\x40\x60\x80\xa0\xc0\xe0][\x00-\x03]\x3f\xd6(?:\x00\x7c\x40\x93)?(...[\x94-\x97])", re.DOTALL
)


def thread_roots(elf: ElfFile) -> list[tuple[int, int]]:
    """Return [first, end) of the calls of `elf` whose return address is the last one of a thread's stack.

    ELF virtual addresses, ascending; empty for a file that does not define __libc_start_main.
    """
    try:
        if not any(_STARTS_PROGRAMS in elf.data(one) for one in elf.sections if one.name == ".dynstr"):
            return []
        table = SymbolTable(elf)
        if table.find(_STARTS_PROGRAMS[:-1].decode()) is None:
            return []
        ends = {symbol.value for symbol in map(table.find, _ENDS) if symbol is not None}
        return sorted((first, end) for first, end, target in _calls(elf) if target in ends)
    except DecodeError:
        return []


def _calls(elf: ElfFile) -> Iterator[tuple[int, int, int]]:
    """Yield (address, end, where the second call leads) of each pair of calls."""
    pattern = {EM_X86_64: _X86_64, EM_AARCH64: _AARCH64}.get(elf.machine)
    if pattern is None:
        return
    room = MAX_CODE
    for start, end, offset in elf.executable_spans:
        code = elf.read(offset, min(end - start, room))
        room -= len(code)
        for match in pattern.finditer(code):
            number = int.from_bytes(match[1], "little")
            first, behind = start + match.start(), start + match.end()
            if elf.machine == EM_X86_64:
                yield first, behind, behind + (number ^ 1 << 31) - (1 << 31)
            elif not (match.start() | match.start(1)) & 3:
                words = number & 0x3FFFFFF
                yield first, behind, behind - 4 + 4 * ((words ^ 1 << 25) - (1 << 25))
