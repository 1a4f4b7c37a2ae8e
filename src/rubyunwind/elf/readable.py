# SPDX-License-Identifier: Apache-2.0
"""What an ELF file is read from when it is neither a descriptor nor bytes."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Readable"]


class Readable(Protocol):
    """A file that somebody else reads. `stamp` is as in ElfFile; `read` may return less, and raise OSError.

    `trouble` says why it can be read no longer, "" if it can.
    """

    size: int
    stamp: tuple[int, int, int, int]
    trouble: str

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset."""

    def close(self) -> None:
        """Let go of it."""
