# SPDX-License-Identifier: Apache-2.0
"""What tests share: whether bpf(2) can be used here, and eBPF test programs compiled on the spot."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EBPF = Path(__file__).parent / "live" / "ebpf"
# Turns "cannot run BPF here" from a skip into a failure: CI sets it, so that it cannot pass by skipping.
REQUIRE = "RUBYUNWIND_REQUIRE_LIVE"

# System call numbers of bpf(2); commands of enum bpf_cmd; BPF_PROG_TYPE_PERF_EVENT.
_BPF = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _PROG_LOAD, _PERF_EVENT = 0, 5, 7


def _bpf(command: int, attributes: bytes) -> int:
    """Run one bpf(2) command by hand: a missing libbpf must fail the tests, not skip them."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, 128)
    return int(libc.syscall(_BPF[os.uname().machine], command, buffer, len(attributes)))


@functools.cache
def why_no_bpf() -> str:
    """Return why a map and a perf event program cannot be made on this machine; "" if they can."""
    if os.uname().machine not in _BPF:
        return f"machine {os.uname().machine} is not supported"
    # mov r0, 0; exit
    code = ctypes.create_string_buffer(struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0), 16)
    licence = ctypes.create_string_buffer(b"GPL")
    program = struct.pack("<IIQQ", _PERF_EVENT, 2, ctypes.addressof(code), ctypes.addressof(licence))
    for what, command, attributes in (
        ("a map", _MAP_CREATE, struct.pack("<IIII", 2, 4, 4, 1)),
        ("a program", _PROG_LOAD, program),
    ):
        fd = _bpf(command, attributes)
        if fd < 0:
            code_ = ctypes.get_errno()
            return f"bpf(2) refuses {what}: {errno.errorcode.get(code_, code_)} (uid {os.geteuid()})"
        os.close(fd)
    return ""


@pytest.fixture(scope="session")
def bpf() -> None:
    """Skip, with the reason, where this machine truly cannot load BPF programs."""
    reason = why_no_bpf()
    if reason and os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def compile_ebpf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles tests/live/ebpf/NAME.bpf.c once and gives the object's path."""
    folder = tmp_path_factory.mktemp("ebpf")

    @functools.cache
    def build(name: str, define: str = "") -> Path:
        clang = next(filter(None, map(shutil.which, ("clang", "clang-19", "clang-16", "clang-14"))), None)
        if clang is None:
            pytest.fail("clang 14 or newer is needed to build the test programs (Debian: apt install clang)")
        target = folder / f"{name}{define}.o"
        arch = {"x86_64": "-D__x86_64__", "aarch64": "-D__aarch64__"}[os.uname().machine]
        command = [clang, "-target", "bpf", define or arch, "-mcpu=v2", "-O2", "-g", "-Wall", "-Werror"]
        command += ["-Wno-unused-const-variable", "-Wno-unused-variable", f"-I{ROOT / 'support/ebpf'}"]
        subprocess.run([*command, "-c", str(EBPF / f"{name}.bpf.c"), "-o", str(target)], check=True)
        return target

    return build


@pytest.fixture(scope="session")
def loader_object(compile_ebpf: Callable[..., Path]) -> Path:
    """Return the object of loader.bpf.c, which has one of everything."""
    return compile_ebpf("loader")


@pytest.fixture(scope="session")
def rejected_object(compile_ebpf: Callable[..., Path]) -> Path:
    """Return the object of rejected.bpf.c, which the verifier refuses."""
    return compile_ebpf("rejected")
