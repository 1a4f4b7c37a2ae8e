# SPDX-License-Identifier: Apache-2.0
"""What the tracer builds on: a failure here is the kernel's or the guest's, not the tracer's."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SYSCALL_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
BPF_PROG_LOAD = 5
BPF_PROG_TYPE_PERF_EVENT = 7
# r0 = 0; exit
RETURN_ZERO = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)


def test_loads_the_smallest_perf_event_program() -> None:
    instructions = ctypes.create_string_buffer(RETURN_ZERO, len(RETURN_ZERO))
    licence = ctypes.create_string_buffer(b"GPL")
    # union bpf_attr of include/uapi/linux/bpf.h: prog_type, insn_cnt, insns, license
    attributes = struct.pack(
        "<IIQQ", BPF_PROG_TYPE_PERF_EVENT, 2, ctypes.addressof(instructions), ctypes.addressof(licence)
    )
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(SYSCALL_BPF, BPF_PROG_LOAD, attributes, len(attributes))
    assert fd >= 0, os.strerror(ctypes.get_errno())
    os.close(fd)
