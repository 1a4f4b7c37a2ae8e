# SPDX-License-Identifier: Apache-2.0
"""Emit the sources of the package's two cffi modules; run by meson, never at run time.

    make_cffi.py native OUT.c types.cdef NAME.cdef...     the API-mode extension `_native`
    make_cffi.py libbpf OUT.py libbpf.cdef                the ABI-mode binding `_libbpf`

`types.cdef` is support/ebpf/types.h after the preprocessor; the other cdefs are read as they are.
"""

import sys
from pathlib import Path

import cffi

# What prelude.h typedefs, in words cffi knows. __be32 and __be64 are plain integers to it.
PRELUDE = """
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
typedef uint32_t __be32; typedef uint64_t __be64;
"""
# 64-bit constants of types.h: the preprocessor drops their #define lines.
WIDE = """
#define HS_TSID_SEG_MAP_MASK ...
#define UNKNOWN_FILE ...
#define JIT_FILE_ID ...
#define JIT_RULE_MASK ...
#define FUNC_TYPE_UNKNOWN ...
#define REPORTED_PIDS_TIMEOUT ...
"""
# What C calls back, and the parts of opaque structs that Python looks at.
CALLBACKS = """
extern "Python" int host_read_python(void *context, u64 address, void *to, u32 length);
"""


def main(kind: str, out: str, *inputs: str) -> None:
    text = "".join(Path(path).read_text(encoding="utf-8") for path in inputs)
    ffi = cffi.FFI()
    if kind == "native":
        ffi.cdef(PRELUDE + WIDE + text + CALLBACKS)
        ffi.set_source(
            "rubyunwind._native",
            "".join(
                f'#include "{name}.h"\n' for name in ("types", "cfi", "drain", "group", "thread", "host/host")
            ),
        )
        ffi.emit_c_code(out)
    else:
        ffi.cdef(text)
        ffi.set_source("rubyunwind._libbpf", None)
        ffi.emit_python_code(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
