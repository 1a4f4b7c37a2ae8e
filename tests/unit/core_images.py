# SPDX-License-Identifier: Apache-2.0
"""Small ELF core files made by hand, for the tests of core files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

X86_64, AARCH64 = 62, 183
PRSTATUS, PRPSINFO, AUXV, ARM_TLS, FILE, SIGINFO = 1, 3, 6, 0x401, 0x46494C45, 0x53494749
R, W, X = 4, 2, 1
X86_REGISTERS, ARM_REGISTERS = 27, 34


def note(kind: int, data: bytes, name: bytes = b"CORE") -> bytes:
    owner = name + b"\0"
    return (
        struct.pack("<III", len(owner), len(data), kind)
        + owner.ljust(-(-len(owner) // 4) * 4, b"\0")
        + data.ljust(-(-len(data) // 4) * 4, b"\0")
    )


def status(tid: int, *, registers: dict[int, int] | None = None, machine: int = X86_64) -> bytes:
    """NT_PRSTATUS; `registers` by their number in the kernel's struct."""
    count = ARM_REGISTERS if machine == AARCH64 else X86_REGISTERS
    values = [(registers or {}).get(number, 0) for number in range(count)]
    head = bytearray(112)
    struct.pack_into("<h", head, 12, 6)
    struct.pack_into("<i", head, 32, tid)
    return note(PRSTATUS, bytes(head) + struct.pack(f"<{count}Q", *values) + bytes(8))


def process(pid: int, name: bytes = b"ruby", line: bytes = b"ruby app.rb") -> bytes:
    return note(
        PRPSINFO,
        bytes(24) + struct.pack("<4i", pid, 1, pid, pid) + name.ljust(16, b"\0") + line.ljust(80, b"\0"),
    )


def files(*entries: tuple[int, int, int, bytes]) -> bytes:
    """NT_FILE of (start, end, offset in bytes, path)."""
    table = b"".join(struct.pack("<QQQ", start, end, offset // 4096) for start, end, offset, _ in entries)
    names = b"".join(path + b"\0" for *_, path in entries)
    return note(FILE, struct.pack("<QQ", len(entries), 4096) + table + names)


def auxv(**values: int) -> bytes:
    numbers = {"page_size": 6, "vdso": 33}
    pairs = [(numbers[name], value) for name, value in values.items()]
    return note(AUXV, b"".join(struct.pack("<QQ", *pair) for pair in [*pairs, (0, 0)]))


@dataclass
class Area:
    """Addresses from `start` on; `size` bytes of which `data` was dumped."""

    start: int
    data: bytes = b""
    size: int = 0
    flags: int = R | W

    @property
    def length(self) -> int:
        return max(self.size, len(self.data))


@dataclass
class Core:
    """Everything of a core file that a test may want to be different."""

    areas: list[Area] = field(default_factory=list)
    notes: bytes = process(77) + status(77)
    machine: int = X86_64
    type: int = 4
    elf_class: int = 2
    order: int = 1
    many: bool = False
    """Number of segments in the first section header, as for more than 65,534."""
    sections_only: bool = False

    def build(self) -> bytes:
        offset = 0x1000
        parts = [(4, R, 0, self.notes, len(self.notes))]
        parts += [(1, area.flags, area.start, area.data, area.length) for area in self.areas]
        headers, body = [], b""
        for kind, flags, start, data, length in parts:
            at = offset + len(body)
            if self.sections_only:
                mode = (2 if kind == 1 else 0) | (1 if flags & W else 0) | (4 if flags & X else 0)
                section = 7 if kind == 4 else 1 if data else 8
                headers.append(
                    struct.pack("<IIQQQQIIQQ", 0, section, mode, start, at, len(data) or length, 0, 0, 1, 0)
                )
            else:
                headers.append(struct.pack("<IIQQQQQQ", kind, flags, at, start, 0, len(data), length, 4096))
            body += data
        identity = bytes((0x7F, 0x45, 0x4C, 0x46, self.elf_class, self.order, 1)).ljust(16, b"\0")
        table = b"".join(headers)
        phoff = shoff = phnum = shnum = 0
        if self.sections_only:
            shoff, shnum = 64, len(headers)
        else:
            phoff, phnum = 64, len(headers)
        if self.many:
            table += struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, len(headers), 0, 0)
            shoff, phnum = 64 + 56 * len(headers), 0xFFFF
        order = "<" if self.order == 1 else ">"
        header = struct.pack(
            order + "16sHHIQQQIHHHHHH", identity, self.type, self.machine, 1, 0, phoff, shoff, 0, 64,
            56, phnum, 64, shnum, 0,
        )  # fmt: skip
        assert len(header) + len(table) <= offset
        return (header + table).ljust(offset, b"\0") + body
