# SPDX-License-Identifier: Apache-2.0
"""ProcessImage: what unwinding and naming need of a process, whether it runs or left a core file."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Protocol

from rubyunwind.elf.file import ElfFile
from rubyunwind.process.core import CoreFile
from rubyunwind.process.identity import witness
from rubyunwind.process.mappings import Mapping, open_mapped, parse_code, parse_mappings, read_maps
from rubyunwind.process.memory import LiveMemory, Memory, MemoryReadError

__all__ = ["CoreProcess", "LiveProcess", "ProcessImage"]

_READABLE = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ r", re.MULTILINE)
_VDSO = "[vdso]"
_MAX_VDSO = 1 << 20  # bytes; it has some 8 KiB


class ProcessImage(Protocol):
    """A process, live or dead."""

    @property
    def pid(self) -> int:
        """Its id; of a core, the one it had."""

    @property
    def memory(self) -> Memory:
        """Its address space."""

    def mappings(self) -> list[Mapping]:
        """Return what it has mapped, in address order. Raises AttachError when it is gone."""

    def code(self, *, again: bool = True) -> list[Mapping]:
        """Return those mappings that are of code, or reserved for it: see parse_code. Raises AttachError.

        Not `again`: as they were when they were last looked at.
        """

    def changed(self) -> bool:
        """Whether `mappings` and `code` would return something else than they have last."""

    def open(self, mapping: Mapping) -> ElfFile:
        """Return the ELF file behind a mapping (the vdso, too); the caller closes it.

        Raises AttachError, DecodeError or OSError.
        """

    def close(self) -> None:
        """Give back what it holds open; twice is harmless."""


class LiveProcess:
    """A running process; a context manager. Raises AttachError when its memory may not be read."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.memory = LiveMemory(witness(pid))
        self._digest = self._text = b""

    def mappings(self) -> list[Mapping]:
        """See ProcessImage.mappings; read anew each time."""
        text = self._maps()
        self._digest = _digest(text)
        return parse_mappings(text)

    def code(self, *, again: bool = True) -> list[Mapping]:
        """See ProcessImage.code."""
        text = self._text if self._text and not again else self._maps()
        self._text = b""
        self._digest = _digest(text)
        return parse_code(text)

    def first_address(self) -> int:
        """Return an address that can be read as long as the process runs its present program; 0: none."""
        self._text = self._maps()
        found = _READABLE.search(self._text)
        return int(found[1], 16) if found else 0

    def changed(self) -> bool:
        """See ProcessImage.changed; a tenth of the work of `mappings`."""
        return _digest(self._maps()) != self._digest

    def _maps(self) -> bytes:
        """Return the maps file of the process; that of its main thread is empty when only others are left."""
        return read_maps(self.pid) or read_maps(witness(self.pid))

    def open(self, mapping: Mapping) -> ElfFile:
        """See ProcessImage.open."""
        if mapping.path == _VDSO:
            length = min(mapping.end - mapping.start, _MAX_VDSO)
            try:
                return ElfFile(self.memory.read(mapping.start, length), _VDSO)
            except MemoryReadError as error:
                raise OSError(str(error)) from None
        return ElfFile.from_fd(open_mapped(witness(self.pid), mapping), mapping.path)

    def close(self) -> None:
        """See ProcessImage.close."""
        self.memory.close()

    def __enter__(self) -> LiveProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class CoreProcess:
    """The process that a core file was written of. Takes the core over; a context manager."""

    def __init__(self, core: CoreFile) -> None:
        self.core = core
        self.pid = core.pid
        self.memory = core.memory

    def mappings(self) -> list[Mapping]:
        """See ProcessImage.mappings; always the same."""
        return self.core.mappings

    def code(self, *, again: bool = True) -> list[Mapping]:
        """See ProcessImage.code; all there are, as little may be left of them."""
        return self.core.mappings

    def changed(self) -> bool:
        """See ProcessImage.changed: it never does."""
        return False

    def open(self, mapping: Mapping) -> ElfFile:
        """See ProcessImage.open: the file if it is still the one that was mapped, else what was dumped."""
        return self.core.image(mapping)

    def close(self) -> None:
        """See ProcessImage.close."""
        self.core.close()

    def __enter__(self) -> CoreProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()
