# SPDX-License-Identifier: Apache-2.0
"""What a file is called: GNU build ids, and the file ids that the kernel side's maps are keyed by."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError

__all__ = ["build_id", "file_id"]

# elf.h
SHT_NOTE = 7
PT_NOTE = 4
NT_GNU_BUILD_ID = 3

MAX_NOTES = 1 << 20  # bytes; the notes of a large program with probes are about 10 KiB
MAX_BUILD_ID = 64  # bytes; linkers make 8 to 32
_NHDR = struct.Struct("<III")  # Elf64_Nhdr: name size, description size, type


def build_id(elf: ElfFile) -> bytes | None:
    """Return the GNU build id (20 bytes mostly), or None when the file has none that can be read."""
    areas = [(s.offset, s.size) for s in elf.sections if s.type == SHT_NOTE]
    areas += [(s.offset, s.file_size) for s in elf.segments if s.type == PT_NOTE]
    left = MAX_NOTES  # in all: there may be thousands of headers for one place
    for offset, size in areas:
        try:
            notes = elf.read(offset, min(size, left))
        except DecodeError:
            continue
        left -= len(notes)
        for name, kind, description in _notes(notes):
            if name == b"GNU\0" and kind == NT_GNU_BUILD_ID and 0 < len(description) <= MAX_BUILD_ID:
                return description
    return None


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + _NHDR.size <= len(data):
        name_size, size, kind = _NHDR.unpack_from(data, at)
        name_at = at + _NHDR.size
        start = name_at + (name_size + 3) // 4 * 4
        at = start + (size + 3) // 4 * 4
        if start + size > len(data):
            return
        yield data[name_at : name_at + name_size], kind, data[start : start + size]


def file_id(elf: ElfFile) -> int:
    """Return the file's 64-bit id, which is never 0 (that means an unknown file).

    It is the first 8 bytes, big-endian, of a SHA-256 over the first 4096 bytes, the last 4096 bytes
    (they overlap in a small file, which counts as a whole twice) and the size as 8 big-endian bytes.
    """
    piece = min(elf.size, 4096)
    digest = hashlib.sha256(elf.read(0, piece))
    digest.update(elf.read(elf.size - piece, piece))
    digest.update(elf.size.to_bytes(8, "big"))
    return int.from_bytes(digest.digest()[:8], "big") or 1
