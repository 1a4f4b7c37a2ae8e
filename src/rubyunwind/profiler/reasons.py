# SPDX-License-Identifier: Apache-2.0
"""Is a trace a whole stack, and if not, why? The words for it that every format shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.abi import ErrorCode, TraceFlag

if TYPE_CHECKING:
    from rubyunwind.abi import Trace

__all__ = [
    "LIMIT",
    "NO_CONTEXT",
    "NO_RUBY_INFORMATION",
    "TAIL_CALLS",
    "TORN",
    "TRUNCATIONS",
    "incompleteness",
    "reason_of",
]

LIMIT = "limit"
TAIL_CALLS = "tail calls"
NO_CONTEXT = "no execution context"
NO_RUBY_INFORMATION = "no Ruby information"
UNREADABLE = "unreadable memory"
UNMAPPED = "unmapped pc"
NO_ROW = "no unwind row"
TORN = "torn read"

# Cut by a limit of the unwinder; the leaf part is exact.
TRUNCATIONS = frozenset({LIMIT, TAIL_CALLS})

_REASONS = {
    ErrorCode.UNREACHABLE: "empty program slot",
    ErrorCode.STACK_LENGTH_EXCEEDED: LIMIT,
    ErrorCode.EMPTY_STACK: "empty stack",
    ErrorCode.MAX_TAIL_CALLS: TAIL_CALLS,
    ErrorCode.RUBY_NO_PROC_INFO: NO_RUBY_INFORMATION,
    ErrorCode.RUBY_READ_STACK_PTR: UNREADABLE,
    ErrorCode.RUBY_READ_STACK_SIZE: UNREADABLE,
    ErrorCode.RUBY_READ_CFP: UNREADABLE,
    ErrorCode.RUBY_READ_EP: UNREADABLE,
    ErrorCode.RUBY_READ_ISEQ_BODY: UNREADABLE,
    ErrorCode.RUBY_READ_ISEQ_ENCODED: UNREADABLE,
    ErrorCode.RUBY_READ_ISEQ_SIZE: UNREADABLE,
    ErrorCode.NATIVE_LOOKUP_TEXT_SECTION: NO_ROW,
    ErrorCode.NATIVE_LOOKUP_STACK_DELTA_OUTER_MAP: NO_ROW,
    ErrorCode.NATIVE_LOOKUP_STACK_DELTA_INNER_MAP: NO_ROW,
    ErrorCode.NATIVE_EXCEEDED_DELTA_LOOKUP_ITERATIONS: NO_ROW,
    ErrorCode.NATIVE_LOOKUP_RANGE: NO_ROW,
    ErrorCode.NATIVE_STACK_DELTA_INVALID: NO_ROW,
    ErrorCode.NATIVE_BAD_UNWIND_INFO_INDEX: NO_ROW,
    ErrorCode.NATIVE_PC_READ: UNREADABLE,
    ErrorCode.NATIVE_LR_UNWINDING_MID_TRACE: NO_ROW,
    ErrorCode.NATIVE_READ_KERNELMODE_REGS: "no user registers",
    ErrorCode.NATIVE_UNEXPECTED_KERNEL_ADDRESS: UNMAPPED,
    ErrorCode.NATIVE_NO_PID_PAGE_MAPPING: UNMAPPED,
    ErrorCode.NATIVE_ZERO_PC: UNMAPPED,
    ErrorCode.NATIVE_SMALL_PC: UNMAPPED,
    ErrorCode.NATIVE_AARCH64_32BIT_COMPAT_MODE: "32-bit program",
    ErrorCode.NATIVE_X64_32BIT_COMPAT_MODE: "32-bit program",
}


def reason_of(error: ErrorCode) -> str:
    """Return the words for an error code; its own name for one that our kernel side never gives."""
    return _REASONS.get(error) or error.name.lower().replace("_", " ")


def incompleteness(trace: Trace, root_in_interpreter: bool, *, coroutine: bool = False) -> str | None:
    """Return None for a whole stack, else the reason.

    Whole means: the native walk reached the root, the Ruby stack, if one was met, its base, and no frame is
    an error.
    `root_in_interpreter` says that the outermost native frame lies in the file of the Ruby interpreter: a
    return address of zero there is the entry of a fiber, whose stack begins so (coroutine_initialize),
    and not a stack that was lost. `coroutine` says that the walk is known to have come to such an entry; what
    it found behind that does not matter then.
    """
    flags = trace.flags
    if flags & TraceFlag.EMPTY_SLOT:
        return reason_of(ErrorCode.UNREACHABLE)
    ended = coroutine and (flags & TraceFlag.RUBY_BASE or not flags & TraceFlag.RUBY_MET)
    error = None if ended else trace.error
    if error is None and not ended:
        # An unwinder may leave an error frame and go on; ours does not, other writers of the ABI do.
        error = trace.first_error()
    if error is not None and not (
        error == ErrorCode.NATIVE_ZERO_PC and root_in_interpreter and flags & TraceFlag.RUBY_BASE
    ):
        return reason_of(error)
    if flags & TraceFlag.RUBY_MET and not flags & TraceFlag.RUBY_BASE:
        return NO_CONTEXT if flags & TraceFlag.NO_EC else UNREADABLE
    rooted = coroutine or flags & (TraceFlag.NATIVE_ROOT | TraceFlag.KERNEL_INLINE)
    if trace.stack_len and not rooted:
        return NO_ROW
    return None
