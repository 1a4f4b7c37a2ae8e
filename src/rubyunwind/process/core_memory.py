# SPDX-License-Identifier: Apache-2.0
"""The memory of a core file: what was dumped, and, where allowed, what the mapped files still have."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rubyunwind.errors import DecodeError
from rubyunwind.process.memory import MemoryReadError

__all__ = ["CoreMemory", "CoreSegment"]

MAX_READ = 256 << 20
"""Largest piece that is read at once, in bytes."""

# elf.h
PF_X, PF_W, PF_R = 1, 2, 4


class CoreSegment(NamedTuple):
    """Addresses [start, end); the first `stored` bytes of them are in the core file, at `offset`.

    `truncated`: the dump had more of them, but the file ends before.
    """

    start: int
    end: int
    offset: int
    stored: int
    flags: int
    truncated: bool = False


class CoreMemory:
    """Memory over the segments of a core file: see process.memory.Memory. Owns nothing.

    `read_file(offset, length)` reads the core file. `elsewhere(address, length)` is asked for what was not
    dumped; it gives the bytes or raises MemoryReadError with the reason.
    """

    def __init__(
        self,
        read_file: Callable[[int, int], bytes],
        segments: Sequence[CoreSegment],
        elsewhere: Callable[[int, int], bytes] | None = None,
    ) -> None:
        self._read_file = read_file
        self._elsewhere = elsewhere
        self.segments = tuple(sorted(segment for segment in segments if segment.end > segment.start))
        self._starts = [segment.start for segment in self.segments]

    def segment_at(self, address: int) -> CoreSegment | None:
        """Return the segment that holds an address, dumped or not."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address < self.segments[index].end:
            return self.segments[index]
        return None

    def read(self, address: int, length: int) -> bytes:
        """See Memory.read. Pages that were left out of the dump come from the mapped file, if it is known."""
        return self._read(address, length, self._elsewhere)

    def dumped(self, address: int, length: int) -> bytes:
        """Read like `read`, but only what the core file itself holds."""
        return self._read(address, length, None)

    def u64(self, address: int) -> int:
        """See Memory.u64."""
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def u32(self, address: int) -> int:
        """See Memory.u32."""
        return int(struct.unpack("<I", self.read(address, 4))[0])

    def _read(self, address: int, length: int, elsewhere: Callable[[int, int], bytes] | None) -> bytes:
        if not 0 <= length <= MAX_READ or not 0 <= address <= (1 << 64) - length:
            raise MemoryReadError(address, length, "no such range of addresses")
        parts = []
        at, end = address, address + length
        while at < end:
            index = bisect_right(self._starts, at) - 1
            segment = self.segments[index] if index >= 0 else None
            if segment is not None and at < segment.start + segment.stored:
                piece = min(end, segment.start + segment.stored) - at
                try:
                    parts.append(self._read_file(segment.offset + at - segment.start, piece))
                except DecodeError as error:
                    raise MemoryReadError(address, length, str(error)) from None
            else:
                following = self._starts[index + 1] if index + 1 < len(self._starts) else end
                piece = min(end, following) - at
                if segment is not None and at < segment.end:
                    piece = min(piece, segment.end - at)
                    if segment.truncated:
                        raise MemoryReadError(
                            address, length, "not dumped: the core file is truncated before it"
                        )
                if elsewhere is None:
                    raise MemoryReadError(address, length, "not dumped")
                parts.append(elsewhere(at, piece))
            at += piece
        return parts[0] if len(parts) == 1 else b"".join(parts)
