# SPDX-License-Identifier: Apache-2.0
"""Where the stack of a fiber, or of a thread that shares a native one, begins on aarch64.

Ruby starts it as if a function returned to its first instruction (coroutine_initialize,
coroutine/arm64/Context.h): the register for return addresses then holds that function's own address. That is
what an unwinder finds as the caller of the function, and what it finds behind that is no stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rubyunwind.abi import FrameMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rubyunwind.abi import Step

__all__ = ["without_what_precedes"]

# Plain numbers: of a deep stack there are thousands to compare.
_NATIVE, _JIT = int(FrameMarker.NATIVE), int(FrameMarker.RUBY_JIT)


def without_what_precedes(
    items: Sequence[Step], file_id: int, begin_of: Callable[[int], int | None]
) -> Sequence[Step] | None:
    """Return the frames of a coroutine's own stack, leaf first; None when they do not show its beginning.

    `file_id` is the file that holds Ruby; `begin_of` returns where the function of that file begins that
    holds an ELF virtual address. Frames that are not native stay: Ruby's own come last where the walk ended
    early.
    """
    callee: Step | None = None
    for index, item in enumerate(items):
        if item.kind != _NATIVE:
            continue
        if callee is not None and callee.file_id == item.file_id == file_id and item.return_address:
            inside = callee.addr_or_line - callee.return_address
            # A call that never returns may be the last one before a function, but it calls another one.
            if item.addr_or_line <= inside and begin_of(inside) == item.addr_or_line:
                return [one for at, one in enumerate(items) if at < index or one.kind not in (_NATIVE, _JIT)]
        callee = item
    return None
