# SPDX-License-Identifier: Apache-2.0
"""A thread's user registers as the kernel writes them: the NT_PRSTATUS register set, named per machine."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from rubyunwind.errors import DecodeError, NotSupported

__all__ = ["AARCH64", "X86_64", "RegisterLayout", "layout_of"]


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """The order of a machine's register set, all u64, and which registers play which part.

    `lr` is "" where the return address is on the stack. `thread_pointer` is "" where the thread pointer
    is not in this set (AArch64 has it in NT_ARM_TLS).
    """

    machine: str
    names: tuple[str, ...]
    pc: str
    sp: str
    fp: str
    lr: str
    thread_pointer: str

    @property
    def size(self) -> int:
        """Bytes of the register set."""
        return 8 * len(self.names)

    def decode(self, data: bytes) -> dict[str, int]:
        """Return the registers by name; DecodeError when `data` is another size than this machine's set.

        A 32-bit program on a 64-bit kernel has a smaller set.
        """
        if len(data) != self.size:
            raise DecodeError(
                f"a register set of {len(data)} bytes; {self.machine} has {self.size} (a 32-bit program?)"
            )
        return dict(zip(self.names, struct.unpack(f"<{len(self.names)}Q", data), strict=True))


# struct user_regs_struct of arch/x86/include/asm/user_64.h.
X86_64 = RegisterLayout(
    machine="x86_64",
    names=(
        *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi"),
        *(
            "rdi",
            "orig_rax",
            "rip",
            "cs",
            "eflags",
            "rsp",
            "ss",
            "fs_base",
            "gs_base",
            "ds",
            "es",
            "fs",
            "gs",
        ),
    ),
    pc="rip",
    sp="rsp",
    fp="rbp",
    lr="",
    thread_pointer="fs_base",
)
# struct user_pt_regs of arch/arm64/include/uapi/asm/ptrace.h: regs[31], sp, pc, pstate.
AARCH64 = RegisterLayout(
    machine="aarch64",
    names=(*(f"x{number}" for number in range(31)), "sp", "pc", "pstate"),
    pc="pc",
    sp="sp",
    fp="x29",
    lr="x30",
    thread_pointer="",
)


def layout_of(machine: str | None = None) -> RegisterLayout:
    """Return the layout of a machine as uname prints it, by default this one; NotSupported for others."""
    machine = machine or os.uname().machine
    for layout in (X86_64, AARCH64):
        if layout.machine == machine:
            return layout
    raise NotSupported(
        f"the registers of a thread on {machine} are not known",
        feature="registers",
        needs="x86_64 or aarch64",
    )
