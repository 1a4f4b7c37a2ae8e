# SPDX-License-Identifier: Apache-2.0
"""Covers address ranges with prefixes, for maps of type LPM_TRIE."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["cover", "pid_page_key", "pid_page_keys"]

# struct PIDPage of support/ebpf/types.h: prefixLen in the machine's order, pid and page big-endian, since
# the trie compares bytes from the first on.
_PID_PAGE = (struct.Struct("=I"), struct.Struct(">IQ"))
PID_BITS = 32
PAGE_BITS = 64


def cover(start: int, end: int, bits: int = PAGE_BITS) -> Iterator[tuple[int, int]]:
    """Yield the fewest (prefix length, first address) pairs that cover [start, end) of `bits`-wide numbers.

    Each block is the largest power of two that `start` is aligned to and that fits: at most 2 * bits blocks.
    """
    if not 0 <= start <= end <= 1 << bits:
        raise ValueError(f"[{start:#x}, {end:#x}) is no range of {bits}-bit numbers")
    while start < end:
        aligned = start & -start or 1 << bits
        size = min(aligned, 1 << (end - start).bit_length() - 1)
        yield bits - (size.bit_length() - 1), start
        start += size


def pid_page_key(pid: int, address: int = 0, length: int = PAGE_BITS) -> bytes:
    """Return the key of `pid` and the first `length` bits of `address`.

    Address 0 with all 64 bits is the key that marks a process as known.
    """
    head, tail = _PID_PAGE
    return head.pack(PID_BITS + length) + tail.pack(pid, address)


def pid_page_keys(pid: int, start: int, end: int) -> list[bytes]:
    """Return the keys that cover the mapping [start, end) of process `pid`."""
    if not 0 <= start <= end <= 1 << PAGE_BITS:
        raise ValueError(f"[{start:#x}, {end:#x}) is no range of addresses")
    # As pid_page_key of what `cover` yields. A Ruby that starts has some sixty of them.
    head, tail = _PID_PAGE[0].pack, _PID_PAGE[1].pack
    keys = []
    while start < end:
        size = min(start & -start or 1 << PAGE_BITS, 1 << (end - start).bit_length() - 1)
        keys.append(head(PID_BITS + PAGE_BITS - (size.bit_length() - 1)) + tail(pid, start))
        start += size
    return keys
