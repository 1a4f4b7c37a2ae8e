# SPDX-License-Identifier: Apache-2.0
"""Value: where a register's contents come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

__all__ = ["Kind", "Value", "add", "constant"]

_MASK = (1 << 64) - 1
DEEPEST = 8  # loads of loads; `during_gc` behind a pointer in a table takes four


class Kind(Enum):
    """What `Value.offset` counts from."""

    CONSTANT = auto()  # nothing: a number, or an address of the file
    THREAD = auto()  # the thread pointer, and `inner` if there is one
    MODULE = auto()  # the thread-local block that the {module, offset} words at `slot` name
    DESCRIPTOR = auto()  # the offset that the TLS descriptor at `slot` gives
    LOADED = auto()  # the word at the address `inner`


@dataclass(frozen=True, slots=True)
class Value:
    """A number that is known, or known by how to get it. `shift`: bits that were cut off on the right."""

    kind: Kind
    offset: int = 0
    inner: Value | None = None
    slot: int = 0
    shift: int = 0
    depth: int = 0

    def plus(self, offset: int) -> Value | None:
        """Return the value with `offset` added; None once it was shifted."""
        if not offset:
            return self
        if self.shift:
            return None
        total = (self.offset + offset) & _MASK
        if self.kind is not Kind.CONSTANT and total >> 63:
            total -= 1 << 64
        return replace(self, offset=total)

    def loaded(self) -> Value | None:
        """Return what lies at this address; None when the chain of loads grows too long."""
        if self.shift or self.depth >= DEEPEST:
            return None
        return Value(Kind.LOADED, inner=self, depth=self.depth + 1)

    @property
    def path(self) -> tuple[Value, tuple[int, ...]]:
        """The address that the first load was from, and what was added before each later load and at last."""
        steps: list[int] = []
        value = self
        while value.kind is Kind.LOADED and value.inner is not None:
            steps.append(value.offset)
            value = value.inner
        return value, tuple(reversed(steps))


def constant(number: int) -> Value:
    """Return a number as a value."""
    return Value(Kind.CONSTANT, number & _MASK)


def add(left: Value | None, right: Value | None) -> Value | None:
    """Return the sum where it means something: with a number, or of the thread pointer and an offset."""
    if left is None or right is None:
        return None
    if left.kind is Kind.CONSTANT and not left.shift:
        left, right = right, left
    if right.kind is Kind.CONSTANT and not right.shift:
        number = right.offset
        return left.plus(number - (1 << 64) if number >> 63 else number)
    if right.kind is Kind.THREAD:
        left, right = right, left
    if left.kind is not Kind.THREAD or left.inner is not None or left.shift or right.shift:
        return None
    if right.kind not in (Kind.DESCRIPTOR, Kind.LOADED):
        return None
    return Value(Kind.THREAD, left.offset + right.offset, inner=replace(right, offset=0), depth=right.depth)
