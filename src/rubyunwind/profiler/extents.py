# SPDX-License-Identifier: Apache-2.0
"""Room in an array: which of its elements are taken, in pieces that come and go."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["Extents"]


class Extents:
    """Hands out pieces of `size` elements, the lowest that fits, and takes them back."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size)] if size else []  # first element, length; in order

    @property
    def free(self) -> int:
        """How many elements are not taken."""
        return sum(length for _, length in self._free)

    def take(self, count: int) -> int | None:
        """Return the first element of a piece that is now taken; None if none is that long."""
        for at, (first, length) in enumerate(self._free):
            if length >= count:
                rest = [(first + count, length - count)] if length > count else []
                self._free[at : at + 1] = rest
                return first
        return None

    def give_back(self, first: int, count: int) -> None:
        """Give back a piece, or a part of one; it joins what is free beside it."""
        at = bisect_left(self._free, (first, 0))
        end = first + count
        low = high = at
        if at and sum(self._free[at - 1]) == first:
            low, first = at - 1, self._free[at - 1][0]
        if at < len(self._free) and self._free[at][0] == end:
            high, end = at + 1, sum(self._free[at])
        self._free[low:high] = [(first, end - first)]
