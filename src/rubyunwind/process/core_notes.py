# SPDX-License-Identifier: Apache-2.0
"""The notes of an ELF core file: threads with their registers, the files that were mapped, who died of what.

The structs are the kernel's (include/linux/elfcore.h, include/uapi/linux/elf.h, arch/*/include/uapi/asm/
ptrace.h); gdb's gcore writes the same ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rubyunwind.elf.file import EM_AARCH64
from rubyunwind.errors import DecodeError

__all__ = ["CoreNotes", "CoreThread", "FileRange", "Registers", "SignalInfo", "iterate_notes", "parse_notes"]

# include/uapi/linux/elf.h
NT_PRSTATUS, NT_PRPSINFO, NT_AUXV = 1, 3, 6
NT_ARM_TLS = 0x401
NT_FILE = 0x46494C45
NT_SIGINFO = 0x53494749
_WANTED = frozenset({NT_PRSTATUS, NT_PRPSINFO, NT_AUXV, NT_ARM_TLS, NT_FILE, NT_SIGINFO})

_NHDR = struct.Struct("<III")  # Elf64_Nhdr: name size, description size, type
MAX_DESCRIPTION = 64 << 20
"""Bytes of the largest note that is read: far above the file table of a process with a million mappings."""

# struct elf_prstatus: pr_cursig, pr_pid, and where pr_reg begins; then struct user_regs_struct of x86_64
# (27 words) or struct user_pt_regs of aarch64 (34 words).
_CURSIG_AT, _PID_AT, _REGS_AT = 12, 32, 112
_X86_64 = [
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
]
_AARCH64 = [*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"]

# struct elf_prpsinfo: pr_pid, pr_fname (16 bytes), pr_psargs (80 bytes).
_PSINFO = struct.Struct("<24xiiii16s80s")
_SIGINFO = struct.Struct("<iii4xQ")  # siginfo_t: si_signo, si_errno, si_code, si_addr or whatever is there
_SIGNALS_WITH_ADDRESS = (4, 5, 7, 8, 11)  # SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV

_DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Registers:
    """General registers of a stopped thread. `lr` is 0 on x86_64, which has none; `named` has all of them.

    `fp` is rbp or x29. Names are those of the kernel's user_regs_struct and user_pt_regs.
    """

    pc: int
    sp: int
    fp: int
    lr: int
    named: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.named[name]


@dataclass(frozen=True, slots=True)
class SignalInfo:
    """What ended the process. `address` is the faulting one, 0 for a signal that somebody sent."""

    signal: int
    code: int
    address: int


@dataclass(frozen=True, slots=True)
class CoreThread:
    """One thread. `thread_pointer` is fs_base on x86_64, tpidr_el0 on aarch64 (0 if the core lacks it).

    `signal` is the one it was handling, 0 for none. A core has the name of the process only: `name` is
    "" for all threads but the main one.
    """

    tid: int
    registers: Registers
    thread_pointer: int
    signal: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Addresses [start, end) held `path` from byte `offset` on. `deleted`: its name was gone already."""

    start: int
    end: int
    offset: int
    path: str
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class CoreNotes:
    """All that is taken from the notes. `files` are in address order; `auxv` is {AT_ type: value}."""

    pid: int
    comm: str
    arguments: str
    threads: tuple[CoreThread, ...]
    files: tuple[FileRange, ...] = ()
    auxv: Mapping[int, int] = field(default_factory=dict)
    signal_info: SignalInfo | None = None


def iterate_notes(
    read: Callable[[int, int], bytes], offset: int, size: int, wanted: frozenset[int] = _WANTED
) -> Iterator[tuple[int, bytes]]:
    """Yield (type, description) of the wanted notes in `size` bytes at `offset`, read piece by piece.

    What `read` raises passes through; DecodeError when a note does not fit its area.
    """
    end = offset + size
    while offset + _NHDR.size <= end:
        name_size, length, kind = _NHDR.unpack(read(offset, _NHDR.size))
        at = offset + _NHDR.size + (name_size + 3) // 4 * 4
        offset = at + (length + 3) // 4 * 4
        # The last description need not be padded.
        if name_size > 4096 or at + length > end:
            raise DecodeError(f"a note of {length} bytes at {at:#x} reaches past its segment, {end:#x}")
        if kind in wanted:
            if length > MAX_DESCRIPTION:
                raise DecodeError(f"a note of type {kind:#x} has {length} bytes; {MAX_DESCRIPTION} are read")
            yield kind, read(at, length)


def parse_notes(notes: Iterable[tuple[int, bytes]], machine: int) -> CoreNotes:
    """Put the notes of a core together. Raises DecodeError for one that is cut short."""
    pid, comm, arguments = 0, "", ""
    threads: list[CoreThread] = []
    pointers: dict[int, int] = {}
    files: tuple[FileRange, ...] = ()
    auxv: dict[int, int] = {}
    signal_info = None
    for kind, data in notes:
        if kind == NT_PRSTATUS:
            threads.append(_thread(data, machine))
        elif kind == NT_ARM_TLS and threads and len(data) >= 8:
            # It belongs to the thread whose status came last.
            pointers[len(threads) - 1] = int.from_bytes(data[:8], "little")
        elif kind == NT_PRPSINFO and len(data) >= _PSINFO.size:
            pid, _, _, _, name, line = _PSINFO.unpack_from(data)
            comm, arguments = _text(name), _text(line).strip()
        elif kind == NT_AUXV:
            auxv = dict(struct.iter_unpack("<QQ", data[: len(data) & ~15]))
        elif kind == NT_FILE:
            files = tuple(sorted(_files(data), key=lambda file: file.start))
        elif kind == NT_SIGINFO and len(data) >= _SIGINFO.size and signal_info is None:
            signal, _, code, address = _SIGINFO.unpack_from(data)
            signal_info = SignalInfo(
                signal, code, address if signal in _SIGNALS_WITH_ADDRESS and code > 0 else 0
            )
    for number in (pid, *(one.tid for one in threads)):
        if number < 0:
            raise DecodeError(f"process or thread id {number} in its notes: the core is damaged")
    pid = pid or (threads[0].tid if threads else 0)
    named = tuple(
        CoreThread(
            one.tid,
            one.registers,
            pointers.get(index, one.thread_pointer),
            one.signal,
            comm if one.tid == pid else "",
        )
        for index, one in enumerate(threads)
    )
    return CoreNotes(pid, comm, arguments, named, files, auxv, signal_info)


def _thread(data: bytes, machine: int) -> CoreThread:
    names = _AARCH64 if machine == EM_AARCH64 else _X86_64
    if len(data) < _REGS_AT + 8 * len(names):
        raise DecodeError(f"a thread's status has {len(data)} bytes, {_REGS_AT + 8 * len(names)} are needed")
    named = dict(zip(names, struct.unpack_from(f"<{len(names)}Q", data, _REGS_AT), strict=True))
    if machine == EM_AARCH64:
        registers = Registers(named["pc"], named["sp"], named["x29"], named["x30"], named)
    else:
        registers = Registers(named["rip"], named["rsp"], named["rbp"], 0, named)
    (signal,) = struct.unpack_from("<h", data, _CURSIG_AT)
    (tid,) = struct.unpack_from("<i", data, _PID_AT)
    return CoreThread(tid, registers, named.get("fs_base", 0), signal)


def _files(data: bytes) -> Iterator[FileRange]:
    """Parse NT_FILE: count, page size, (start, end, offset in pages) each, then the names in that order."""
    if len(data) < 16:
        raise DecodeError(f"the table of mapped files has {len(data)} bytes")
    count, page = struct.unpack_from("<QQ", data)
    if 16 + 24 * count > len(data):
        raise DecodeError(f"the table of mapped files says {count} entries, but has {len(data)} bytes")
    names = data[16 + 24 * count :].split(b"\0")
    for entry, name in zip(struct.iter_unpack("<QQQ", data[16 : 16 + 24 * count]), names, strict=False):
        start, end, offset = entry
        if start < end and name:
            deleted = name.endswith(_DELETED)
            path = os.fsdecode(name.removesuffix(_DELETED) if deleted else name)
            yield FileRange(start, end, offset * page, path, deleted)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")
