# SPDX-License-Identifier: Apache-2.0
"""Where the code of YJIT lies, told by what is mapped, and how a frame of it is left."""

from __future__ import annotations

import pytest

from rubyunwind.abi import JIT_FILE_ID
from rubyunwind.process.mappings import Mapping
from rubyunwind.profiler.jit_code import find_jit_code, is_jit_code

MEGABYTE = 1 << 20
V3_1, V3_3 = 0x30102, 0x30308


def mapping(start: int, size: int, permissions: str, path: str = "", inode: int = 0) -> Mapping:
    return Mapping(
        start, start + size, "r" in permissions, "w" in permissions, "x" in permissions, 0, 0, inode, path
    )


TEXT = mapping(0x400000, MEGABYTE, "r-x", "/usr/bin/ruby", 7)
HEAP = mapping(0x900000, 64 * MEGABYTE, "rw-")
VDSO = mapping(0x7FFF00000000, 0x2000, "r-x", "[vdso]")
CLOSURES = mapping(0x600000, 0x1000, "r-x")  # of libffi


def test_one_large_stretch_of_code_without_a_file_is_it() -> None:
    code = mapping(0x7F0000000000, 256 * MEGABYTE, "r-x")
    found = find_jit_code([TEXT, CLOSURES, HEAP, code, VDSO], V3_1, aarch64=False)
    assert found is not None
    assert (found.start, found.end) == (code.start, code.end)
    assert found.rule == (2, 0, 0, 32, 0)  # CFA = sp + 32


@pytest.mark.parametrize("name", ["", "[anon:Ruby:rb_yjit_reserve_addr_space]"])
def test_what_is_reserved_behind_the_first_pages_of_code_counts(name: str) -> None:
    code = mapping(0x7F0000000000, 0x8000, "r-x", name)
    reserved = mapping(code.end, 48 * MEGABYTE, "---", name)
    found = find_jit_code([TEXT, code, reserved, HEAP], V3_3, aarch64=False)
    assert found is not None
    assert (found.start, found.end) == (code.start, reserved.end)
    assert found.rule == (2, 0, 0, 32, 0)
    on_arm = find_jit_code([code, reserved], V3_3, aarch64=True)
    assert on_arm is not None
    assert on_arm.rule == (3, 0x41, 0, 16, -8)  # CFA = fp + 16, a frame record below it


@pytest.mark.parametrize(
    "mappings",
    [
        [],
        [TEXT, HEAP, VDSO, CLOSURES],
        [mapping(0x1000, 48 * MEGABYTE, "---")],  # reserved, but no code
        [CLOSURES, mapping(0x800000, 48 * MEGABYTE, "---")],  # not behind it
        [mapping(0x1000, 48 * MEGABYTE, "rwx")],  # somebody else's: YJIT keeps the two apart
    ],
)
def test_other_code_without_a_file_is_not_taken_for_it(mappings: list[Mapping]) -> None:
    assert find_jit_code(mappings, V3_3, aarch64=False) is None


def test_rubies_without_yjit_have_none() -> None:
    code = [mapping(0x7F0000000000, 256 * MEGABYTE, "r-x")]
    assert find_jit_code(code, 0x30007, aarch64=False) is None
    assert find_jit_code(code, V3_1, aarch64=True) is None


def test_the_id_of_compiled_code_is_told_from_a_files() -> None:
    assert is_jit_code(JIT_FILE_ID)
    assert is_jit_code(JIT_FILE_ID | 0xFFFF)
    assert not is_jit_code(JIT_FILE_ID | 0x10000)
    assert not is_jit_code(0)
