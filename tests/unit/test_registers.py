# SPDX-License-Identifier: Apache-2.0
"""Register sets as the kernel writes them, by name."""

from __future__ import annotations

import struct

import pytest

from rubyunwind.errors import DecodeError, NotSupported
from rubyunwind.process.registers import AARCH64, X86_64, RegisterLayout, layout_of


def test_x86_64_registers_are_in_the_order_of_user_regs_struct() -> None:
    assert X86_64.size == 216
    found = X86_64.decode(struct.pack("<27Q", *range(27)))
    # Offsets of include/asm/user_64.h, in words.
    assert (found["rbp"], found["rax"], found["orig_rax"], found["rip"], found["rsp"]) == (4, 10, 15, 16, 19)
    assert (found["fs_base"], found["gs_base"], found["gs"]) == (21, 22, 26)


def test_aarch64_registers_are_in_the_order_of_user_pt_regs() -> None:
    assert AARCH64.size == 272
    found = AARCH64.decode(struct.pack("<34Q", *range(34)))
    assert (found["x0"], found["x29"], found["x30"]) == (0, 29, 30)
    assert (found["sp"], found["pc"], found["pstate"]) == (31, 32, 33)


@pytest.mark.parametrize("layout", [X86_64, AARCH64], ids=lambda layout: layout.machine)
def test_the_parts_a_layout_names_are_registers_of_it(layout: RegisterLayout) -> None:
    parts = {layout.pc, layout.sp, layout.fp, layout.lr, layout.thread_pointer} - {""}
    assert parts <= set(layout.names)
    assert layout_of(layout.machine) is layout


def test_the_set_of_a_32_bit_program_is_refused() -> None:
    with pytest.raises(DecodeError, match="68 bytes; x86_64 has 216"):
        X86_64.decode(bytes(68))


def test_another_machine_is_not_supported() -> None:
    with pytest.raises(NotSupported, match="riscv64"):
        layout_of("riscv64")
