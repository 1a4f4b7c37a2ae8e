# SPDX-License-Identifier: Apache-2.0
"""Instruction: what one machine instruction does, as far as a walk cares, the same for both machines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["THREAD", "Instruction", "Operation"]

THREAD = 32
"""The thread pointer as a register: fs_base, tpidr_el0. Below it are the general registers."""


class Operation(Enum):
    """What an instruction does with its operands; `address` stands for base + index + offset."""

    OTHER = auto()  # nothing that is followed
    ADDRESS = auto()  # register = address: moves, additions, constants
    INSERT = auto()  # 16 bits of the register = offset, from `bit` on
    LOAD = auto()  # register = *address; without a register it is only looked at
    ADD_LOADED = auto()  # register = register + *address
    SHIFT = auto()  # register = base >> offset
    CALL = auto()
    JUMP = auto()
    RETURN = auto()


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of `size` bytes. Registers by number, None where there is none.

    `address` is base + index + offset; that of a call or jump is where it goes, with `memory` the word there
    says it. `writes` are registers that get a value which is not followed. `bit` is the lowest bit that a
    test in memory asks for. A conditional jump is one that is not taken: OTHER.
    """

    size: int
    operation: Operation = Operation.OTHER
    register: int | None = None
    base: int | None = None
    index: int | None = None
    offset: int = 0
    memory: bool = False
    bit: int = 0
    writes: tuple[int, ...] = ()
