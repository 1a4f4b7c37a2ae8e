# SPDX-License-Identifier: Apache-2.0
"""The stacks of a process that were named, and what their names rest on.

Most stacks that are new differ from a known one in their leaf only: the interpreter is at another of its
instructions, which is one native frame of hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

from rubyunwind.abi import FrameMarker, TraceOrigin

if TYPE_CHECKING:
    from rubyunwind.abi import Step, Trace
    from rubyunwind.profiler.interpreter import InterpreterLoop
    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.samples import SampledStack
    from rubyunwind.ruby.code_cache import Known
    from rubyunwind.ruby.detect import RubyRuntime
    from rubyunwind.ruby.symbolize import RubySymbolizer

__all__ = ["Alike", "KnownStack", "KnownStacks", "alike", "digest_of"]

# struct Trace, types.h: from kernel_stack_id to flags is everything beside the frames that decides what they
# are; then come the frames, of 24 bytes each, and the first 8 bytes of one are its file.
_DECIDES = slice(56, 72)
_FRAMES, _SECOND_FRAME = slice(80, None), slice(104, None)
_DIGEST = 16

Alike = tuple["RubySymbolizer", bytes]
"""Who names the code of stacks that are equal but for the leaf, and a digest."""


@dataclass(slots=True)
class KnownStack:
    """What was named and when, by the clock, and until when that is known to have been right.

    It rests on `grounds`; without them it has to be named again. `loop` and `ruby` are what was known of the
    process then.
    """

    named: SampledStack
    since: float
    right: float
    grounds: tuple[Known, ...] | None
    loop: InterpreterLoop | None
    ruby: RubyRuntime | None

    def with_leaf(self, leaf: Frame) -> KnownStack:
        """Return the stack whose leaf is another one."""
        return replace(self, named=self.named._replace(frames=(leaf, *self.named.frames[1:])))


class KnownStacks(dict[tuple["RubySymbolizer | None", bytes], KnownStack]):
    """By who names their code and by digest: a deep stack has some ten kilobytes.

    `alike` has one of those that differ in the leaf only, `frames` is how many frames all have together.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alike: dict[Alike, KnownStack] = {}
        self.frames = 0

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self.alike.clear()
        self.frames = 0


def digest_of(trace: Trace) -> bytes:
    """Return what traces of equal stacks share."""
    raw = memoryview(bytes(trace))
    digest = blake2b(raw[_DECIDES], digest_size=_DIGEST)
    digest.update(raw[_FRAMES])
    return digest.digest()


def alike(trace: Trace, leaf: Step, *, in_loop: bool) -> bytes | None:
    """Return what traces share whose stacks are equal but for a native leaf; None if its leaf is no such.

    Where Ruby frames are put may depend on whether the leaf is `in_loop` (the interpreter's), the reason of
    an incomplete stack on its file. Kernel frames come before the leaf, and what a thread that is off the
    CPU waits for is told by its leaf.
    """
    if leaf.kind != FrameMarker.NATIVE or trace.kernel_stack_id >= 0 or trace.origin != TraceOrigin.SAMPLING:
        return None
    raw = memoryview(bytes(trace))
    digest = blake2b(raw[_DECIDES], digest_size=_DIGEST, salt=b"loop" if in_loop else b"")
    digest.update(leaf.file_id.to_bytes(8, "little"))
    digest.update(raw[_SECOND_FRAME])
    return digest.digest()
