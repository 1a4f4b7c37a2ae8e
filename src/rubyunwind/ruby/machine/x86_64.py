# SPDX-License-Identifier: Apache-2.0
"""x86_64 instructions: their lengths, and what the few do that are followed.

Encodings are those of the Intel SDM, volume 2: the opcode maps of appendix A give operands and lengths.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rubyunwind.ruby.machine.instruction import THREAD, Instruction, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ARGUMENT", "RESULT", "SCRATCH", "decode", "targets"]

RAX, RCX, RDX, RSI, RDI = 0, 1, 2, 6, 7
RESULT = RAX
ARGUMENT = RDI
SCRATCH = (RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11)
"""Registers that a call may change (psABI, "Register Usage")."""

LONGEST = 15
_PREFIXES = frozenset(b"\x2e\x36\x3e\x26\x64\x65\x66\x67\xf0\xf2\xf3")
_FS, _OPERAND_SIZE = 0x64, 0x66


def _spread(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(number for first, last in ranges for number in range(first, last + 1))


# One-byte opcodes by what follows them. Arithmetic is the block 00 to 3f in eights: four forms with ModRM,
# AL with imm8, eAX with imm32; the last two are no instructions in 64-bit mode.
_ARITHMETIC = frozenset(8 * row + form for row in range(8) for form in range(4))
_MODRM = _ARITHMETIC | _spread((0x84, 0x8B), (0xD0, 0xD3), (0xF6, 0xF7), (0xFE, 0xFF)) | {0x63, 0x8D, 0x8F}
_MODRM_8 = frozenset((0x6B, 0x80, 0x83, 0xC0, 0xC1, 0xC6))
_MODRM_32 = frozenset((0x69, 0x81, 0xC7))
_PLAIN_8 = frozenset(8 * row + 4 for row in range(8)) | _spread((0xB0, 0xB7)) | {0x6A, 0xA8}
_PLAIN_32 = frozenset(8 * row + 5 for row in range(8)) | _spread((0xB8, 0xBF)) | {0x68, 0xA9}
_ALONE = _spread((0x50, 0x5F), (0x90, 0x99), (0xA4, 0xA7), (0xAA, 0xAF)) | {0xC9}
# Two-byte opcodes (0f).
_MODRM_0F = (
    _spread((0x10, 0x17), (0x18, 0x1F), (0x28, 0x2F), (0x40, 0x6F), (0x74, 0x76), (0x7E, 0x7F))
    | _spread((0x90, 0x9F), (0xAF, 0xB1), (0xB3, 0xB3), (0xB6, 0xB8), (0xBB, 0xC1), (0xD0, 0xFE))
    | {0xA3, 0xAB}
)
_MODRM_8_0F = frozenset((0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))

_COMPARES = frozenset((0x38, 0x39, 0x3A, 0x3B, 0x3C, 0x3D, 0x84, 0x85, 0xA8, 0xA9))  # change flags only


# call, jmp, and jcc with four bytes of distance, and call and jmp by a word at such a distance (without a
# linkage table); looked for at every byte.
_RELATIVE = re.compile(rb"(?=(?:[\xe8\xe9]|\x0f[\x80-\x8f])(.{4})|\xff[\x15\x25](.{4}))", re.DOTALL)


def decode(code: bytes, at: int, address: int) -> Instruction | None:
    """Return the instruction at code[at], which lies at `address`; None for one that ends a walk."""
    start, segment, short = at, 0, False
    end = min(len(code), at + LONGEST)
    while at < end and code[at] in _PREFIXES:
        segment = _FS if code[at] == _FS else segment
        short = short or code[at] == _OPERAND_SIZE
        at += 1
    rex = code[at] if at < end and code[at] & 0xF0 == 0x40 else 0
    at += bool(rex)
    wide = bool(rex & 8)
    if at >= end:
        return None
    opcode = code[at]
    at += 1
    if opcode == 0x0F:
        if at >= end:
            return None
        opcode = 0x0F00 | code[at]
        at += 1
        if opcode in (0x0F38, 0x0F3A):  # three bytes: all with ModRM, the second map with imm8 also
            opcode, at = opcode << 8, at + 1
    reader = _Reader(code, at, end, start, address, rex)
    reader.full = 2 if short and not wide else 4
    found = _effect(reader, opcode, wide, segment == _FS)
    return found if found is not None and reader.at <= end else None


class _Reader:
    """Takes operands from the bytes behind an opcode. What lies behind the end reads as zeros."""

    __slots__ = (
        "_address", "_code", "_end", "_rex", "_start",
        "at", "base", "field", "full", "index", "mode", "offset",
    )  # fmt: skip

    def __init__(self, code: bytes, at: int, end: int, start: int, address: int, rex: int) -> None:
        self._code, self.at, self._end = code, at, end
        self._start, self._address, self._rex = start, address, rex
        self.mode, self.field, self.offset = 0, 0, 0
        self.base: int | None = None
        self.index: int | None = None
        self.full = 4  # bytes of an immediate that is as long as the operand, but never longer than four

    def peek(self) -> int:
        """Return ModRM.reg, which extends some opcodes, without reading anything."""
        return self._code[self.at] >> 3 & 7 if self.at < self._end else 0

    def signed(self, size: int) -> int:
        piece = self._code[self.at : min(self.at + size, self._end)]
        self.at += size
        return int.from_bytes(piece.ljust(size, b"\0"), "little", signed=True)

    @property
    def size(self) -> int:
        return self.at - self._start

    @property
    def next_address(self) -> int:
        return self._address + self.size

    def low_register(self, opcode: int) -> int:
        return opcode & 7 | (self._rex & 1) << 3

    def modrm(self, immediate: int = 0) -> int:
        """Read ModRM, SIB and displacement, then an immediate of that many bytes, which is returned.

        An operand with a scaled index has none of what can be followed: `index` is -1 then.
        """
        byte = self.signed(1) & 0xFF
        self.mode, self.field, low = byte >> 6, byte >> 3 & 7 | (self._rex & 4) << 1, byte & 7
        relative = False
        if self.mode == 3:
            self.base = low | (self._rex & 1) << 3
        else:
            self.base = low | (self._rex & 1) << 3
            if low == 4:
                sib = self.signed(1) & 0xFF
                index = sib >> 3 & 7 | (self._rex & 2) << 2
                self.index = None if index == 4 else index if sib >> 6 == 0 else -1
                self.base = sib & 7 | (self._rex & 1) << 3
                if sib & 7 == 5 and self.mode == 0:
                    self.base, self.offset = None, self.signed(4)
            elif low == 5 and self.mode == 0:
                self.base, self.offset, relative = None, self.signed(4), True
            if self.mode in (1, 2):
                self.offset = self.signed(1 if self.mode == 1 else 4)
        value = self.signed(immediate) if immediate else 0
        if relative:
            self.offset += self.next_address
        return value

    @property
    def has_rex(self) -> bool:
        return bool(self._rex)

    @property
    def is_register(self) -> bool:
        return self.mode == 3

    def written(self) -> tuple[int, ...]:
        """Both operands that are registers: what an instruction that is not followed may write."""
        both = (self.field, self.base) if self.is_register else (self.field,)
        return tuple(register for register in both if register is not None)


def _effect(reader: _Reader, opcode: int, wide: bool, thread: bool) -> Instruction | None:
    if opcode in (0xE8, 0xE9, 0xEB) or 0x70 <= opcode <= 0x7F or 0x0F80 <= opcode <= 0x0F8F:
        target = reader.signed(1 if opcode == 0xEB or opcode < 0x80 else 4)
        kind = {0xE8: Operation.CALL, 0xE9: Operation.JUMP, 0xEB: Operation.JUMP}.get(opcode, Operation.OTHER)
        return Instruction(reader.size, kind, offset=reader.next_address + target)
    if opcode == 0xC3:
        return Instruction(reader.size, Operation.RETURN)
    if opcode in _ALONE:
        return Instruction(reader.size, writes=_written_alone(reader, opcode))
    if opcode in _PLAIN_8:
        reader.signed(1)
        return Instruction(
            reader.size, writes=() if opcode in _COMPARES else (RAX, reader.low_register(opcode))
        )
    if opcode in _PLAIN_32:
        return _plain_immediate(reader, opcode, wide)
    if opcode in _MODRM or opcode in _MODRM_8 or opcode in _MODRM_32:
        return _with_operands(reader, opcode, wide, thread)
    if opcode >> 8 == 0x0F and (opcode & 0xFF in _MODRM_0F or opcode & 0xFF in _MODRM_8_0F):
        return _two_byte(reader, opcode & 0xFF, thread)
    if 0x0FC8 <= opcode <= 0x0FCF:  # bswap
        return Instruction(reader.size, writes=(reader.low_register(opcode),))
    if opcode in (0x0F3800, 0x0F3A00):
        reader.modrm(1 if opcode == 0x0F3A00 else 0)
        return Instruction(reader.size, writes=reader.written())
    return None


def _written_alone(reader: _Reader, opcode: int) -> tuple[int, ...]:
    if 0x50 <= opcode <= 0x57 or opcode == 0x90:  # push, nop
        return ()
    if 0x58 <= opcode <= 0x5F:  # pop
        return (reader.low_register(opcode),)
    return (RAX, RCX, RDX, RSI, RDI, reader.low_register(opcode))  # xchg, cdq, strings


def _plain_immediate(reader: _Reader, opcode: int, wide: bool) -> Instruction:
    if 0xB8 <= opcode <= 0xBF:  # mov imm, with REX.W the only one of eight bytes
        number = reader.signed(8) if wide else reader.signed(reader.full) & 0xFFFFFFFF
        return Instruction(
            reader.size, Operation.ADDRESS, register=reader.low_register(opcode), offset=number
        )
    reader.signed(reader.full)
    return Instruction(reader.size, writes=() if opcode in _COMPARES or opcode == 0x68 else (RAX,))


def _with_operands(reader: _Reader, opcode: int, wide: bool, thread: bool) -> Instruction:
    immediate = 1 if opcode in _MODRM_8 else reader.full if opcode in _MODRM_32 else 0
    if opcode in (0xF6, 0xF7):
        return _test(reader, opcode, thread)
    number = reader.modrm(immediate)
    extension = reader.field & 7
    if opcode in _COMPARES or (opcode in (0x80, 0x81, 0x83) and extension == 7):
        return Instruction(reader.size)
    if opcode == 0x8B or (opcode == 0x8A and (reader.field < 4 or reader.has_rex)):  # else %ah and its like
        return _load(reader, thread)
    if opcode == 0x89 and reader.is_register:
        return Instruction(reader.size, Operation.ADDRESS, register=reader.base, base=reader.field)
    if opcode == 0x8D and not reader.is_register:
        return _load(reader, False, Operation.ADDRESS)
    if opcode == 0x63:  # movslq
        return _load(reader, thread)
    if opcode == 0xC7 and reader.is_register:
        return Instruction(reader.size, Operation.ADDRESS, register=reader.base, offset=number)
    if opcode in (0x31, 0x33) and reader.is_register and reader.base == reader.field:
        return Instruction(reader.size, Operation.ADDRESS, register=reader.base)
    if opcode == 0x03 and wide:
        if reader.is_register:
            return Instruction(
                reader.size, Operation.ADDRESS, register=reader.field, base=reader.field, index=reader.base
            )
        return _load(reader, thread, Operation.ADD_LOADED)
    if opcode in (0x81, 0x83) and reader.is_register:
        if extension in (0, 5) and wide:
            offset = number if extension == 0 else -number
            return Instruction(
                reader.size, Operation.ADDRESS, register=reader.base, base=reader.base, offset=offset
            )
        if extension == 4 and number == 1:  # the lowest bit alone: that is what the value is of
            return Instruction(reader.size)
    if opcode in (0xC0, 0xC1, 0xD0, 0xD1) and reader.is_register and extension in (5, 7):
        count = number & 63 if opcode in (0xC0, 0xC1) else 1
        return Instruction(reader.size, Operation.SHIFT, register=reader.base, base=reader.base, offset=count)
    if opcode == 0xFF and extension in (2, 4):
        kind = Operation.CALL if extension == 2 else Operation.JUMP
        return Instruction(
            reader.size, kind, base=reader.base, index=reader.index, offset=reader.offset,
            memory=not reader.is_register,
        )  # fmt: skip
    stores = opcode in (0x88, 0x89, 0xC6, 0xC7) or (opcode == 0xFF and extension == 6)
    return Instruction(reader.size, writes=() if stores and not reader.is_register else reader.written())


def _test(reader: _Reader, opcode: int, thread: bool) -> Instruction:
    if reader.peek() > 1:  # only /0 and /1 (test) have an immediate
        more = (RAX, RDX) if reader.peek() > 3 else ()  # mul, div
        reader.modrm()
        return Instruction(reader.size, writes=(*reader.written(), *more))
    mask = reader.modrm(1 if opcode == 0xF6 else reader.full)
    if reader.is_register or not mask:
        return Instruction(reader.size)
    found = _load(reader, thread)
    return Instruction(
        found.size, found.operation, None, found.base, found.index, found.offset,
        bit=(mask & -mask).bit_length() - 1,
    )  # fmt: skip


def _two_byte(reader: _Reader, opcode: int, thread: bool) -> Instruction:
    reader.modrm(1 if opcode in _MODRM_8_0F else 0)
    if opcode in (0xB6, 0xB7, 0xBE, 0xBF):  # movzx, movsx
        return _load(reader, thread)
    if 0x18 <= opcode <= 0x1F or opcode == 0xA3:  # hints and nops, bt
        return Instruction(reader.size)
    more = (RAX,) if opcode in (0xB0, 0xB1) else ()
    return Instruction(reader.size, writes=(*reader.written(), *more))


def _load(reader: _Reader, thread: bool, kind: Operation = Operation.LOAD) -> Instruction:
    """An instruction whose second operand is read: from memory, or from a register as it is."""
    if reader.index == -1 or (thread and reader.index is not None):
        return Instruction(reader.size, writes=(reader.field,))
    if reader.is_register:
        return Instruction(reader.size, Operation.ADDRESS, register=reader.field, base=reader.base)
    if thread and reader.base is None and not reader.offset and kind is Operation.LOAD:
        # The word at fs:0 is the thread pointer itself (psABI, TLS variant II).
        return Instruction(reader.size, Operation.ADDRESS, register=reader.field, base=THREAD)
    index = THREAD if thread else reader.index
    return Instruction(
        reader.size, kind, register=reader.field, base=reader.base, index=index, offset=reader.offset
    )


def targets(code: bytes, address: int) -> Iterator[tuple[int, bool]]:
    """Yield where each possible call or jump in `code` leads, in order, and whether a word there says it.

    Every byte may be the first of one here: lengths cannot go wrong then, and the caller knows what is
    the beginning of a function, which four other bytes in a row hardly ever name.
    """
    for match in _RELATIVE.finditer(code):
        number = 1 if match[1] is not None else 2
        offset = int.from_bytes(match[number], "little", signed=True)
        yield address + match.end(number) + offset, number == 2
