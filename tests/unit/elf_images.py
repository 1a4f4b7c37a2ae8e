# SPDX-License-Identifier: Apache-2.0
"""Small ELF files and unwind sections made by hand, for the tests of the elf room."""

from __future__ import annotations

import struct
from dataclasses import dataclass

X86_64, AARCH64 = 62, 183
TEXT, EH_FRAME = 0x10000, 0x80000  # where images() and the sections below put things
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_DYNSYM = 1, 2, 3, 7, 11
ALLOC, EXEC = 2, 4
PT_LOAD, PT_NOTE = 1, 4


@dataclass
class Part:
    """One section of an image."""

    name: str
    data: bytes
    address: int = 0
    type: int = SHT_PROGBITS
    flags: int = 0
    link: int = 0
    entry_size: int = 0


def elf_image(
    *parts: Part,
    machine: int = X86_64,
    entry: int = 0,
    elf_type: int = 3,
    segments: list[tuple[int, int, int, int, int, int]] | None = None,
) -> bytes:
    """Return an ELF file. Segments: (type, flags, offset, address, file size, memory size)."""
    names = b"\0"
    headers = [bytes(64)]
    body = b""
    segments = segments or []
    start = 64 + 56 * len(segments)
    for part in [*parts, None]:
        at = len(names)
        if part is None:
            names += b".shstrtab\0"
            part = Part(".shstrtab", names, type=SHT_STRTAB)
        else:
            names += part.name.encode() + b"\0"
        body += bytes(-len(body) % 8)
        offset = start + len(body)
        body += part.data
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ", at, part.type, part.flags, part.address, offset, len(part.data),
                part.link, 0, 8, part.entry_size,
            )
        )  # fmt: skip
    body += bytes(-len(body) % 8)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + bytes(9), elf_type, machine, 1, entry,
        64 if segments else 0, start + len(body), 0, 64, 56, len(segments), 64, len(headers),
        len(headers) - 1,
    )  # fmt: skip
    programs = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, memory, 4096)
        for kind, flags, offset, address, size, memory in segments
    )
    return header + programs + body + b"".join(headers)


def uleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        done = value == (-1 if byte & 0x40 else 0)
        out.append(byte | (0 if done else 0x80))
        if done:
            return bytes(out)


def block(data: bytes) -> bytes:
    return uleb(len(data)) + data


class EhFrame:
    """Writes .eh_frame: CIEs, and FDEs with pcrel|sdata4 pointers unless said otherwise."""

    def __init__(self, address: int = EH_FRAME) -> None:
        self.address = address
        self.data = bytearray()
        self.encoding: dict[int, int] = {}

    def record(self, body: bytes, *, wide: bool = False) -> int:
        at = len(self.data)
        body += bytes(-len(body) % 4)
        self.data += struct.pack("<IQ", 0xFFFFFFFF, len(body)) if wide else struct.pack("<I", len(body))
        self.data += body
        return at

    def cie(
        self,
        program: bytes,
        *,
        augmentation: bytes = b"zR",
        data: bytes = b"\x1b",
        version: int = 1,
        code_align: int = 1,
        data_align: int = -8,
        column: int = 16,
        wide: bool = False,
    ) -> int:
        head = struct.pack("<IB", 0, version) + augmentation + b"\0" + uleb(code_align) + sleb(data_align)
        head += bytes([column]) if version == 1 else uleb(column)
        at = self.record(head + (block(data) if augmentation.startswith(b"z") else b"") + program, wide=wide)
        index = augmentation.find(b"R")
        self.encoding[at] = data[-1] if index >= 0 and data else 0
        return at

    def fde(
        self, cie: int, start: int, length: int, program: bytes, *, wide: bool = False, base: int = 0
    ) -> int:
        id_at = len(self.data) + (12 if wide else 4)
        encoding = self.encoding[cie]
        here = self.address + id_at + 4
        form = {0x0: "Q", 0x2: "H", 0x3: "I", 0x4: "Q", 0xA: "H", 0xB: "I", 0xC: "Q"}[encoding & 0xF]
        value = (start - {0x00: 0, 0x10: here, 0x30: base}[encoding & 0x70]) % (
            1 << 8 * struct.calcsize(form)
        )
        body = struct.pack("<I" + form, id_at - cie, value) + struct.pack("<" + form, length)
        return self.record(body + b"\0" + program, wide=wide)

    def end(self) -> EhFrame:
        self.data += bytes(4)
        return self


# What compilers put into the CIE.
X86_CIE = bytes([0x0C, 7, 8, 0x90, 1])  # def_cfa rsp+8; offset ra, 1
ARM_CIE = bytes([0x0C, 31, 0])  # def_cfa sp+0


def image_of(frames: bytes, *, machine: int = X86_64, text: bytes | None = None, entry: int = 0,
             name: str = ".eh_frame", more: tuple[Part, ...] = ()) -> bytes:  # fmt: skip
    """Return an image with 64 KiB of code at TEXT and one unwind section at EH_FRAME."""
    return elf_image(
        Part(".text", text if text is not None else bytes(0x10000), TEXT, flags=ALLOC | EXEC),
        Part(name, frames, EH_FRAME, flags=ALLOC),
        *more,
        machine=machine,
        entry=entry,
    )
