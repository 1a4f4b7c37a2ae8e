# SPDX-License-Identifier: Apache-2.0
"""Pieces of machine code as a walk sees them, and the ways of compilers to a thread-local variable."""

from __future__ import annotations

from typing import Any, NamedTuple

from rubyunwind.ruby.hidden import ThreadVariable
from rubyunwind.ruby.machine import Trace, aarch64, trace, x86_64
from rubyunwind.ruby.machine.instruction import Instruction

TEXT = 0x10000
SLOT = 0x20AD0  # what the fragments below call their slot


class Fragment:
    """Code at TEXT, instead of a file. `functions` are {address: code} of others."""

    def __init__(
        self,
        code: bytes,
        *,
        arm: bool = False,
        modules: tuple[int, ...] = (),
        descriptors: tuple[int, ...] = (),
        functions: dict[int, bytes] | None = None,
        pointers: dict[int, int] | None = None,
    ) -> None:
        self.machine: Any = aarch64 if arm else x86_64
        self._parts = {TEXT: code, **(functions or {})}
        self._modules, self._descriptors = modules, descriptors
        self._pointers = pointers or {}
        self.decoded = 0

    def decode(self, address: int) -> Instruction | None:
        self.decoded += 1
        for start, code in self._parts.items():
            if start <= address < start + len(code):
                found: Instruction | None = self.machine.decode(code, address - start, address)
                return found
        return None

    def is_module(self, slot: int) -> bool:
        return slot in self._modules

    def is_descriptor(self, slot: int) -> bool:
        return slot in self._descriptors

    def function_in(self, slot: int) -> int:
        return self._pointers.get(slot, 0)

    def trace(self, start: int = TEXT) -> Trace:
        fragment: Any = self
        return trace(fragment, start)


class Way(NamedTuple):
    """A function that returns *(*(*variable + 0x30) + 0x10), as rb_thread_current does, built in one way."""

    name: str
    arm: bool
    code: str
    variable: ThreadVariable


def _far(distance: int) -> str:
    return distance.to_bytes(4, "little", signed=True).hex()


def _page(register: int, address: int) -> str:
    """ADRP of a fragment whose first instructions are in the page of TEXT."""
    pages = (address >> 12) - (TEXT >> 12)
    word = 0x90000000 | (pages & 3) << 29 | (pages >> 2) << 5 | register
    return word.to_bytes(4, "little").hex()


def arm(*words: int) -> str:
    return b"".join(word.to_bytes(4, "little") for word in words).hex()


_SELF = "48 8b 40 30 48 8b 40 10"  # mov 0x30(%rax),%rax; mov 0x10(%rax),%rax
_RETURN = "48 83 c4 08 c3"  # add $8,%rsp; ret
_ARM_SELF = arm(0xF9401800, 0xF9400800, 0xD65F03C0)  # ldr x0,[x0,#48]; ldr x0,[x0,#16]; ret
_LOW = SLOT & 0xFFF

WAYS = [
    Way(
        "x86_64, general dynamic",
        False,
        f"f30f1efa 4883ec08 66488d3d{_far(SLOT - TEXT - 16)} 666648e8{_far(0x1000)} 488b00 {_SELF} {_RETURN}",
        ThreadVariable("module", 0, SLOT),
    ),
    Way(
        "x86_64, general dynamic without a linkage table",
        False,
        f"4883ec08 66488d3d{_far(SLOT - TEXT - 12)} 6648ff15{_far(0x1000)} 488b00 {_SELF} {_RETURN}",
        ThreadVariable("module", 0, SLOT),
    ),
    Way(
        "x86_64, local dynamic",
        False,
        f"4883ec08 488d3d{_far(SLOT - TEXT - 11)} e8{_far(0x1000)} 488b8010000000 {_SELF} {_RETURN}",
        ThreadVariable("module", 16, SLOT),
    ),
    Way(
        "x86_64, descriptor",
        False,
        f"4883ec08 488d05{_far(SLOT - TEXT - 11)} ff10 64488b00 {_SELF} {_RETURN}",
        ThreadVariable("descriptor", 0, SLOT),
    ),
    Way(
        "x86_64, initial exec",
        False,
        f"488b05{_far(SLOT - TEXT - 7)} 64488b00 {_SELF} c3",
        ThreadVariable("slot", 0, SLOT),
    ),
    Way(
        "x86_64, general dynamic made initial exec by the linker",
        False,
        f"64488b042500000000 480305{_far(SLOT - TEXT - 16)} 488b00 {_SELF} c3",
        ThreadVariable("slot", 0, SLOT),
    ),
    Way(
        "x86_64, local exec",
        False,
        f"64488b0425f8ffffff {_SELF} c3",
        ThreadVariable("offset", -8),
    ),
    Way(
        "x86_64, general dynamic made local exec by the linker",
        False,
        f"4883ec08 64488b042500000000 488d80f0ffffff 488b00 {_SELF} {_RETURN}",
        ThreadVariable("offset", -16),
    ),
    Way(
        "x86_64, descriptor made local exec by the linker",
        False,
        f"4883ec08 48c7c0f0ffffff 6690 64488b00 {_SELF} {_RETURN}",
        ThreadVariable("offset", -16),
    ),
    Way(
        "aarch64, descriptor",
        True,
        # mrs x1; stp; mov x29,sp; adrp x0; ldr x2,[x0,#]; add x0,x0,#; blr x2; ldr x0,[x1,x0]; ldp
        arm(0xD53BD041, 0xA9BF7BFD, 0x910003FD)
        + _page(0, SLOT)
        + arm(0xF9400002 | _LOW // 8 << 10, 0x91000000 | _LOW << 10, 0xD63F0040, 0xF8606820, 0xA8C17BFD)
        + _ARM_SELF,
        ThreadVariable("descriptor", 0, SLOT),
    ),
    Way(
        "aarch64, initial exec",
        True,
        # adrp x0; ldr x0,[x0,#]; mrs x1; ldr x0,[x1,x0]
        _page(0, SLOT) + arm(0xF9400000 | _LOW // 8 << 10, 0xD53BD041, 0xF8606820) + _ARM_SELF,
        ThreadVariable("slot", 0, SLOT),
    ),
    Way(
        "aarch64, local exec",
        True,
        # mrs x0; add x0,x0,#1,lsl #12; add x0,x0,#16; ldr x0,[x0]
        arm(0xD53BD040, 0x91400400, 0x91004000, 0xF9400000) + _ARM_SELF,
        ThreadVariable("offset", 0x1010),
    ),
    Way(
        "aarch64, descriptor made local exec by the linker",
        True,
        # mrs x1; stp; movz x0,#1,lsl #16; movk x0,#16; nop; nop; ldr x0,[x1,x0]; ldp
        arm(0xD53BD041, 0xA9BF7BFD, 0xD2A00020, 0xF2800200, 0xD503201F, 0xD503201F, 0xF8606820, 0xA8C17BFD)
        + _ARM_SELF,
        ThreadVariable("offset", 0x10010),
    ),
]


def fragment_of(way: Way, *, functions: dict[int, bytes] | None = None) -> Fragment:
    code = bytes.fromhex(way.code)
    model = way.variable.model
    return Fragment(
        code,
        arm=way.arm,
        modules=(SLOT,) if model == "module" else (),
        descriptors=(SLOT,) if model == "descriptor" else (),
        functions=functions,
    )
