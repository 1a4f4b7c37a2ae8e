# SPDX-License-Identifier: Apache-2.0
"""Code: the instructions of an ELF file, and where its calls through tables lead."""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from rubyunwind.elf.dynamic import DynamicSection
from rubyunwind.elf.file import EM_AARCH64
from rubyunwind.elf.functions import function_entries, function_size
from rubyunwind.errors import DecodeError
from rubyunwind.ruby.machine import aarch64, x86_64
from rubyunwind.ruby.machine.instruction import Instruction, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rubyunwind.elf.file import ElfFile

__all__ = ["Code"]

# elf.h, (x86_64, aarch64): GLOB_DAT and JUMP_SLOT; DTPMOD64; TLSDESC.
_ADDRESSES = ((6, 7), (1025, 1026))
_MODULES = (16, 1028)
_DESCRIPTORS = (36, 1031)

_WINDOW = 256  # bytes that are read at a time
_STUB = 6  # instructions of an entry of a procedure linkage table, with those that guard its target
MAX_FUNCTION = 1 << 16
MOST_TARGETS = 50_000
"""Places of one file that may be calls; on the way to rb_vm_exec real ones have a few hundred."""


class Machine(Protocol):
    """What the modules of the two machines have."""

    RESULT: int
    ARGUMENT: int
    SCRATCH: tuple[int, ...]

    def decode(self, code: bytes, at: int, address: int) -> Instruction | None: ...

    def targets(self, code: bytes, address: int) -> Iterator[tuple[int, bool]]: ...


class Code:
    """Reads the instructions of `elf`, which has to stay open; what cannot be read is no instruction."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self.aarch64 = elf.machine == EM_AARCH64
        self.machine: Machine = aarch64 if self.aarch64 else x86_64
        self._window = (0, b"")
        self._targets: dict[int, list[int]] = {}
        self._left = MOST_TARGETS

    @cached_property
    def _slots(self) -> dict[int, tuple[int, int]]:
        """{address of the word: (r_type, symbol)} of what the dynamic linker fills in."""
        kinds = (*_ADDRESSES[self.aarch64], _MODULES[self.aarch64], _DESCRIPTORS[self.aarch64])
        try:
            return {entry.offset: (entry.kind, entry.symbol) for entry in self._dynamic.relocations(kinds)}
        except DecodeError:
            return {}

    @cached_property
    def _dynamic(self) -> DynamicSection:
        return DynamicSection(self._elf)

    @cached_property
    def _functions(self) -> dict[int, int]:
        try:
            return function_entries(self._elf)
        except DecodeError:
            return {}

    def is_start(self, address: int) -> bool:
        """Whether a function begins at `address`."""
        return address in self._functions

    def is_module(self, slot: int) -> bool:
        """Whether the dynamic linker writes a module id to `slot`: that is what __tls_get_addr takes."""
        return self._slots.get(slot, (0, 0))[0] == _MODULES[self.aarch64]

    def is_descriptor(self, slot: int) -> bool:
        """Whether a TLS descriptor lies at `slot`."""
        return self._slots.get(slot, (0, 0))[0] == _DESCRIPTORS[self.aarch64]

    def function_in(self, slot: int) -> int:
        """Return the function of this file whose address the dynamic linker writes to `slot`, or 0."""
        kind, symbol = self._slots.get(slot, (0, 0))
        try:
            return self._dynamic.symbol_value(symbol) if kind in _ADDRESSES[self.aarch64] else 0
        except DecodeError:
            return 0

    def decode(self, address: int) -> Instruction | None:
        """Return the instruction at `address`; None when there is none, or none that a walk goes on after."""
        start, data = self._window
        if not 0 <= address - start <= len(data) - 16:
            start, data = self._window = address, self._read(address, _WINDOW)
        return self.machine.decode(data, address - start, address)

    def _read(self, address: int, most: int) -> bytes:
        for start, end, offset in self._elf.executable_spans:
            if start <= address < end:
                try:
                    return self._elf.read(offset + address - start, min(most, end - address))
                except DecodeError:
                    return b""
        return b""

    def size(self, start: int) -> int:
        """Return the size of the function that begins at `start`, 0 when nothing says it."""
        entry = self._functions.get(start)
        return function_size(self._elf, start, entry) if entry is not None else 0

    def targets(self, start: int) -> list[int]:
        """Return the functions of this file that the one at `start` calls or jumps to, in order.

        Calls through the tables of the dynamic linker count; those by other pointers do not.
        """
        known = self._targets.get(start)
        if known is None:
            code = self._read(start, min(self.size(start), MAX_FUNCTION))
            found: dict[int, None] = {}
            for target, word in islice(self.machine.targets(code, start), self._left):
                self._left -= 1
                if word:
                    function = self.function_in(target)
                else:
                    function = target if self.is_start(target) else self._behind_stub(target)
                if function:
                    found[function] = None
            known = self._targets[start] = list(found)
        return known

    def _behind_stub(self, address: int) -> int:
        """Return where an entry of the procedure linkage table leads in this file, or 0."""
        section = self._stubs
        if not any(start <= address < end for start, end in section):
            return 0
        return self._through(address)

    @cached_property
    def _stubs(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (section.address, section.address + section.size)
            for section in self._elf.sections
            if section.name.startswith(".plt") and section.executable
        )

    def _through(self, address: int) -> int:
        page = 0
        for _ in range(_STUB):
            one = self.decode(address)
            if one is None:
                return 0
            if one.operation is Operation.JUMP:
                # x86_64: jmp *slot(%rip); aarch64: adrp, ldr, add, br.
                slot = one.offset if one.memory and one.base is None else page
                return self.function_in(slot)
            if one.operation is Operation.ADDRESS and one.base is None:
                page = one.offset
            elif one.operation is Operation.LOAD and page:
                page += one.offset
            address += one.size
        return 0
