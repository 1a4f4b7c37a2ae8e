# SPDX-License-Identifier: Apache-2.0
"""What the kernel side is told about the machine, and where it cannot work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rubyunwind.errors import NotSupported
from rubyunwind.profiler.system import pid_namespace, system_config


def test_the_registers_lie_at_the_top_of_a_16_kb_kernel_stack() -> None:
    assert system_config("x86_64").stack_ptregs_offset == 16384 - 21 * 8
    assert system_config("aarch64").stack_ptregs_offset == 16384 - 336
    assert system_config("riscv64").stack_ptregs_offset == 0


def test_signed_return_addresses_are_cut_to_48_bits_on_aarch64_only() -> None:
    assert system_config("aarch64").inverse_pac_mask == 0x0000FFFFFFFFFFFF
    assert system_config("x86_64").inverse_pac_mask == 0


def test_the_initial_pid_namespace_is_told_by_its_inode() -> None:
    inode = Path("/proc/self/ns/pid").stat().st_ino
    assert pid_namespace() == (0 if inode == 0xEFFFFFFC else inode)


def test_another_pid_namespace_has_a_number(tmp_path: Path) -> None:
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / str(os.getpid()) / "ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    assert pid_namespace(tmp_path) == (tmp_path / "self/ns/pid").stat().st_ino


@pytest.mark.parametrize("shown", ["1", None])
def test_a_proc_of_another_pid_namespace_is_refused_with_advice(tmp_path: Path, shown: str | None) -> None:
    if shown:
        (tmp_path / "self").symlink_to(shown)
    with pytest.raises(
        NotSupported, match=f"process {os.getpid()}, and there {shown or 'nobody'}"
    ) as refused:
        pid_namespace(tmp_path)
    assert "mount -t proc" in str(refused.value)
