# SPDX-License-Identifier: Apache-2.0
"""What the kernel side is told about the machine, and where it cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubyunwind.errors import NotSupported
from rubyunwind.profiler.system import require_initial_pid_namespace, system_config


def test_the_registers_lie_at_the_top_of_a_16_kb_kernel_stack() -> None:
    assert system_config("x86_64").stack_ptregs_offset == 16384 - 21 * 8
    assert system_config("aarch64").stack_ptregs_offset == 16384 - 336
    assert system_config("riscv64").stack_ptregs_offset == 0


def test_signed_return_addresses_are_cut_to_48_bits_on_aarch64_only() -> None:
    assert system_config("aarch64").inverse_pac_mask == 0x0000FFFFFFFFFFFF
    assert system_config("x86_64").inverse_pac_mask == 0


def test_a_private_pid_namespace_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="--pid=host"):
        require_initial_pid_namespace(tmp_path)  # any other inode than that of the initial namespace
