# SPDX-License-Identifier: Apache-2.0
"""The first inputs of each target: ordinary ones to start from, and those that might have been trouble.

`PYTHONPATH=tests/unit python fuzz/make_corpus.py` adds them to the corpus.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import corpus
import python_targets as targets
from elf_images import EhFrame
from image import Image, PieceMemory, read_images

from rubyunwind.abi import Frame, FrameMarker, Trace
from rubyunwind.elf.deltas import extract_stack_deltas
from rubyunwind.elf.file import ElfFile

SEEDS = Path(__file__).parent / "seeds/steps.images"
IMAGES = len(read_images(SEEDS.read_bytes()))
FAIL, ZEROS, CHAIN, NOISE = range(4)
WHOLE, CONTEXT, STEADY, PIECEMEAL, CACHED = 0, 1, 4, 8, 16  # modes of steps.c
RULES = 6  # unwind_info_array among the maps that hold something, in the order of host.c
ROWS_BASE = 0x1000  # where rows.c puts the first section


def steps() -> Iterator[bytes]:
    for image in range(IMAGES):
        for mode in range(4):
            yield bytes([image, mode, FAIL, 0])
        for background in (ZEROS, CHAIN, NOISE):
            yield bytes([image, CONTEXT, background, 1]) + bytes([7, 1, 1, 7])  # a context out of nowhere
            yield bytes([image, WHOLE, background, 1]) + bytes([5, 19, 1, 14])  # a stack pointer
            yield bytes([image, WHOLE, background, 255, 5, 16, 1, 13])  # a pc
        # Each member of RubyProcInfo and RubyTLSInfo zero and all ones; the size of a control frame is one.
        for group in range(9):
            for at in range(0, 32, 3):
                yield bytes([image, at & 1, NOISE, at, 3, group, at, 0, 0, at, 0, 0, 1, at % 15])
    # Each rule becomes of a kind that this Ruby's files do not have, or has the greatest parameter.
    for entry in range(24):
        for opcode, param in ((5, 9), (5, 16), (0x82, 0), (0x83, 3), (0x81, 8), (3, 0), (2, 0x7FFFFFFF)):
            for place in range(2):
                yield (
                    bytes(4)
                    + _rule(12 * entry + place, 0, opcode)
                    + _rule(12 * entry + 4 + 4 * place, 2, param)
                )
        yield bytes(4) + _rule(12 * entry + 2, 0, 1) + _rule(12 * entry + 4, 2, 0x7FFFFFFF)

    yield from _running()


def _running() -> Iterator[bytes]:
    """The stack moves while it is copied: in one piece, in two, and so that its frames no longer fit."""
    for number, image in enumerate(read_images(SEEDS.read_bytes())):
        layout = targets._worlds()[number].layout
        memory = PieceMemory(image.pieces)
        fields = (layout.ec_vm_stack, layout.ec_vm_stack_size, layout.ec_cfp)
        stack, words, cfp = (memory.u64(image.context + field) for field in fields)
        size, cfp_at = _change(image, fields[1], words + 1), fields[2]
        end = stack + 8 * (words + 1)
        # A stack that ends where addresses do.
        top = (1 << 64) - layout.cfp_size
        high = [top - layout.cfp_size, layout.cfp_size // 8, top - layout.cfp_size]
        yield bytes([number, STEADY, FAIL, 3]) + b"".join(map(_change, [image] * 3, fields, high))
        for mode in (STEADY, STEADY | CACHED, STEADY | PIECEMEAL):
            for newest in (cfp - layout.cfp_size, cfp + layout.cfp_size, end - layout.cfp_size, cfp + 8):
                for quiet in range(5, 12):
                    head = bytes([number, mode, FAIL, 0]) + bytes(quiet)
                    yield head + b"\1" + _change(image, cfp_at, newest)
                    yield head + b"\2" + size + _change(image, cfp_at, newest)


def _change(image: Image, field: int, value: int) -> bytes:
    """Give a word of the execution context another value."""
    number = 0
    for address, data in image.pieces:
        if address <= image.context + field < address + len(data):
            number += (image.context + field - address) // 8
            return bytes([0]) + number.to_bytes(3, "little") + b"\0" + value.to_bytes(8, "little")
        number += len(data) // 8
    raise AssertionError("the image does not hold its context")


def _rule(at: int, width: int, value: int) -> bytes:
    """Change 1 << width bytes of unwind_info_array."""
    return bytes([3, RULES, 0, 0, width]) + at.to_bytes(3, "little") + b"\0" + value.to_bytes(8, "little")


def rows() -> Iterator[bytes]:
    ordinary = bytes([0x41, 0x0E, 16, 0x86, 2, 0x44, 0x0D, 6, 0x0A, 0x0E, 24, 0x0B, 0x42, 0x0E, 8])
    plt = b"\x0f\x0b" + bytes.fromhex("770880003f1a3b2a332422")
    pointed = b"\x0f\x05" + bytes.fromhex("7610062308") + b"\x10\x06\x03\x77\x10\x06"
    for version, augmentation, program in (
        (1, b"zR", ordinary), (3, b"zRS", ordinary), (1, b"zR", plt), (1, b"zR", pointed),
    ):  # fmt: skip
        data = _unwind_section(version, augmentation, program, 0)
        for flags in (4, 5, 4 | 16 | 64, 4 | 2 | 8, 4 | 128, 32 | 4, 0, 1):
            yield struct.pack("<BBHH", flags, 0, len(data), 0x5042) + data + data
    # .debug_frame of DWARF 4.
    cie = (
        struct.pack("<IIBB", 20, 0xFFFFFFFF, 4, 0)
        + bytes([8, 0, 1, 0x78, 16, 0x0C, 7, 8, 0x90, 1])
        + bytes(4)
    )
    yield struct.pack("<BBHH", 0, 0, 0, 0) + cie + struct.pack("<IIQQ", 20, 0, 0x5000, 0x40)
    # The code of a signal trampoline behind the section's end; the code of spans begins with the section.
    for flags, code in ((4 | 64, "48c7c00f0000000f05"), (5 | 64, "681180d2010000d4")):
        start = len(_unwind_section(1, b"zR", b"", 0)) + 4
        yield (
            struct.pack("<BBHH", flags, 0, 0, 0)
            + _unwind_section(1, b"zR", b"", start)
            + bytes(4)
            + bytes.fromhex(code)
        )


def _unwind_section(version: int, augmentation: bytes, program: bytes, start: int) -> bytes:
    """Two functions, the first with `program`, as rows.c places them."""
    frame = EhFrame(ROWS_BASE)
    data = b"\x1b" if augmentation else b""
    cie = frame.cie(bytes([0x0C, 7, 8, 0x90, 1]), version=version, augmentation=augmentation, data=data)
    frame.fde(cie, start or 0x5000, 0x40, program)
    frame.fde(cie, 0x6000, 0x10, b"")
    return bytes(frame.data)


def records() -> Iterator[bytes]:
    def event(kind: int, size: int, body: bytes) -> bytes:
        return struct.pack("<IHH", kind, 0, size) + body

    whole = event(9, 32, struct.pack("<I", 20) + bytes(20))
    yield b"\0" + whole
    yield b"\xff" + whole + event(2, 24, struct.pack("<QQ", 1, 5)) + whole
    yield b"\1" + event(9, 16, struct.pack("<I", 65528) + bytes(4)) + whole
    yield b"\1" + event(9, 0, b"") + event(2, 16, bytes(8)) + event(9, 12, bytes(4))
    yield b"\1" + event(9, 65528, struct.pack("<I", 65516))


def elf() -> Iterator[bytes]:
    for which, image in enumerate(targets._elf_bases()):
        yield bytes([which])
        yield bytes([len(targets._elf_bases())]) + image


def deltas() -> Iterator[bytes]:
    for image in targets._elf_bases():
        yield extract_stack_deltas(ElfFile(image)).to_bytes()
    yield struct.pack("<II?QQHH", 2, 0, False, 0, 1 << 40, 0, 0)
    yield struct.pack("<II?BBBxiiQQHH", 2, 1, False, 1, 2, 0, 8, -16, 0, 1 << 40, 0, 0)


def debug_info() -> Iterator[bytes]:
    bases = targets._debug_bases()
    for which, image in enumerate(bases):
        # The head of the unit and of its structs, the abbreviations.
        places = (0x40, 0x44, 0x46, 0x48, 0x4C, 0x54, image.find(b"pc\0"), image.find(bytes([2, 0x13, 1])))
        for kind in range(4):
            yield bytes([which, kind, 1])
            for at in places:
                for value in (0, 2, 0x7F, 0xFF):
                    yield bytes([which, kind, 1, 1]) + at.to_bytes(3, "little") + bytes([0, value])
        yield bytes([len(bases), 0, 1]) + image


def core() -> Iterator[bytes]:
    for which in range(len(targets._core_bases())):
        yield bytes([which])
        for at in (0x38, 0x48, 0x50, 0x1010, 0x1100):
            yield bytes([which, 1 | 2 << 2]) + at.to_bytes(3, "little") + b"\7"
    yield bytes([len(targets._core_bases())]) + targets._core_bases()[0][:0x1400]


snapshot = core


def names() -> Iterator[bytes]:
    chance = random.Random(1)
    for world in range(len(targets._worlds())):
        for kind in range(4):
            yield bytes([world, kind, 1, 0, 0])
            yield bytes([world, kind, 1, 0, 16]) + chance.randbytes(96)


def lines() -> Iterator[bytes]:
    for world in range(len(targets._worlds())):
        for size, position in ((0, 0), (1, 3), (9, 20), (100, 70), (300, 700)):
            head = struct.pack("<IIQQQIQ", size, position, 0x1000, 0x1050, 0x1000, 40, 0x1000)
            yield bytes([world]) + head + bytes(range(64)) * 8


def trace() -> Iterator[bytes]:
    frames = [
        Frame(file_id=1, addr_or_line=2, kind=FrameMarker.NATIVE, return_address=True),
        Frame(file_id=3, addr_or_line=4, kind=FrameMarker.RUBY, method_entry=5),
        Frame(kind=FrameMarker.ABORT, addr_or_line=2),
    ]
    for count in range(4):
        record = bytes(Trace(pid=1, tid=2, ktime=3, comm="ruby", frames=frames[:count], origin=1, flags=3))
        yield record
        yield record + bytes(4)
    yield bytes(Trace(frames=frames * 42 + frames[:2])).ljust(3152, b"\0")


def maps() -> Iterator[bytes]:
    yield b"55f0-56f0 r-xp 00001000 fe:01 123   /usr/bin/ruby (deleted)\n7fff-8000 rw-p 0 00:00 0 [stack]\n"
    yield b"5-6 r-xp 1000 fe:01 123   /a\\012b\n- - - : 0\n-1-2 rwxp 5 1:2 0\n1-2 r 0 fffffffffffff:1 0\n"


def libraries() -> Iterator[bytes]:
    head = b"glibc-ld.so.cache1.1" + struct.pack("<II", 2, 16).ljust(28, b"\0")
    entries = struct.pack("<iIIIQiIIIQ", 0x303, 96, 102, 0, 0, 0x303, 96, 0xFFFFFFFF, 0, 0)
    yield head + entries + b"libc.\0/lib/libc.so.6\0"
    yield b"ld.so-1.7.0\0" + head[:24] + b"\xff\xff\xff\xff" + head[28:] + entries


def btf() -> Iterator[bytes]:
    yield b"\0"
    yield b"\1"
    yield b"\3" + targets._objects()[0][:512]


def main() -> None:
    for name in ("steps", "rows", "records", *targets.TARGETS):
        inputs = dict.fromkeys([*globals()[name](), *corpus.read(name)])
        size = corpus.write(name, inputs)
        print(f"{name}: {len(inputs)} inputs, {size} bytes packed")


if __name__ == "__main__":
    main()
