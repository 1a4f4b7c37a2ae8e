# SPDX-License-Identifier: Apache-2.0
"""aarch64 instructions: what the few do that are followed. Encodings: Arm ARM, chapter C4 (A64)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.ruby.machine.instruction import THREAD, Instruction, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ARGUMENT", "RESULT", "SCRATCH", "decode", "targets"]

RESULT = ARGUMENT = 0
SCRATCH = tuple(range(19))
"""Registers that a call may change (AAPCS64, 6.1.1): x0 to x18."""

_ZERO = 31  # the number of xzr, or sp: neither is followed


def decode(code: bytes, at: int, address: int) -> Instruction | None:
    """Return the instruction at code[at], which lies at `address`; None for one that ends a walk."""
    if at + 4 > len(code):
        return None
    word = int.from_bytes(code[at : at + 4], "little")
    group = word >> 25 & 0xF  # C4.1: the main encoding table
    if group in (0b1000, 0b1001):
        return _immediate(word, address)
    if group in (0b1010, 0b1011):
        return _branch(word, address)
    if group & 0b0101 == 0b0100:
        return _load_or_store(word)
    if group & 0b0111 == 0b0101:
        return _registers(word)
    if group & 0b0111 == 0b0111:  # vectors; some write a general register
        return Instruction(4, writes=(word & 31,))
    return None


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _immediate(word: int, address: int) -> Instruction:
    target, source = word & 31, word >> 5 & 31
    other = Instruction(4, writes=(target,))
    if word & 0x1F000000 == 0x10000000:  # ADR, ADRP
        pages = _signed(word >> 3 & 0x1FFFFC | word >> 29 & 3, 21)
        where = (address & ~0xFFF) + (pages << 12) if word >> 31 else address + pages
        return Instruction(4, Operation.ADDRESS, register=target, offset=where)
    if word & 0xBF800000 == 0x91000000 or word & 0xFF800000 == 0xD1000000:  # ADD, SUB (immediate), 64 bits
        number = (word >> 10 & 0xFFF) << 12 * (word >> 22 & 1)
        if _ZERO in (target, source):
            return other
        number = -number if word >> 30 & 1 else number
        return Instruction(4, Operation.ADDRESS, register=target, base=source, offset=number)
    if word & 0x1F800000 == 0x12800000:  # MOVN, MOVZ, MOVK
        shift, number, form = 16 * (word >> 21 & 3), word >> 5 & 0xFFFF, word >> 29 & 3
        if form == 3:
            return Instruction(4, Operation.INSERT, register=target, offset=number, bit=shift)
        if form not in (0, 2):
            return other
        value = ~(number << shift) if form == 0 else number << shift
        value &= (1 << (64 if word >> 31 else 32)) - 1
        return Instruction(4, Operation.ADDRESS, register=target, offset=value)
    if word & 0x7F800000 == 0x53000000:  # UBFM: LSR and UBFX are those that take from the right
        first, last = word >> 16 & 63, word >> 10 & 63
        if last >= first:
            return Instruction(4, Operation.SHIFT, register=target, base=source, offset=first)
    if word & 0xFFFFFC00 in (0x12000000, 0x92400000) and target == source:  # AND #1
        return Instruction(4)
    return other


def _branch(word: int, address: int) -> Instruction | None:
    if word & 0x7C000000 == 0x14000000:  # B, BL
        kind = Operation.CALL if word >> 31 else Operation.JUMP
        return Instruction(4, kind, offset=address + 4 * _signed(word & 0x3FFFFFF, 26))
    if word & 0xFF000000 == 0x54000000 or word & 0x7C000000 == 0x34000000:  # B.cond, CBZ, CBNZ, TBZ, TBNZ
        return Instruction(4)
    if word & 0xFE9FF000 == 0xD61F0000:  # BR, BLR, RET; RETAA and BLRAA differ in bits 10 and 11
        form = (Operation.JUMP, Operation.CALL, Operation.RETURN, None)[word >> 21 & 3]
        return Instruction(4, form, base=word >> 5 & 31) if form is not None else None
    if word & 0xFFFFFFE0 == 0xD53BD040:  # MRS Xt, TPIDR_EL0
        return Instruction(4, Operation.ADDRESS, register=word & 31, base=THREAD)
    if word & 0xFFC00000 == 0xD5000000:  # hints, barriers, other system registers
        return Instruction(4, writes=(word & 31,))
    return None


def _load_or_store(word: int) -> Instruction:
    target, base = word & 31, word >> 5 & 31
    vector = bool(word >> 26 & 1)
    if word & 0x3A000000 == 0x28000000:  # pairs
        writes = (target, word >> 10 & 31) if word >> 22 & 1 and not vector else ()
        indexed = word >> 23 & 1  # before or after: the base moves
        return Instruction(4, writes=(*writes, base) if indexed else writes)
    if word & 0x3A000000 != 0x38000000 or vector:  # literals, exclusives, vectors
        return Instruction(4, writes=(target, word >> 10 & 31, word >> 16 & 31, base))
    size = word >> 30
    loads = bool(word >> 22 & 3)
    if word >> 24 & 1:  # unsigned scaled offset
        offset = (word >> 10 & 0xFFF) << size
        if not loads:
            return Instruction(4)
        if base == _ZERO:
            return Instruction(4, writes=(target,))
        return Instruction(4, Operation.LOAD, register=target, base=base, offset=offset)
    kind = word >> 10 & 3
    if word >> 21 & 1:
        # Register offset; LSL #0 alone is followed.
        if kind == 2 and loads and word >> 12 & 0xF == 0b0110:
            return Instruction(4, Operation.LOAD, register=target, base=base, index=word >> 16 & 31)
        return Instruction(4, writes=(target, word >> 16 & 31) if kind != 2 or loads else ())
    if kind == 0 and loads and base != _ZERO:  # LDUR
        return Instruction(
            4, Operation.LOAD, register=target, base=base, offset=_signed(word >> 12 & 0x1FF, 9)
        )
    moved = (base,) if kind in (1, 3) else ()
    return Instruction(4, writes=(target, *moved) if loads else moved)


def _registers(word: int) -> Instruction:
    target, first, second = word & 31, word >> 5 & 31, word >> 16 & 31
    if word & 0x7FE0FFE0 == 0x2A0003E0 and second != _ZERO:  # MOV: ORR with the zero register
        return Instruction(4, Operation.ADDRESS, register=target, base=second)
    if word & 0xFFE0FC00 == 0x8B000000 and _ZERO not in (first, second):  # ADD (shifted register) by 0
        return Instruction(4, Operation.ADDRESS, register=target, base=first, index=second)
    return Instruction(4, writes=(target,))


def targets(code: bytes, address: int) -> Iterator[tuple[int, bool]]:
    """Yield where each call or jump in `code` leads, in order; conditional ones do not count."""
    for at in range(0, len(code) - 3, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        if word & 0x7C000000 == 0x14000000:
            yield address + at + 4 * _signed(word & 0x3FFFFFF, 26), False
