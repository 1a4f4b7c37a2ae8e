# SPDX-License-Identifier: Apache-2.0
"""What support/ebpf/types.h means on each architecture, for the tests that compare layouts."""

from __future__ import annotations

import functools
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
KINDS = ("release", "debug", "legacy")
TYPES_H = Path(__file__).parents[2] / "support/ebpf/types.h"
# The integer types of support/ebpf/prelude.h, as cffi knows them.
PRELUDE = """
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
typedef uint32_t __be32; typedef uint64_t __be64;
"""
# A struct whose layout types.h leaves to the compiler: packed, and open (`...`) for the extension's cffi.
OPEN = re.compile(r"typedef struct (\w+) \{([^{}]*?)\.\.\.;\s*\} \1;")


@functools.cache
def definitions(arch: str) -> Any:
    """Return a cffi FFI with types.h as `arch` sees it: the extension's own one on this architecture."""
    machine = ARCHITECTURES[arch]
    if machine == platform.machine():
        from rubyunwind._native import ffi

        return ffi
    clang = next(filter(None, map(shutil.which, ("clang", "clang-19", "clang-16", "clang-14"))), None)
    if clang is None:
        pytest.skip("clang, which the build needs too, is not on PATH")
    if not TYPES_H.exists():
        pytest.skip(f"no source tree here: {TYPES_H} does not exist")
    command = [clang, f"--target={machine}-linux-gnu", "-E", "-P", "-DRUBYUNWIND_CDEF", str(TYPES_H)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(PRELUDE + OPEN.sub("", text))
    for name, body in OPEN.findall(text):
        ffi.cdef(f"typedef struct {name} {{{body}}} {name};", packed=True)
    return ffi


def fields_of(ffi: Any, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size of each field of a struct or union."""
    for field, info in ffi.typeof(name).fields:
        yield field, info.offset, ffi.sizeof(info.type)


def object_bytes(kind: str, arch: str) -> bytes:
    return files("rubyunwind").joinpath("objects", f"tracer.ebpf.{kind}.{arch}.o").read_bytes()
