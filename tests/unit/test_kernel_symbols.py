# SPDX-License-Identifier: Apache-2.0
"""Names of kernel functions from a table like /proc/kallsyms."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubyunwind.profiler.kernel_symbols import KernelSymbols

# As the kernel writes it: modules behind the core, not in order of address.
TABLE = """\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _text
ffffffff81000100 t do_one_thing
ffffffff81000200 W weak_one
ffffffff81000300 D some_data
ffffffffc0200000 t later_function\t[second_module]
ffffffffc0100000 t module_function\t[first_module]
ffffffffc0100100 d module_data\t[first_module]
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "kallsyms"
    path.write_text(TABLE)
    return path


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0xFFFFFFFF81000000, "_text"),
        (0xFFFFFFFF81000100, "do_one_thing"),
        (0xFFFFFFFF810001FF, "do_one_thing"),
        (0xFFFFFFFF81000200, "weak_one"),
        (0xFFFFFFFFC0100080, "module_function [first_module]"),
        (0xFFFFFFFFC0200010, "later_function [second_module]"),
    ],
)
def test_the_function_that_holds_an_address_is_named(table: Path, address: int, name: str) -> None:
    symbols = KernelSymbols(table)
    assert symbols.lookup(address) == name
    assert symbols.reason == ""


@pytest.mark.parametrize("address", [0xFFFFFFFF81000310, 0xFFFFFFFFC0100180])
def test_data_is_no_function(table: Path, address: int) -> None:
    assert KernelSymbols(table).lookup(address) is None


def test_an_address_below_all_functions_has_no_name(table: Path) -> None:
    assert KernelSymbols(table).lookup(0xFFFF800000000000) is None
    assert KernelSymbols(table).lookup(0) is None


def test_a_table_of_zeros_says_which_rights_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text("".join("0" * 16 + line[16:] + "\n" for line in TABLE.splitlines()))
    symbols = KernelSymbols(path)
    assert symbols.lookup(0xFFFFFFFF81000100) is None
    assert "CAP_SYSLOG" in symbols.reason
    assert "kptr_restrict" in symbols.reason


def test_a_table_that_cannot_be_read_is_a_reason_not_an_error(tmp_path: Path) -> None:
    symbols = KernelSymbols(tmp_path / "nothing")
    assert symbols.lookup(0xFFFFFFFF81000100) is None
    assert "nothing cannot be read: No such file" in symbols.reason


@pytest.mark.parametrize("text", ["", "\n\n", "no table at all\n", "ffffffff81000000\n"])
def test_what_is_no_table_names_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kallsyms"
    path.write_text(text)
    assert KernelSymbols(path).lookup(0xFFFFFFFF81000000) is None


def test_the_table_is_read_once_and_late(table: Path) -> None:
    symbols = KernelSymbols(table)
    assert symbols.lookup(0xFFFFFFFF81000100) == "do_one_thing"
    table.unlink()
    assert symbols.lookup(0xFFFFFFFF81000000) == "_text"


def test_it_can_be_read_ahead(table: Path) -> None:
    symbols = KernelSymbols(table)
    symbols.load()
    table.unlink()
    assert symbols.lookup(0xFFFFFFFF81000000) == "_text"


def test_somebody_else_may_work_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    path.write_text("".join(f"{0xFFFFFFFF81000000 + 16 * n:016x} t function_{n}\n" for n in range(60_000)))
    symbols, calls = KernelSymbols(path), []
    symbols.load(lambda: calls.append(1))
    assert len(calls) > 5
    # Lines that lie on the border of two pieces are whole.
    assert [symbols.lookup(0xFFFFFFFF81000000 + 16 * n) for n in range(60_000)] == [
        f"function_{n}" for n in range(60_000)
    ]
