# SPDX-License-Identifier: Apache-2.0
"""When a stack counts as whole, and the words for why it does not."""

from __future__ import annotations

import pytest

from rubyunwind.abi import ErrorCode, Frame, FrameMarker, Trace, TraceFlag
from rubyunwind.profiler.reasons import TRUNCATIONS, incompleteness, reason_of

ROOT, MET, BASE = TraceFlag.NATIVE_ROOT, TraceFlag.RUBY_MET, TraceFlag.RUBY_BASE
NATIVE = Frame(file_id=1, addr_or_line=0x10, kind=FrameMarker.NATIVE)
KERNEL = Frame(addr_or_line=0xFFFF, kind=FrameMarker.KERNEL)


def abort(error: int) -> Frame:
    return Frame(addr_or_line=error, kind=FrameMarker.ABORT)


def reason(flags: int, *frames: Frame, fiber: bool = False, stack_id: int = -1) -> str | None:
    return incompleteness(Trace(flags=flags, frames=frames, kernel_stack_id=stack_id), fiber)


@pytest.mark.parametrize("error", list(ErrorCode))
def test_every_error_code_has_words(error: ErrorCode) -> None:
    words = reason_of(error)
    assert words
    assert words == words.lower() or words.startswith("no Ruby")
    assert "_" not in words
    if error != ErrorCode.OK:
        assert reason(ROOT, NATIVE, abort(error)) == words


def test_an_error_code_from_a_newer_kernel_side_is_named_by_its_number() -> None:
    assert "0x270f" in reason_of(ErrorCode(9999))
    assert reason(ROOT, NATIVE, abort(9999)) == reason_of(ErrorCode(9999))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ErrorCode.STACK_LENGTH_EXCEEDED, "limit"),
        (ErrorCode.MAX_TAIL_CALLS, "tail calls"),
        (ErrorCode.RUBY_READ_CFP, "unreadable memory"),
        (ErrorCode.NATIVE_PC_READ, "unreadable memory"),
        (ErrorCode.NATIVE_NO_PID_PAGE_MAPPING, "unmapped pc"),
        (ErrorCode.NATIVE_STACK_DELTA_INVALID, "no unwind row"),
        (ErrorCode.NATIVE_X64_32BIT_COMPAT_MODE, "32-bit program"),
    ],
)
def test_the_words_are_those_of_the_formats(error: ErrorCode, words: str) -> None:
    assert reason_of(error) == words
    assert (words in TRUNCATIONS) == (words in ("limit", "tail calls"))


def test_a_native_stack_that_reached_its_root_is_whole() -> None:
    assert reason(ROOT, NATIVE) is None


def test_a_stack_without_root_and_without_error_is_not_whole() -> None:
    assert reason(0, NATIVE) == "no unwind row"


def test_a_ruby_stack_is_whole_at_its_base_only() -> None:
    assert reason(ROOT | MET | BASE, NATIVE) is None
    assert reason(ROOT | MET, NATIVE) == "unreadable memory"


def test_a_thread_without_execution_context_says_so() -> None:
    assert reason(ROOT | MET | TraceFlag.NO_EC, NATIVE) == "no execution context"


def test_kernel_frames_alone_are_whole() -> None:
    """A kernel thread, or a task that has no user side any more."""
    assert reason(TraceFlag.KERNEL_MODE, stack_id=7) is None
    assert reason(TraceFlag.KERNEL_MODE | TraceFlag.KERNEL_INLINE, KERNEL) is None


def test_an_empty_slot_outweighs_what_it_led_to() -> None:
    flags = ROOT | TraceFlag.EMPTY_SLOT
    assert reason(flags, NATIVE) == "empty program slot"
    assert reason(flags, NATIVE, abort(ErrorCode.NATIVE_SMALL_PC)) == "empty program slot"


def test_the_zero_at_the_root_of_a_fiber_is_its_entry() -> None:
    zero = abort(ErrorCode.NATIVE_ZERO_PC)
    assert reason(ROOT | MET | BASE, NATIVE, zero, fiber=True) is None


def test_a_zero_elsewhere_is_a_lost_stack() -> None:
    zero = abort(ErrorCode.NATIVE_ZERO_PC)
    assert reason(ROOT | MET | BASE, NATIVE, zero) == "unmapped pc"
    assert reason(ROOT | MET, NATIVE, zero, fiber=True) == "unmapped pc"
    small = abort(ErrorCode.NATIVE_SMALL_PC)
    assert reason(ROOT | MET | BASE, NATIVE, small, fiber=True) == "unmapped pc"


def test_an_error_frame_inside_the_stack_counts() -> None:
    """Unwinders of other writers may leave one and go on."""
    inner = Frame(
        addr_or_line=ErrorCode.RUBY_READ_EP, kind=FrameMarker(FrameMarker.RUBY | FrameMarker.ERROR_BIT)
    )
    assert reason(ROOT | MET | BASE, inner, NATIVE) == "unreadable memory"
    limit = abort(ErrorCode.STACK_LENGTH_EXCEEDED)
    assert reason(ROOT | MET | BASE, inner, NATIVE, limit) == "limit"
