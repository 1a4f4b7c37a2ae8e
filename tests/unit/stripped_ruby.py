# SPDX-License-Identifier: Apache-2.0
"""A made-up stripped libruby: exported functions and what they use, x86_64, addresses equal to offsets."""

from __future__ import annotations

import struct

from rubyunwind.elf.file import ElfFile

CODE, SYMBOLS, NAMES, RELOCATIONS, FRAMES, TABLE = 0x1000, 0x4000, 0x4800, 0x5000, 0x5400, 0x5800
DYNAMIC, MODULE, OTHER_MODULE, POINTERS, VM, MAIN_RACTOR = 0x8000, 0x8200, 0x8210, 0x8300, 0x8400, 0x8408
END = 0x9000
LOOP, CORE, SETUP, SETUP_MAIN, YIELD, CALL, TLS_GET_ADDR = (
    0x2000,
    0x2100,
    0x2200,
    0x2300,
    0x2400,
    0x2500,
    0x2F00,
)
INTERNAL = (LOOP, CORE, SETUP, SETUP_MAIN, YIELD, CALL, TLS_GET_ADDR)

# Each {name} is where a function or variable lies, to which the instruction before it is relative.
_CONTEXT = "4883ec08 66488d3d{module} 666648e8{tls} 488b00"
FUNCTIONS = {
    "rb_thread_current": f"f30f1efa {_CONTEXT} 488b4030 488b4010 4883c408 c3",
    "rb_errinfo": f"f30f1efa {_CONTEXT} 488b4078 4883c408 c3",
    "rb_lastline_get": "4883ec08 488d3d{other_module} e8{tls} 488b8010000000 488b4010 4883c408 c3",
    "rb_during_gc": "488d05{vm} 488b00 4885c0 7415 488b8018050000 0fb64010 c0e805 83e001 c3",
    "rb_thread_main": "488d05{main_ractor} 488b00 4885c0 740d 488b8088010000 488b4010 c3",
    "rb_iseq_eval": "53 e8{setup} 5b e9{loop}",
    "rb_iseq_eval_main": "53 e8{setup_main} 5b e9{loop}",
    "rb_yield_values2": "e8{yield} c3",
    "rb_funcallv": "e9{call}",
}
_BODIES = {
    LOOP: "53 e8{core} 5b c3",
    CORE: "e8{setup} c3",
    SETUP: "31c0 c3",
    SETUP_MAIN: "e8{setup} c3",
    YIELD: "e9{loop}",
    CALL: "e8{setup} e9{loop}",
    TLS_GET_ADDR: "c3",
}
_PLACES = {
    "module": MODULE, "other_module": OTHER_MODULE, "vm": VM, "main_ractor": MAIN_RACTOR, "tls": TLS_GET_ADDR,
    "pointer": POINTERS, "loop": LOOP, "core": CORE, "setup": SETUP, "setup_main": SETUP_MAIN,
    "yield": YIELD, "call": CALL,
}  # fmt: skip


def assemble(code: str, address: int) -> bytes:
    out = b""
    for piece in code.replace(" ", "").replace("}", "{").split("{"):
        if piece in _PLACES:
            out += struct.pack("<i", _PLACES[piece] - (address + len(out) + 4))
        else:
            out += bytes.fromhex(piece)
    return out


def stripped_ruby(**changes: str | None) -> bytes:
    """The file, with other code for some functions; None leaves one out."""
    functions = {name: code for name, code in {**FUNCTIONS, **changes}.items() if code is not None}
    starts = {name: CODE + 0x100 * index for index, name in enumerate(functions)}
    image = bytearray(END)
    code = {starts[name]: assemble(text, starts[name]) for name, text in functions.items()}
    code.update({at: assemble(text, at) for at, text in _BODIES.items()})
    for at, text in code.items():
        image[at : at + len(text)] = text
    names, symbols = b"\0", bytes(24)
    for name, at in starts.items():
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, at, len(code[at]))
        names += name.encode() + b"\0"
    image[SYMBOLS : SYMBOLS + len(symbols)] = symbols
    image[NAMES : NAMES + len(names)] = names
    words = b"".join(struct.pack("<QQq", slot, 16, 0) for slot in (MODULE, OTHER_MODULE))  # R_X86_64_DTPMOD64
    called = list(starts).index("rb_funcallv") + 1  # as a symbol
    words += struct.pack("<QQq", POINTERS, called << 32 | 6, 0)  # R_X86_64_GLOB_DAT
    image[RELOCATIONS : RELOCATIONS + len(words)] = words
    dynamic = struct.pack("<8Q", 6, SYMBOLS, 5, NAMES, 7, RELOCATIONS, 8, len(words)) + bytes(16)
    image[DYNAMIC : DYNAMIC + len(dynamic)] = dynamic
    pairs = []
    for index, at in enumerate(sorted(code)):
        entry = FRAMES + 16 * index
        image[entry : entry + 16] = struct.pack("<IIiI", 12, 0, at - (entry + 8), len(code[at]))
        pairs.append((at - TABLE, entry - TABLE))
    head = struct.pack("<BBBBiI", 1, 0x1B, 0x03, 0x3B, FRAMES - TABLE - 4, len(pairs))
    table = head + b"".join(struct.pack("<ii", *pair) for pair in pairs)
    image[TABLE : TABLE + len(table)] = table
    _headers(image, len(symbols), len(names), len(dynamic), len(table))
    return bytes(image)


def _headers(image: bytearray, symbols: int, names: int, dynamic: int, table: int) -> None:
    segments = [(1, 5, 0, 0x8000), (1, 6, 0x8000, END - 0x8000), (2, 6, DYNAMIC, dynamic)]
    for index, (kind, flags, at, size) in enumerate(segments):
        header = struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, 4096)
        image[64 + 56 * index : 64 + 56 * (index + 1)] = header
    sections = [
        ("", 0, 0, 0, 0, 0, 0),
        (".text", 1, 6, CODE, 0x2000, 0, 0),
        (".dynsym", 11, 2, SYMBOLS, symbols, 3, 24),
        (".dynstr", 3, 2, NAMES, names, 0, 0),
        (".eh_frame_hdr", 1, 2, TABLE, table, 0, 0),
        (".shstrtab", 3, 0, 0x6800, 0x100, 0, 0),
    ]
    texts, headers = b"", b""
    for name, kind, flags, at, size, link, entry in sections:
        headers += struct.pack("<IIQQQQIIQQ", len(texts), kind, flags, at, at, size, link, 0, 8, entry)
        texts += name.encode() + b"\0"
    image[0x6800 : 0x6800 + len(texts)] = texts
    image[0x6C00 : 0x6C00 + len(headers)] = headers
    image[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 64, 0x6C00, 0, 64, 56,
        len(segments), 64, len(sections), len(sections) - 1,
    )  # fmt: skip


def opened(**changes: str | None) -> ElfFile:
    return ElfFile(stripped_ruby(**changes), "libruby.so")
