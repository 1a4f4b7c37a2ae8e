# SPDX-License-Identifier: Apache-2.0
"""ProcessImage: what unwinding and naming need of a process, whether it runs or left a core file."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Protocol

from rubyunwind.elf.file import ElfFile
from rubyunwind.process.core import CoreFile
from rubyunwind.process.identity import witness
from rubyunwind.process.mapped_files import NotLocal, open_mapped
from rubyunwind.process.mappings import Mapping, parse_code, parse_device, parse_mappings, read_maps
from rubyunwind.process.memory import LiveMemory, Memory, MemoryReadError
from rubyunwind.process.mounts import Mounts, mounts

__all__ = ["CoreProcess", "LiveProcess", "ProcessImage"]

_READABLE = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ r", re.MULTILINE)
_DEVICES = re.compile(rb" ([0-9a-f]+:[0-9a-f]+) [1-9]")  # of files: whose inode is not 0
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
        self._mounts: Mounts | None = mounts.__enter__()

    def mappings(self) -> list[Mapping]:
        """See ProcessImage.mappings; read anew each time."""
        text = self._maps()
        self._note(text)
        return parse_mappings(text)

    def code(self, *, again: bool = True) -> list[Mapping]:
        """See ProcessImage.code."""
        text = self._text if self._text and not again else self._maps()
        self._text = b""
        self._note(text)
        return parse_code(text)

    def first_address(self) -> int:
        """Return an address that can be read as long as the process runs its present program; 0: none."""
        self._text = self._maps()
        self._note(self._text)
        distant = {start for start, _, _ in self.memory.distant}
        found = (int(match[1], 16) for match in _READABLE.finditer(self._text))
        return next((start for start in found if start not in distant), 0)

    def changed(self) -> bool:
        """See ProcessImage.changed; a tenth of the work of `mappings`."""
        return _digest(self._maps()) != self._digest

    def _note(self, text: bytes) -> None:
        """Note what was read last, and which memory is of files whose server may not answer."""
        self._digest = _digest(text)
        devices = {parse_device(device) for device in set(_DEVICES.findall(text))}
        distant = mounts.distant(self.pid, devices)
        self.memory.distant = [
            (mapping.start, mapping.end, mapping.device)
            for mapping in (parse_mappings(text) if distant else ())
            if mapping.device in distant and mapping.is_file
        ]

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
        seen = witness(self.pid)
        try:
            return ElfFile.from_fd(open_mapped(seen, mapping), mapping.path)
        except NotLocal:
            from rubyunwind.process.deputy import deputies

            return ElfFile.of(deputies.open(seen, mapping), mapping.path)

    def close(self) -> None:
        """See ProcessImage.close."""
        self.memory.close()
        if self._mounts is not None:
            self._mounts.__exit__()
            self._mounts = None

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
