# SPDX-License-Identifier: Apache-2.0
"""The seed image: what the unwinders see of a stopped process, in a file that C and Python read.

Records of u32 kind, u32 length and a payload padded to 8 bytes, all little endian; steps.c reads the same.

    NAME     text                                       begins an image
    ENTRY    map (char[32]), u32 key and value size,    one element of a map
             key, value, each padded to 8 bytes
    ROWS     map (char[32]), u64 file id, u32 count,    an inner array of stack deltas
             u32 0, StackDelta[]
    MEMORY   u64 address, bytes                         pieces ascend and do not touch
    TASK     struct host_task
    CONTEXT  u64 address, identifier table;             the execution context, and how many frames the two
             u32 frames, frames of the context alone    kinds of run give when nothing is changed
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rubyunwind.process.memory import MemoryReadError

NAME, ENTRY, ROWS, MEMORY, TASK, CONTEXT = range(1, 7)
_HEAD = struct.Struct("<II")
_CONTEXT = struct.Struct("<QQII")


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // 8) * 8, b"\0")


def record(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + _padded(payload)


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        kind, length = _HEAD.unpack_from(data, at)
        yield kind, data[at + _HEAD.size : at + _HEAD.size + length]
        at += _HEAD.size + -(-length // 8) * 8


@dataclass
class Image:
    """One stopped thread."""

    name: str
    entries: list[tuple[str, bytes, bytes]] = field(default_factory=list)
    rows: list[tuple[str, int, bytes]] = field(default_factory=list)
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    task: bytes = b""
    context: int = 0
    identifiers: int = 0
    frames: tuple[int, int] = (0, 0)

    def to_bytes(self) -> bytes:
        parts = [record(NAME, self.name.encode())]
        for name, key, value in self.entries:
            sizes = struct.pack("<II", len(key), len(value))
            parts.append(
                record(ENTRY, name.encode().ljust(32, b"\0") + sizes + _padded(key) + _padded(value))
            )
        for name, file_id, rows in self.rows:
            head = struct.pack("<QII", file_id, len(rows) // 4, 0)
            parts.append(record(ROWS, name.encode().ljust(32, b"\0") + head + rows))
        parts += [record(MEMORY, struct.pack("<Q", address) + data) for address, data in self.pieces]
        parts.append(record(TASK, self.task))
        parts.append(record(CONTEXT, _CONTEXT.pack(self.context, self.identifiers, *self.frames)))
        return b"".join(parts)

    def value(self, map_name: str) -> bytes:
        return next(value for name, _, value in self.entries if name == map_name)


def read_images(data: bytes) -> list[Image]:
    """Read what Image.to_bytes gave, any number of times in a row; rows stay out."""
    images: list[Image] = []
    for kind, payload in records(data):
        if kind == NAME:
            images.append(Image(payload.decode()))
        elif kind == ENTRY:
            key_size, value_size = struct.unpack_from("<II", payload, 32)
            key = payload[40 : 40 + key_size]
            start = 40 + -(-key_size // 8) * 8
            name = payload[:32].rstrip(b"\0").decode()
            images[-1].entries.append((name, key, payload[start : start + value_size]))
        elif kind == MEMORY:
            images[-1].pieces.append((int.from_bytes(payload[:8], "little"), payload[8:]))
        elif kind == TASK:
            images[-1].task = payload
        elif kind == CONTEXT:
            context, identifiers, *frames = _CONTEXT.unpack(payload)
            images[-1].context, images[-1].identifiers = context, identifiers
            images[-1].frames = (frames[0], frames[1])
    return images


class PieceMemory:
    """Memory over the pieces of an image, which may be changed; counts reads and the bytes they gave."""

    def __init__(self, pieces: Iterable[tuple[int, bytes]]) -> None:
        self.pieces = [(address, bytearray(data)) for address, data in sorted(pieces)]
        self._starts = [address for address, _ in self.pieces]
        self.reads = 0

    def read(self, address: int, length: int) -> bytes:
        self.reads += 1
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and length >= 0:
            start, data = self.pieces[index]
            if address + length <= start + len(data):
                return bytes(data[address - start : address - start + length])
        raise MemoryReadError(address, length, "not in the image")

    def u64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little")
