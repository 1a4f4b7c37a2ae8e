# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of real files against binutils' readelf, at every address where it starts a row.

readelf prints the CFA and the registers for each address. Our row there has to say the same, in the
words that the kernel side has. Where it has no word, the row must say so:

- a CFA that is based on another register, or on an expression beyond *(sp or fp + n) + m: INVALID
  (in libcrypto rax, r9, r11 and r15 have a word);
- a return address that is not at CFA - 8 (x86_64) or not saved in memory: INVALID;
- a signal frame (augmentation S): SIGNAL, whatever its registers say;
- a frame pointer that went into another register, or is the value of an expression: the row keeps its
  CFA and return address, and says nothing about the frame pointer;
- an expression is compared with those of its function, since readelf's table prints only "exp".

Where a function ends without another within 15 bytes the row has to be INVALID or STOP, and there must
be no row of ours that readelf does not know of.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from elf_images import AARCH64

from rubyunwind.elf.deltas import StackDeltas, extract_stack_deltas
from rubyunwind.elf.file import ElfFile

COMMAND, CFA, SP, FP, LR, REG, FRAME, DEREF = 0, 1, 2, 3, 4, 5, 0x40, 0x80
INVALID, STOP, PLT, SIGNAL = ((COMMAND, 0, 0, command, 0) for command in range(4))

PLT_TEXT = (
    "DW_OP_breg7 (rsp): 8; DW_OP_breg16 (rip): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit11; DW_OP_ge; DW_OP_lit3; "
    "DW_OP_shl; DW_OP_plus"
)
FILES = [
    *("/usr/lib/x86_64-linux-gnu/" + name for name in ("libruby-3.1.so.3.1", "libc.so.6", "libcrypto.so.3")),
    "/usr/lib/aarch64-linux-gnu/libc.so.6",
    "/usr/aarch64-linux-gnu/lib/libc.so.6",
    *filter(None, os.environ.get("RUBYUNWIND_ORACLE_FILES", "").split(":")),
]

needs_readelf = pytest.mark.skipif(
    shutil.which("readelf") is None, reason="binutils' readelf is not installed"
)


@dataclass
class Function:
    """One FDE as readelf prints it; rows are (address, {column: rule})."""

    start: int
    end: int
    signal: bool
    rows: list[tuple[int, dict[str, str]]]
    cfa_texts: set[str] = field(default_factory=set)
    fp_texts: set[str] = field(default_factory=set)
    undefined: set[int] = field(default_factory=set)  # addresses from which the return address is undefined


def readelf(path: str, what: str) -> list[str]:
    command = ["readelf", f"--debug-dump={what}", "-W", path]
    environment = {**os.environ, "LC_ALL": "C"}
    # Its status is 1 for some files that it prints completely, so that is not looked at.
    return subprocess.run(command, capture_output=True, text=True, env=environment).stdout.splitlines()


def oracle(path: str) -> list[Function]:
    functions: dict[str, Function] = {}
    cies: dict[str, tuple[bool, dict[str, str]]] = {}
    columns: list[str] = []
    function: Function | None = None
    cie = ""
    for line in readelf(path, "frames-interp"):
        words = re.sub(r"(r\d+) \(\w+\)", r"\1", line).split()  # a register as a rule: "r15 (x15)"
        if "FDE" in line and "cie=" in line:
            offset, cie = words[0], line.split("cie=")[1].split()[0]
            start, end = (int(part, 16) for part in line.split("pc=")[1].split(".."))
            signal, rules = cies[cie]
            function = functions[offset] = Function(start, end, signal, [(start, rules)])
        elif "CIE" in line and len(words) > 4:
            cie, function = words[0], None
            cies[cie] = ("S" in words[4], {})
        elif words[:1] == ["LOC"]:
            columns = words[1:]
        elif columns and len(words) == len(columns) + 1 and re.fullmatch("[0-9a-f]{16}", words[0]):
            rules = dict(zip(columns, words[1:], strict=True))
            if function is None:
                cies[cie] = (cies[cie][0], rules)
            elif function.rows[-1][0] == int(words[0], 16):
                function.rows[-1] = (int(words[0], 16), rules)
            else:
                function.rows.append((int(words[0], 16), rules))
    location = 0
    for line in readelf(path, "frames"):
        words = line.split()
        if "FDE" in line and "cie=" in line:
            function = functions[words[0]]
            location = function.start
        elif "CIE" in line and len(words) > 3:
            function = None
        elif function is not None and " to " in line:
            location = int(words[-1], 16)
        elif function is not None and words[:1] == ["DW_CFA_def_cfa_expression"]:
            function.cfa_texts.add(line.split("(", 1)[1][:-1])
        elif function is not None and re.search(r"DW_CFA_expression: r(6 \(rbp\)|29 \(x29\))", line):
            function.fp_texts.add(line.split("(", 2)[2][:-1])
        elif function is not None and re.search(r"DW_CFA_undefined: r(16 \(rip\)|30 \(x30\))", line):
            function.undefined.add(location)
    return [function for function in functions.values() if function.start and function.end > function.start]


def value_of(text: str, names: dict[str, int]) -> tuple[int, int] | None:
    """Return (opcode, param) of an expression that the unwinder has a word for."""
    match = re.fullmatch(
        r"DW_OP_breg\d+ \((\w+)\): (-?\d+)(; DW_OP_deref)?(?:; DW_OP_plus_uconst: (\d+))?", text
    )
    if not match or match[1] not in names:
        return None
    offset, post = int(match[2]), int(match[4] or 0)
    if not match[3]:
        return names[match[1]], offset + post
    if offset % 8 or post % 8 or post > 56:
        return None
    return names[match[1]] | DEREF, offset + post // 8


class Expectation:
    """What our rows should be for one file."""

    def __init__(self, machine: int, path: str) -> None:
        self.arm = machine == AARCH64
        self.names = {"sp": SP, "x29": FP} if self.arm else {"rsp": SP, "rbp": FP}
        self.others = {"rax": 0, "r9": 9, "r11": 11, "r15": 15} if "libcrypto.so." in path else {}

    def rows(self, function: Function, address: int, rules: dict[str, str]) -> set[tuple[int, ...]]:
        """Return the rows that are right: more than one only where an expression is meant."""
        if function.signal:
            return {SIGNAL}
        cfa, ra = rules["CFA"], rules.get("ra", "u")
        if any(at <= address for at in function.undefined) if self.arm else ra == "u":
            return {STOP}
        if not self.arm and ra != "c-8":
            return {INVALID}
        if cfa == "exp":
            bases = {self.expression(text) for text in function.cfa_texts}
        else:
            register = re.split("[+-]", cfa)[0]
            bases = {self.base(register, int(cfa[len(register) :]))}
        return {row for base in bases for row in self.complete(base, cfa, rules, function)}

    def expression(self, text: str) -> tuple[int, ...] | None:
        return PLT if text == PLT_TEXT else value_of(text, self.names)

    def base(self, register: str, offset: int) -> tuple[int, ...] | None:
        if not self.arm and register == "rsp" and offset < 8:
            return STOP
        if register in self.names:
            return self.names[register], offset
        if register in self.others and offset % 8 == 0:
            return REG, offset * 2 | self.others[register]
        return None

    def complete(
        self, base: tuple[int, ...] | None, cfa: str, rules: dict[str, str], function: Function
    ) -> set[tuple[int, ...]]:
        if base is None:
            return {INVALID}
        if len(base) == 5:
            return {base}
        opcode, param = base
        if self.arm:
            return {self.arm_row(opcode, param, cfa, rules)}
        fp = rules.get("rbp", "u")
        if fp == "exp":
            slots = {value_of(text, self.names) or (0, 0) for text in function.fp_texts}
        else:
            slots = {(CFA, int(fp[1:])) if fp.startswith("c") else (0, 0)}
        return {(opcode, slot, 0, param, at) for slot, at in slots}

    def arm_row(self, opcode: int, param: int, cfa: str, rules: dict[str, str]) -> tuple[int, ...]:
        ra, fp = rules.get("ra", "u"), rules.get("x29", "u")
        if ra in ("u", "s"):
            return opcode, LR, 0, param, 0
        if not ra.startswith("c"):
            return INVALID
        at = int(ra[1:])
        record = FRAME if fp == f"c{at - 8:+d}" else 0
        if cfa == "exp":
            return opcode, CFA | record, 0, param, at
        # From the base, unless the unwinder would take what lies below for a saved frame pointer.
        if param + at == 8 and not record:
            return opcode, CFA, 0, param, at
        return opcode, opcode | record, 0, param, param + at


def lookup(
    deltas: StackDeltas, addresses: list[int], rows: list[int], address: int
) -> tuple[int, ...] | None:
    index = bisect_right(addresses, address) - 1
    if index < 0:
        return None
    opcode, fp_opcode, merge, param, fp_param = deltas.infos[rows[index]]
    if merge and address - addresses[index] >= merge & 0x7F:
        param += -8 if merge & 0x80 else 8
    return opcode, fp_opcode, 0, param, fp_param


def compare(path: str) -> int:
    """Hold a file against readelf; returns the number of rows compared."""
    with ElfFile.open(path) as elf:
        deltas = extract_stack_deltas(elf, use_debug_file=False)
        expectation = Expectation(elf.machine, path)
        # Linkage tables of aarch64, which have no rules, but rows from their code.
        stubs = [(one.address, one.address + one.size) for one in elf.sections if one.name.startswith(".plt")]
    functions = sorted(oracle(path), key=lambda function: function.start)
    starts = [function.start for function in functions]
    addresses, rows = deltas.addresses(), deltas.rows()
    known = {address for function in functions for address, _ in function.rows} | {f.end for f in functions}
    assert {at for at in addresses if not any(start <= at <= end for start, end in stubs)} <= known
    wrong: list[str] = []
    compared = 0
    for function in functions:
        for address, rules in function.rows:
            if address >= function.end:
                continue
            ours = lookup(deltas, addresses, rows, address)
            expected = expectation.rows(function, address, rules)
            compared += 1
            if ours not in expected:
                wrong.append(f"{address:#x}: readelf {rules} means {expected}, ours {ours}")
        following = bisect_right(starts, function.end - 1)
        if any(start <= function.end < end for start, end in stubs):
            continue
        if following == len(starts) or starts[following] - function.end > 15:
            ours = lookup(deltas, addresses, rows, function.end)
            if ours not in (INVALID, STOP):
                wrong.append(f"{function.end:#x}: nothing is known there, ours {ours}")
    assert not wrong, f"{len(wrong)} of {compared} rows differ:\n" + "\n".join(wrong[:20])
    return compared


@needs_readelf
@pytest.mark.parametrize("path", FILES)
def test_every_row_of_a_real_library_says_what_readelf_says(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"{path} is not installed")
    assert compare(path) > 5000


SOURCE = """
extern void use(void *, ...);
void leaf(void) {}
int calls(int a) { use(&a); return a + 1; }
void grows(unsigned n) { char data[n]; use(data); }
void large(void) { char data[100000]; use(data); }
double saves(double a, double b, double c, int d) {
  use(&a); use(&b); use(&c); use(&d);
  for (int i = 0; i < d; i++) { use(&i, a, b, c); a += b * c + d; }
  return a * b * c * d;
}
void early(int *p) { if (!p) return; use(p); if (*p) use(p, *p); }
"""
R_AARCH64_PREL32 = 261  # ELF for the Arm 64-bit Architecture


def linked(obj: bytes) -> bytes:
    """Return the object as a file that needs no linker: addresses given, pc-relative pointers filled in."""
    elf = ElfFile(obj)
    image = bytearray(obj)
    shoff = struct.unpack_from("<Q", obj, 40)[0]
    placed: dict[int, int] = {}
    for index, section in enumerate(elf.sections):
        if section.name in (".text", ".eh_frame"):
            placed[index] = 0x10000 if section.name == ".text" else 0x80000
            struct.pack_into("<Q", image, shoff + 64 * index + 16, placed[index])
    symbols = elf.data(next(section for section in elf.sections if section.type == 2))
    relocations = elf.section(".rela.eh_frame")
    frames = elf.section(".eh_frame")
    assert relocations is not None
    assert frames is not None
    for offset, kind, addend in struct.iter_unpack("<QQq", elf.data(relocations)):
        assert kind & 0xFFFFFFFF == R_AARCH64_PREL32
        _, _, _, section_index, value, _ = struct.unpack_from("<IBBHQQ", symbols, 24 * (kind >> 32))
        target = placed[section_index] + value + addend
        struct.pack_into("<i", image, frames.offset + offset, target - (0x80000 + offset))
    struct.pack_into("<H", image, 16, 3)  # ET_DYN: readelf must not relocate it again
    return bytes(image)


@needs_readelf
@pytest.mark.skipif(
    shutil.which("clang") is None, reason="clang, which compiles for aarch64, is not installed"
)
@pytest.mark.parametrize("options", ["-O2", "-O2 -fomit-frame-pointer", "-O0 -mbranch-protection=standard"])
def test_every_row_of_an_aarch64_object_says_what_readelf_says(options: str, tmp_path: Path) -> None:
    source, obj = tmp_path / "frames.c", tmp_path / "frames.o"
    source.write_text(SOURCE)
    flags = ["-fasynchronous-unwind-tables", "-c", str(source), "-o", str(obj), *options.split()]
    subprocess.run(["clang", "--target=aarch64-linux-gnu", *flags], check=True)
    obj.write_bytes(linked(obj.read_bytes()))
    assert compare(str(obj)) > 10
