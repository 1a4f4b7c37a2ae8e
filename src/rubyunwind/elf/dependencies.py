# SPDX-License-Identifier: Apache-2.0
"""The files that a command will map when it starts: its program, the loader, and the libraries it names."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError

__all__ = ["command_files"]

# elf.h
_PT_DYNAMIC, _PT_INTERP = 2, 3
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_DYNAMIC = struct.Struct("<qQ")

# sysdeps/generic/dl-cache.h of glibc: struct cache_file_new and struct file_entry_new.
_CACHE = Path("/etc/ld.so.cache")
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEAD, _CACHE_ENTRY = 48, struct.Struct("<iIIIQ")

_MAX_FILES = 256
_MAX_SHEBANGS = 4
_MAX_NAME = 4096


def command_files(words: list[str]) -> list[Path]:
    """Return the files that running `words` maps first, as far as the files themselves tell.

    A guess to prepare by, so nothing raises: what cannot be found or read is left out.
    """
    program = _program(words)
    if program is None:
        return []
    libraries = _library_cache()
    found: list[Path] = []
    waiting = [program]
    while waiting and len(found) < _MAX_FILES:
        path = waiting.pop(0)
        if path in found:
            continue
        try:
            with ElfFile.open(path) as elf:
                names = _names(elf)
        except (DecodeError, OSError):
            continue
        found.append(path)
        waiting += [
            libraries.get(name) or Path(os.path.realpath(name))
            for name in names
            if "/" in name or name in libraries
        ]
    return found


def _program(words: list[str]) -> Path | None:
    """Find the program: through PATH, and through the #! lines of scripts."""
    for _ in range(_MAX_SHEBANGS):
        found = shutil.which(words[0]) if words else None
        if found is None:
            return None
        try:
            with Path(found).open("rb") as file:
                head = file.read(256)
        except OSError:
            return None
        if not head.startswith(b"#!"):
            return Path(os.path.realpath(found))
        words = os.fsdecode(head[2:].split(b"\n")[0]).split()
        if words and Path(words[0]).name == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return None


def _names(elf: ElfFile) -> list[str]:
    """Return the loader's path and the names of needed libraries."""
    names: list[str] = []
    needed: list[int] = []
    table = 0
    for segment in elf.segments:
        if segment.type == _PT_INTERP and segment.file_size <= _MAX_NAME:
            names.append(os.fsdecode(elf.read(segment.offset, segment.file_size).rstrip(b"\0")))
        if segment.type == _PT_DYNAMIC:
            size = segment.file_size - segment.file_size % _DYNAMIC.size
            for tag, value in _DYNAMIC.iter_unpack(elf.read(segment.offset, min(size, 1 << 16))):
                if tag == _DT_NULL:
                    break
                if tag == _DT_NEEDED:
                    needed.append(value)
                elif tag == _DT_STRTAB:
                    table = value
    for offset in needed[:_MAX_FILES]:
        names.append(_string(elf, table + offset))
    return names


def _string(elf: ElfFile, address: int) -> str:
    """Read a name of at most 255 bytes; one at the very end of its segment is read in steps."""
    for length in (256, 64, 16, 1):
        try:
            return os.fsdecode(elf.read_virtual(address, length).split(b"\0")[0])
        except DecodeError:
            continue
    return ""


def _library_cache() -> dict[str, Path]:
    """Return what ldconfig knows: where a library name is, the preferred place first."""
    try:
        data = _CACHE.read_bytes()
    except OSError:
        return {}
    at = data.find(_CACHE_MAGIC)  # behind the older format, if that is there
    if at < 0 or len(data) < at + _CACHE_HEAD:
        return {}
    (count,) = struct.unpack_from("<I", data, at + len(_CACHE_MAGIC))
    found: dict[str, Path] = {}
    for index in range(min(count, (len(data) - at - _CACHE_HEAD) // _CACHE_ENTRY.size)):
        _, key, value, _, _ = _CACHE_ENTRY.unpack_from(data, at + _CACHE_HEAD + index * _CACHE_ENTRY.size)
        name, path = (data[at + offset : at + offset + _MAX_NAME].split(b"\0")[0] for offset in (key, value))
        found.setdefault(os.fsdecode(name), Path(os.path.realpath(os.fsdecode(path))))
    return found
