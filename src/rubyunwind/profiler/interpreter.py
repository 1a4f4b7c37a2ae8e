# SPDX-License-Identifier: Apache-2.0
"""Where the interpreter's loop is in its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rubyunwind.abi import Frame as TraceFrame
    from rubyunwind.abi import Step

__all__ = ["InterpreterLoop"]


@dataclass(frozen=True, slots=True)
class InterpreterLoop:
    """The function that runs Ruby code: ELF virtual addresses in a file, both ends inclusive.

    `cold` is the part of it that the compiler has moved away from the rest, if there is one.
    """

    file_id: int
    lower: int
    upper: int
    cold: tuple[int, int] | None = None

    def holds(self, frame: TraceFrame | Step) -> bool:
        """Whether a native frame of a trace is in it."""
        address = frame.addr_or_line - frame.return_address
        if frame.file_id != self.file_id:
            return False
        cold = self.cold is not None and self.cold[0] <= address <= self.cold[1]
        return cold or self.lower <= address <= self.upper
