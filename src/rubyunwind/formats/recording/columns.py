# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts in columns: what the contents of a chunk are made of.

A column is one letter for the width of its numbers (those of the array module: b, h, i, q signed, B, H, I, Q
not) and the numbers, little-endian; how many there are is said elsewhere. Texts are a column of lengths, the
number of all bytes, and the bytes, UTF-8 in which surrogates may stand.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

from rubyunwind.formats.recording.chunks import Damage

__all__ = ["ColumnReader", "ColumnWriter"]

_COUNT = struct.Struct("<I")
_BASE = struct.Struct("<q")
_UNSIGNED, _SIGNED = "BHIQ", "bhiq"
_BIG_ENDIAN = sys.byteorder == "big"


class ColumnWriter:
    """Puts columns one behind the other. Numbers have to fit into 64 bits, else OverflowError is raised."""

    def __init__(self) -> None:
        self._out = bytearray()

    def count(self, number: int) -> None:
        """Write one number of 32 bits."""
        self._out += _COUNT.pack(number)

    def base(self, number: int) -> None:
        """Write one signed number of 64 bits."""
        self._out += _BASE.pack(number)

    def column(self, values: Sequence[int]) -> None:
        """Write numbers in the smallest width that all of them fit."""
        low, high = (min(values), max(values)) if values else (0, 0)
        if low < 0:
            reach = max(-low - 1, high)
            letter = next((c for c in _SIGNED if reach < 1 << (8 * array(c).itemsize - 1)), "q")
        else:
            letter = next((c for c in _UNSIGNED if high < 1 << 8 * array(c).itemsize), "Q")
        packed = array(letter, values)
        if _BIG_ENDIAN:
            packed.byteswap()
        self._out += letter.encode()
        self._out += packed.tobytes()

    def texts(self, texts: Iterable[bytes]) -> None:
        """Write texts, how many there are first."""
        texts = list(texts)
        self.count(len(texts))
        self.column([len(text) for text in texts])
        self.count(sum(map(len, texts)))
        self._out += b"".join(texts)

    def finish(self) -> bytes:
        """Return everything that was written."""
        return bytes(self._out)


class ColumnReader:
    """Takes columns out of the contents of a chunk. Raises Damage for what cannot be one."""

    def __init__(self, plain: bytes) -> None:
        self._plain = plain
        self._at = 0

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._plain):
            raise Damage(f"a chunk ends {end - len(self._plain)} bytes early")
        taken = self._plain[self._at : end]
        self._at = end
        return taken

    def count(self) -> int:
        """Read one number of 32 bits."""
        return int(_COUNT.unpack(self._take(_COUNT.size))[0])

    def base(self) -> int:
        """Read one signed number of 64 bits."""
        return int(_BASE.unpack(self._take(_BASE.size))[0])

    def column(self, count: int) -> array[int]:
        """Read `count` numbers. No more memory is asked for than the chunk has bytes."""
        letter = self._take(1).decode("latin-1")
        if letter not in _UNSIGNED + _SIGNED:
            raise Damage(f"a column of numbers of an unknown width, {letter!r}")
        numbers = array(letter)
        numbers.frombytes(self._take(count * numbers.itemsize))
        if _BIG_ENDIAN:
            numbers.byteswap()
        return numbers

    def indices(self, count: int, limit: int, what: str) -> array[int]:
        """Read `count` numbers that lie from 0 to below `limit`."""
        numbers = self.column(count)
        if numbers and not (min(numbers) >= 0 and max(numbers) < limit):
            raise Damage(f"a chunk refers to a {what} that the file does not have")
        return numbers

    def texts(self) -> list[str]:
        """Read texts."""
        count = self.count()
        lengths = self.column(count)
        blob = self._take(self.count())
        found = []
        at = 0
        for length in lengths:
            if length < 0:
                raise Damage("a text of less than no bytes")
            found.append(blob[at : at + length].decode("utf-8", "surrogatepass"))
            at += length
        if at != len(blob):
            raise Damage(f"texts of {at} bytes in a table of {len(blob)}")
        return found

    def finish(self) -> None:
        """Raise Damage if something is left."""
        if self._at != len(self._plain):
            raise Damage(f"a chunk has {len(self._plain) - self._at} bytes too many")
