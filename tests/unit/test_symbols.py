# SPDX-License-Identifier: Apache-2.0
"""Function names by address, and symbols by name."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from elf_images import SHT_DYNSYM, SHT_STRTAB, SHT_SYMTAB, Part, elf_image
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.elf.file import ElfFile
from rubyunwind.elf.symbols import STT_FUNC, STT_GNU_IFUNC, STT_OBJECT, STT_TLS, SymbolTable

LOCAL, GLOBAL, WEAK = 0, 1, 2
LIBRUBY = Path("/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1")
LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")


class Symbols:
    """Writes a symbol table and its names."""

    def __init__(self) -> None:
        self.names = b"\0"
        self.data = bytes(24)

    def add(
        self,
        name: bytes,
        value: int,
        size: int,
        kind: int = STT_FUNC,
        binding: int = GLOBAL,
        shndx: int = 1,
        at: int | None = None,
    ) -> Symbols:
        if at is None:
            at = len(self.names)
            self.names += name + b"\0"
        self.data += struct.pack("<IBBHQQ", at, binding << 4 | kind, 0, shndx, value, size)
        return self


def table(symtab: Symbols | None = None, dynsym: Symbols | None = None) -> SymbolTable:
    parts: list[Part] = []
    for kind, symbols in ((SHT_SYMTAB, symtab), (SHT_DYNSYM, dynsym)):
        if symbols is not None:
            parts.append(Part(f".sym{kind}", symbols.data, type=kind, link=len(parts) + 2, entry_size=24))
            parts.append(Part(f".str{kind}", symbols.names, type=SHT_STRTAB))
    return SymbolTable(ElfFile(elf_image(*parts)))


def test_lookup_respects_the_sizes_of_functions() -> None:
    symbols = table(Symbols().add(b"second", 0x2000, 0x10).add(b"first", 0x1000, 0x20))
    assert symbols.lookup(0x0FFF) is None
    assert symbols.lookup(0x1000) == ("first", 0)
    assert symbols.lookup(0x101F) == ("first", 0x1F)
    assert symbols.lookup(0x1020) is None
    assert symbols.lookup(0x2008) == ("second", 8)
    assert len(symbols) == 2


def test_only_defined_functions_are_found_by_address() -> None:
    symbols = table(
        Symbols()
        .add(b"object", 0x1000, 0x100, STT_OBJECT)
        .add(b"undefined", 0x1100, 0x100, shndx=0)
        .add(b"zero", 0, 0x100)
        .add(b"ifunc", 0x1200, 0x100, STT_GNU_IFUNC)
    )
    assert [symbols.lookup(address) for address in (0x1000, 0x1100, 0x10)] == [None] * 3
    assert symbols.lookup(0x1210) == ("ifunc", 0x10)


def test_a_function_without_size_reaches_to_the_next_one() -> None:
    symbols = table(Symbols().add(b"assembly", 0x1000, 0).add(b"next", 0x1080, 0x10).add(b"last", 0x2000, 0))
    assert symbols.lookup(0x107F) == ("assembly", 0x7F)
    assert symbols.lookup(0x1090) is None
    assert symbols.lookup(0x2010) == ("last", 0x10)


def test_an_inner_symbol_does_not_hide_the_rest_of_the_outer_one() -> None:
    symbols = table(Symbols().add(b"outer", 0x1000, 0x100).add(b"inner", 0x1040, 0x10))
    assert symbols.lookup(0x1045) == ("inner", 5)
    assert symbols.lookup(0x1060) == ("outer", 0x60)


def test_of_several_names_the_global_one_is_shown() -> None:
    symbols = table(
        Symbols()
        .add(b"local", 0x1000, 0x10, binding=LOCAL)
        .add(b"global", 0x1000, 0x10)
        .add(b"weak", 0x1000, 0x10, binding=WEAK)
    )
    assert symbols.lookup(0x1004) == ("global", 4)
    # An alias without a size keeps the size.
    symbols = table(Symbols().add(b"sized", 0x1000, 0x10, binding=LOCAL).add(b"bare", 0x1000, 0))
    assert symbols.lookup(0x100F) == ("bare", 15)
    assert symbols.lookup(0x1010) is None


def test_both_tables_are_used() -> None:
    symbols = table(
        Symbols().add(b"hidden", 0x1000, 0x10, binding=LOCAL), Symbols().add(b"exported", 0x2000, 0x10)
    )
    assert symbols.lookup(0x1001) == ("hidden", 1)
    assert symbols.lookup(0x2001) == ("exported", 1)


def test_find_gives_value_size_and_type_of_any_symbol() -> None:
    symbols = table(
        Symbols()
        .add(b"data", 0x3000, 8, STT_OBJECT)
        .add(b"tls", 0x8, 16, STT_TLS)
        .add(b"gone", 0, 0, shndx=0)
    )
    found = symbols.find("data")
    assert found is not None
    assert (found.name, found.value, found.size, found.type) == ("data", 0x3000, 8, STT_OBJECT)
    tls = symbols.find("tls")
    assert tls is not None
    assert (tls.value, tls.type) == (8, STT_TLS)
    for name in ("gone", "dat", "ata", "", "data\0"):
        assert symbols.find(name) is None


def test_a_name_that_is_the_tail_of_another_is_found() -> None:
    symbols = Symbols().add(b"ruby_current_ec", 0x1000, 8)
    symbols.add(b"", 0x2000, 8, at=1 + len("ruby_"))
    found = table(symbols).find("current_ec")
    assert found is not None
    assert found.value == 0x2000


def test_names_that_are_no_utf8_survive() -> None:
    found = table(Symbols().add(b"bad\xff", 0x1000, 8)).lookup(0x1000)
    assert found == ("bad\udcff", 0)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.binary(max_size=40), st.integers(0, 1 << 64))
def test_any_bytes_as_a_table_give_an_answer(data: bytes, names: bytes, address: int) -> None:
    symbols = Symbols()
    symbols.data, symbols.names = data, names
    found = table(symbols).lookup(address)
    assert found is None or found[1] >= 0
    assert table(symbols).find("x") is None or b"x\0" in names


@pytest.mark.skipif(not LIBRUBY.exists(), reason="Debian's libruby 3.1 for x86_64 is not installed")
def test_libruby_has_the_symbols_that_detection_needs() -> None:
    with ElfFile.open(LIBRUBY) as elf:
        symbols = SymbolTable(elf)
        execution_context = symbols.find("ruby_current_ec")
        assert execution_context is not None
        assert execution_context.type == STT_TLS
        version = symbols.find("ruby_version")
        assert version is not None
        assert elf.read_virtual(version.value, 4) == b"3.1."
        loop = symbols.find("rb_vm_exec")
        assert loop is not None
        assert symbols.lookup(loop.value + 1) == ("rb_vm_exec", 1)


@pytest.mark.skipif(not LIBC.exists(), reason="a Debian libc for x86_64 is not installed")
def test_every_function_that_nm_lists_in_libc_is_found_at_its_address() -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        listing = subprocess.run(
            ["nm", "-DS", "--defined-only", str(LIBC)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        ).stdout
    except FileNotFoundError:
        pytest.skip("binutils' nm is not installed")
    names: dict[int, set[str]] = {}
    for line in listing.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "TtWwiI":
            names.setdefault(int(words[0], 16), set()).add(words[3].split("@")[0])
    with ElfFile.open(LIBC) as elf:
        symbols = SymbolTable(elf).load()
    assert len(names) > 1500
    for address, expected in names.items():
        found = symbols.lookup(address)
        assert found is not None
        assert found[0] in expected
        assert found[1] == 0
