# SPDX-License-Identifier: Apache-2.0
"""How everything that interprets a Ruby process reads it: the Memory protocol, and a live process."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, Protocol

from rubyunwind.errors import AttachError, GivenUp, RubyUnwindError

if TYPE_CHECKING:
    from rubyunwind.process.deputy import Deputies

__all__ = ["LiveMemory", "Memory", "MemoryReadError"]


class MemoryReadError(RubyUnwindError):
    """`length` bytes at `address` could not be read: unmapped, or the process is gone."""

    def __init__(self, address: int, length: int, reason: str) -> None:
        super().__init__(f"cannot read {length} bytes at {address:#x}: {reason}")
        self.address = address
        self.length = length


class Memory(Protocol):
    """A readable address space: a live process, a core file, or a test's fixture."""

    def read(self, address: int, length: int) -> bytes:
        """Return exactly `length` bytes at `address`; MemoryReadError if any is unreadable."""

    def u64(self, address: int) -> int:
        """Return the little-endian u64 at `address`."""

    def u32(self, address: int) -> int:
        """Return the little-endian u32 at `address`."""


class LiveMemory:
    """Memory of a running process through /proc/PID/mem. Owns one descriptor; a context manager.

    The descriptor stays bound to the address space that was there when it was opened: after exec it
    reads nothing, so two programs with one pid are never mixed. What is in a range of `distant` (start, end,
    device of the file) is of a file whose server may not answer: a deputy reads it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.distant: list[tuple[int, int, int]] = []
        self._fd = -1
        self._deputies: Deputies | None = None  # held while memory is read by one
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            advice = (
                "run as root or with CAP_SYS_PTRACE"
                if error.errno in (errno.EACCES, errno.EPERM)
                else "it has ended"
            )
            raise AttachError(
                f"process {pid}: its memory cannot be opened: {error.strerror}; {advice}"
            ) from None

    @property
    def fd(self) -> int:
        """The descriptor of the memory, borrowed; -1 once closed."""
        return self._fd

    def read(self, address: int, length: int) -> bytes:
        """See Memory.read."""
        try:
            data = os.pread(self._fd, length, address) if not self.distant else self._read(address, length)
        except (OSError, OverflowError, ValueError) as error:
            raise MemoryReadError(address, length, getattr(error, "strerror", None) or str(error)) from None
        if len(data) != length:
            raise MemoryReadError(address, length, f"only {len(data)} are mapped, or the process is gone")
        return data

    def _read(self, address: int, length: int) -> bytes:
        for start, end, device in self.distant:
            if address < end and start < address + length:
                if self._deputies is None:
                    from rubyunwind.process.deputy import deputies

                    deputies.hold()
                    self._deputies = deputies
                try:
                    return self._deputies.read_memory(self._fd, device, address, length)
                except GivenUp as error:
                    raise OSError(errno.EIO, str(error)) from None
        return os.pread(self._fd, length, address)

    def u64(self, address: int) -> int:
        """See Memory.u64."""
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def u32(self, address: int) -> int:
        """See Memory.u32."""
        return int(struct.unpack("<I", self.read(address, 4))[0])

    def close(self) -> None:
        """Close the descriptor; closing twice is harmless."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._deputies is not None:
            self._deputies.release()
            self._deputies = None

    def __enter__(self) -> LiveMemory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
