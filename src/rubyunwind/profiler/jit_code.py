# SPDX-License-Identifier: Apache-2.0
"""Code that YJIT makes at run time: where it lies in a process, and how a frame of it is left.

It has no unwind rows. But all of it keeps one kind of frame, so one rule does, and the kernel side takes that
from the file id: JIT_FILE_ID and the rule's index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.abi import JIT_FILE_ID, JIT_RULE_MASK, UnwindOpcode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rubyunwind.elf.deltas import UnwindInfoTuple
    from rubyunwind.process.mappings import Mapping

__all__ = ["JITCode", "find_jit_code", "is_jit_code"]

# YJIT reserves tens of megabytes at once; trampolines of libffi and the like are some pages.
_SMALLEST = 1 << 20

# x86_64 (3.1: yjit_codegen.c, yjit_entry_prologue; 3.2 on: yjit/src/codegen.rs, gen_entry_prologue): the
# entry pushes three registers, and from there on sp stays: CFA = sp + 3 * 8 + 8. --yjit-perf (3.3) pushes
# more, and calls for Hash literals two words more: the kernel side tries that where the first does not fit.
_X86_64 = (int(UnwindOpcode.BASE_SP), 0, 0, 32, 0)
# aarch64, which YJIT has from 3.2 on (yjit/src/backend/arm64, FrameSetup): a frame record.
_AARCH64 = (
    int(UnwindOpcode.BASE_FP),
    int(UnwindOpcode.BASE_CFA) | int(UnwindOpcode.FRAME),
    0,
    16,
    -8,
)


def is_jit_code(file_id: int) -> bool:
    """Whether what stands in place of a file's id is that of compiled code."""
    return file_id & ~JIT_RULE_MASK == JIT_FILE_ID


class JITCode(NamedTuple):
    """Memory of a process that holds compiled code, or is reserved for it, and the rule for all of it."""

    start: int
    end: int
    rule: UnwindInfoTuple


def find_jit_code(mappings: Sequence[Mapping], version: int, *, aarch64: bool) -> JITCode | None:
    """Return where YJIT of Ruby `version` (major << 16 | minor << 8 | patch) has its code; None: nowhere.

    That is the largest stretch of memory without a file which begins with code. What is reserved behind it
    counts: from 3.2 on it becomes executable by the page.
    """
    if version < 0x30100 or (aarch64 and version < 0x30200):
        return None
    best = (0, 0)
    start = end = 0
    for mapping in mappings:
        anonymous = not mapping.is_file and (not mapping.path or mapping.path.startswith("[anon:"))
        code = mapping.executable and not mapping.writable
        reserved = not mapping.readable and not mapping.writable
        if anonymous and start and mapping.start == end and (code or reserved):
            end = mapping.end
        elif anonymous and code:
            start, end = mapping.start, mapping.end
        else:
            start = end = 0
        best = max(best, (end - start, start))
    size, start = best
    if size < _SMALLEST:
        return None
    return JITCode(start, start + size, _AARCH64 if aarch64 else _X86_64)
