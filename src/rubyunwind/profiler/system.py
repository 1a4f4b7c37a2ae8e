# SPDX-License-Identifier: Apache-2.0
"""What the kernel side has to be told about this machine."""

from __future__ import annotations

import os
from pathlib import Path

from rubyunwind.abi import SystemConfig
from rubyunwind.errors import NotSupported

__all__ = ["ANALYSIS_MAP", "ANALYSIS_PROGRAM", "pid_namespace", "system_config"]

# Of the legacy object: loaded alone, to see where the kernel keeps things.
ANALYSIS_PROGRAM, ANALYSIS_MAP = "analyze_system", "system_analysis"

# include/linux/proc_ns.h: PROC_PID_INIT_INO
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC

# THREAD_SIZE less struct pt_regs, which is where task_pt_regs() finds the registers that user code left.
# x86_64: 16 kB and 168 bytes; arm64: 16 kB and 336 bytes (struct pt_regs up to stackframe, kernels before
# 5.15). Only those kernels need it: later ones have bpf_task_pt_regs.
_STACK_PTREGS_OFFSET = {"x86_64": 16384 - 168, "aarch64": 16384 - 336}
# arm64 signs return addresses in the bits above the virtual address, 48 bits wide for user programs that
# do not ask for more (Documentation/arch/arm64/pointer-authentication.rst).
_INVERSE_PAC_MASK = {"aarch64": (1 << 48) - 1}


def system_config(machine: str | None = None) -> SystemConfig:
    """Return the value of `system_config` for a machine (as uname says it), by default this one."""
    machine = machine or os.uname().machine
    return SystemConfig(
        stack_ptregs_offset=_STACK_PTREGS_OFFSET.get(machine, 0),
        inverse_pac_mask=_INVERSE_PAC_MASK.get(machine, 0),
    )


def pid_namespace(proc: Path = Path("/proc")) -> int:
    """Return the inode number of the pid namespace that we are in; 0: the initial one, the kernel's own.

    Raises NotSupported where /proc shows another one: what it says of a pid is of another process then.
    """
    try:
        shown = str((proc / "self").readlink())
    except OSError:
        shown = ""
    if shown != str(os.getpid()):
        raise NotSupported(
            f"/proc does not show the pid namespace that we are in: we are process {os.getpid()}, and there "
            f"{shown or 'nobody'}. Mount it: `mount -t proc proc /proc`, `unshare --pid --fork --mount-proc`",
            feature="the /proc of another pid namespace",
            needs="a /proc that was mounted in this pid namespace",
        )
    inode = (proc / "self/ns/pid").stat().st_ino
    return 0 if inode == _INITIAL_PID_NAMESPACE else inode
