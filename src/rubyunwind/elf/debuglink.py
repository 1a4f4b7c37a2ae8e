# SPDX-License-Identifier: Apache-2.0
"""The separate debug file of a stripped one, if this machine has it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from rubyunwind.elf.file import MAX_READ, ElfFile
from rubyunwind.elf.ids import build_id
from rubyunwind.elf.symbols import SHT_SYMTAB, SYMBOL_SIZE, SymbolTable
from rubyunwind.errors import DecodeError

__all__ = ["DEBUG_ROOT", "MOST_SYMBOLS", "debug_symbols", "open_debug_file"]

DEBUG_ROOT = Path("/usr/lib/debug")
MOST_SYMBOLS = 400_000
"""Of a debug file with more none is read: that takes a second, in which samples wait."""


def open_debug_file(elf: ElfFile, root: Path = DEBUG_ROOT) -> ElfFile | None:
    """Open the debug file that `elf` names by build id or .gnu_debuglink, or return None.

    It is looked for under `root` only. A file beside the program would be the profiled process's to
    choose, and the reader may be root. A linked file has to have the checksum that the link gives; the
    caller closes what is returned.
    """
    link = _link(elf)
    if link is None:
        return None
    name, checksum = link
    identity = build_id(elf)
    for path in _candidates(elf, root, name, identity):
        try:
            debug = _open(path)
        except (OSError, DecodeError):
            continue
        try:
            same_build = identity is not None and build_id(debug) == identity
            if debug.machine == elf.machine and (same_build or _checksum(debug) == checksum):
                return debug
        except DecodeError:
            pass
        debug.close()
    return None


def debug_symbols(elf: ElfFile, root: Path = DEBUG_ROOT) -> SymbolTable | None:
    """Return the symbols that were stripped off `elf`, None where this machine does not have them.

    They are read at once, and the debug file is closed again.
    """
    try:
        debug = open_debug_file(elf, root)
        if debug is None:
            return None
        with debug:
            size = sum(section.size for section in debug.sections if section.type == SHT_SYMTAB)
            return SymbolTable(debug).load() if 0 < size <= MOST_SYMBOLS * SYMBOL_SIZE else None
    except DecodeError:  # damaged, or the file itself is closed already
        return None


def _link(elf: ElfFile) -> tuple[str, int] | None:
    section = elf.section(".gnu_debuglink")
    if section is None or section.size > 4096:
        return None
    try:
        data = elf.data(section)
    except DecodeError:
        return None
    name, end, _ = data.partition(b"\0")
    # A file name, zeros up to a multiple of four bytes, a CRC-32.
    at = (len(name) + 4) // 4 * 4
    if not end or not name or b"/" in name or name in (b".", b"..") or len(data) < at + 4:
        return None
    return os.fsdecode(name), int.from_bytes(data[at : at + 4], "little")


def _open(path: Path) -> ElfFile:
    """Open a file of this machine, by a deputy where a server has to be asked for it."""
    from rubyunwind.process.mounts import mounts  # which builds on this package

    if mounts.is_local_path(str(path)):
        return ElfFile.open(path)
    from rubyunwind.process.deputy import deputies

    elf = ElfFile.of(deputies.open_path(str(path)), str(path))
    elf.path = str(path)
    return elf


def _candidates(elf: ElfFile, root: Path, name: str, identity: bytes | None) -> Iterator[Path]:
    if identity is not None and len(identity) > 1:
        digits = identity.hex()
        yield root / ".build-id" / digits[:2] / f"{digits[2:]}.debug"
    if elf.path is not None and elf.path.startswith("/") and ".." not in Path(elf.path).parts:
        yield root / Path(elf.path).parent.relative_to("/") / name


def _checksum(debug: ElfFile) -> int:
    if debug.size > MAX_READ:
        return -1
    return zlib.crc32(debug.read(0, debug.size))
