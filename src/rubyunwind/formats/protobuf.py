# SPDX-License-Identifier: Apache-2.0
"""The part of protocol buffers' wire format that pprof needs: writing of messages, field by field.

Zeros, empty strings and empty lists are left out, as proto3 has it.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Message", "varint"]

# Wire types: https://protobuf.dev/programming-guides/encoding/#structure
_VARINT = 0
_LENGTH = 2

_U64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Seven bits a byte, low ones first. A negative number has the ten bytes of its 64-bit complement.

    OverflowError when it does not fit into 64 bits.
    """
    if 0 <= value < 0x80:
        return value.to_bytes(1, "little")
    if not -(1 << 63) <= value <= _U64:
        raise OverflowError(f"{value} does not fit into the 64 bits of a varint")
    value &= _U64
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Message:
    """A message that grows by its fields; `bytes(message)` is its encoding."""

    def __init__(self) -> None:
        self._encoded = bytearray()

    def __bytes__(self) -> bytes:
        return bytes(self._encoded)

    def integer(self, field: int, value: int) -> Message:
        """An int64, uint64 or bool field."""
        if value:
            self._encoded += varint(field << 3 | _VARINT) + varint(value)
        return self

    def integers(self, field: int, values: Iterable[int]) -> Message:
        """A repeated int64 or uint64 field, packed."""
        payload = b"".join(map(varint, values))
        if payload:
            self.chunk(field, payload)
        return self

    def chunk(self, field: int, payload: bytes) -> Message:
        """One element of a repeated string or message field; it is written even when it is empty."""
        self._encoded += varint(field << 3 | _LENGTH) + varint(len(payload)) + payload
        return self

    def message(self, field: int, message: Message) -> Message:
        """A field that is a message, or one element of a repeated one."""
        return self.chunk(field, bytes(message))
