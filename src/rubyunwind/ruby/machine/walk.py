# SPDX-License-Identifier: Apache-2.0
"""A walk: what a function reads and returns on its straight way, with no jump taken on a condition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rubyunwind.ruby.machine.instruction import THREAD, Instruction, Operation
from rubyunwind.ruby.machine.value import Kind, Value, add, constant

if TYPE_CHECKING:
    from rubyunwind.ruby.machine.code import Code

__all__ = ["MOST_INSTRUCTIONS", "Trace", "trace"]

MOST_INSTRUCTIONS = 300
"""Instructions of one walk, those of functions that are called included."""

_DEEPEST = 2  # calls in calls; rb_current_ec_noinline is one
_PART = 60  # instructions of one function that is called
_ZERO = constant(0)


@dataclass(frozen=True, slots=True)
class Trace:
    """`reads` are the addresses that were read, in order, with the lowest bit that was tested there.

    `result` is what the function returns, None when the walk did not get there or that is not known.
    """

    reads: tuple[tuple[Value, int], ...]
    result: Value | None


def trace(code: Code, start: int) -> Trace:
    """Walk the function at `start`."""
    walk = _Walk(code)
    result = walk.function(start, {THREAD: Value(Kind.THREAD)}, 0, MOST_INSTRUCTIONS)
    return Trace(tuple(walk.reads), result.get(code.machine.RESULT) if result is not None else None)


_Registers = dict[int, Value]


class _Walk:
    def __init__(self, code: Code) -> None:
        self._code = code
        self._left = MOST_INSTRUCTIONS
        self.reads: list[tuple[Value, int]] = []

    def function(self, address: int, registers: _Registers, depth: int, most: int) -> _Registers | None:
        """Follow a function until it returns; None when that cannot be followed. Changes `registers`."""
        end = max(self._left - most, 0)
        while self._left > end:
            self._left -= 1
            one = self._code.decode(address)
            if one is None:
                return None
            address += one.size
            if one.operation is Operation.RETURN:
                return registers
            if one.operation is Operation.JUMP:
                address = self._target(one, registers)
                if not address:
                    return None
            elif one.operation is Operation.CALL:
                registers = self._call(one, registers, depth)
            else:
                self._step(one, registers)
        return None

    def _address(self, one: Instruction, registers: _Registers) -> Value | None:
        value = registers.get(one.base) if one.base is not None else _ZERO
        if one.index is not None:
            value = add(value, registers.get(one.index))
        return value.plus(one.offset) if value is not None else None

    def _target(self, one: Instruction, registers: _Registers) -> int:
        """Return where a call or jump leads in this file, or 0."""
        where = self._address(one, registers)
        if where is None or where.shift:
            return 0
        if where.kind is Kind.LOADED and not one.memory and not where.offset and where.inner is not None:
            where = where.inner  # a pointer that was loaded before
        elif where.kind is not Kind.CONSTANT or not one.memory:
            return where.offset if where.kind is Kind.CONSTANT else 0
        return self._code.function_in(where.offset) if where.kind is Kind.CONSTANT else 0

    def _call(self, one: Instruction, registers: _Registers, depth: int) -> _Registers:
        machine = self._code.machine
        descriptor = _number(registers.get(machine.RESULT))
        if self._code.is_descriptor(descriptor):  # that call changes no other register (both psABIs)
            return {**registers, machine.RESULT: Value(Kind.DESCRIPTOR, slot=descriptor)}
        module = _number(registers.get(machine.ARGUMENT))
        result: Value | None = None
        if self._code.is_module(module):
            result = Value(Kind.MODULE, slot=module)
        elif depth < _DEEPEST:
            target = self._target(one, registers)
            after = self.function(target, dict(registers), depth + 1, _PART) if target else None
            result = after.get(machine.RESULT) if after is not None else None
        kept = {number: value for number, value in registers.items() if number not in machine.SCRATCH}
        return kept if result is None else {**kept, machine.RESULT: result}

    def _step(self, one: Instruction, registers: _Registers) -> None:
        value: Value | None = None
        if one.operation in (Operation.LOAD, Operation.ADD_LOADED):
            where = self._address(one, registers)
            if where is not None:
                self.reads.append((where, one.bit))
                value = where.loaded()
            if one.operation is Operation.ADD_LOADED and one.register is not None:
                value = add(registers.get(one.register), value)
        elif one.operation is Operation.ADDRESS:
            value = self._address(one, registers)
        elif one.operation is Operation.SHIFT and one.base is not None:
            source = registers.get(one.base)
            value = replace(source, shift=source.shift + one.offset) if source is not None else None
        elif one.operation is Operation.INSERT and one.register is not None:
            number = registers.get(one.register)
            if number is not None and number.kind is Kind.CONSTANT and not number.shift:
                value = constant(number.offset & ~(0xFFFF << one.bit) | one.offset << one.bit)
        for register in one.writes:
            registers.pop(register, None)
        if one.register is not None:
            if value is None:
                registers.pop(one.register, None)
            else:
                registers[one.register] = value


def _number(value: Value | None) -> int:
    return value.offset if value is not None and value.kind is Kind.CONSTANT and not value.shift else -1
