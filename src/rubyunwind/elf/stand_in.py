# SPDX-License-Identifier: Apache-2.0
"""What stands for a mapped file that cannot be read: it has an id and addresses, and nothing else."""

from __future__ import annotations

import struct

from rubyunwind.elf.file import EM_AARCH64, EM_X86_64, PF_X, PT_LOAD, ElfFile

__all__ = ["stand_in"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # elf.h: Elf64_Ehdr
_SEGMENT = struct.Struct("<IIQQQQQQ")  # elf.h: Elf64_Phdr
_ET_DYN = 3  # elf.h
_IDENT = b"\x7fELF\x02\x01\x01"  # 64-bit, little-endian, version 1
# No file is larger (MAX_LFS_FILESIZE of linux/fs.h).
_LARGEST = (1 << 63) - 1


def stand_in(name: str, key: bytes, machine: str) -> ElfFile:
    """Return an ELF file whose addresses are the offsets of the file that it stands for.

    Its id follows from `key`; `machine` is as uname says it.
    """
    kind = EM_AARCH64 if machine == "aarch64" else EM_X86_64
    header = _HEADER.pack(
        _IDENT, _ET_DYN, kind, 1, 0, _HEADER.size, 0, 0, _HEADER.size, _SEGMENT.size, 1, 0, 0, 0
    )
    segment = _SEGMENT.pack(PT_LOAD, PF_X, 0, 0, 0, _LARGEST, _LARGEST, 1)
    return ElfFile(header + segment + key, name)
