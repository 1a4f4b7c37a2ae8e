# SPDX-License-Identifier: Apache-2.0
"""A walk over one thread's control frames from user space, by the rules the BPF side follows.

Control frames (cfp) lie at the high end of the VM stack, the newest lowest: the walk goes up from ec.cfp to
the last frame but one (the oldest is a dummy). It trusts nothing it reads: every address is checked
against the stack, and the number of frames is bounded, so damaged or hostile memory ends it early.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.methods import resolve_method_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["BadStack", "ControlFrame", "walk_stack"]

# enum vm_frame_env_flags, vm_core.h, in ep[0]: the same bits in 2.5 to 4.0. The lowest bit makes it a Fixnum.
_MAGIC_MASK = 0x7FFF0001
_MAGIC_CFUNC = 0x55550001
_FLAG_LOCAL = 0x0002
_FLAG_BMETHOD = 0x0040

# struct of an environment's last three words: ep[-2] method entry or cref, ep[-1] parent | tag, ep[0] flags.
_ENV = struct.Struct("<3Q")
_MAX_ENV_LEVELS = 64

MAX_STACK_WORDS = 1 << 27
"""Largest VM stack believed in, in VALUEs (1 GiB; Ruby's default is 1 MiB)."""

MAX_FRAMES = 1 << 17
_CHUNK_FRAMES = 64


class BadStack(RubyUnwindError):
    """An execution context whose numbers contradict each other: the layout or the address is wrong."""


@dataclass(frozen=True, slots=True)
class ControlFrame:
    """One frame that Ruby would show. For a cfunc, `iseq_body` and `pc` are 0.

    `method_entry` is what the BPF side sends: ep[-2] as it is found, a method entry, svar or cref, or 0.
    """

    kind: Literal["ruby", "cfunc"]
    iseq_body: int
    pc: int
    method_entry: int
    address: int
    flags: int


def walk_stack(
    memory: Memory, layout: Layout, context: int, *, limit: int = MAX_FRAMES
) -> Iterator[ControlFrame]:
    """Yield the frames of the execution context at `context`, leaf first, at most `limit` control frames.

    The thread should be stopped, or the stack may change under the walk. Raises BadStack or MemoryReadError.
    """
    stack = memory.u64(context + layout.ec_vm_stack)
    words = memory.u64(context + layout.ec_vm_stack_size)
    newest = memory.u64(context + layout.ec_cfp)
    if not stack or stack & 7 or not 0 < words <= MAX_STACK_WORDS:
        raise BadStack(f"the context at {context:#x} has a stack of {words} words at {stack:#x}")
    end = stack + 8 * words
    count, rest = divmod(end - newest, layout.cfp_size)
    # A stack that was just made has no frame at all yet: cfp is its end.
    if rest or not stack <= newest <= end:
        raise BadStack(f"cfp {newest:#x} is no frame of the stack {stack:#x} to {end:#x}")
    # The frame right below the end is a dummy that Ruby never shows, although it may have an iseq and a pc.
    remaining = min(count - 1, limit)
    address = newest
    while remaining > 0:
        number = min(remaining, _CHUNK_FRAMES)
        chunk = memory.read(address, number * layout.cfp_size)
        for index in range(number):
            frame = _frame(memory, layout, chunk, index * layout.cfp_size, address + index * layout.cfp_size)
            if frame is not None:
                yield frame
        address += number * layout.cfp_size
        remaining -= number


def _frame(memory: Memory, layout: Layout, chunk: bytes, offset: int, address: int) -> ControlFrame | None:
    pc = _word(chunk, offset + layout.cfp_pc)
    iseq = _word(chunk, offset + layout.cfp_iseq)
    ep = _word(chunk, offset + layout.cfp_ep)
    entry, _, flags = _ENV.unpack(memory.read(ep - 16, _ENV.size))
    if pc and iseq:
        body = memory.u64(iseq + layout.iseq_body)
        return ControlFrame("ruby", body, pc, _method_entry(memory, ep), address, flags)
    if flags & _MAGIC_MASK == _MAGIC_CFUNC:
        return ControlFrame("cfunc", 0, 0, entry, address, flags)
    # An IFUNC (a block in C), a dummy frame, or one that is being pushed: Ruby shows none of them.
    return None


def _method_entry(memory: Memory, ep: int) -> int:
    """Return ep[-2] of the environment that says which method runs, or 0 when it cannot be read.

    That is the method's own (local) environment or, for code inside a method made by define_method, the
    first on the way there that belongs to such a method.
    """
    try:
        for _ in range(_MAX_ENV_LEVELS):
            entry, parent, flags = _ENV.unpack(memory.read(ep - 16, _ENV.size))
            if flags & _FLAG_LOCAL or (flags & _FLAG_BMETHOD and resolve_method_entry(memory, entry)):
                return int(entry)
            ep = parent & ~3
    except MemoryReadError:
        pass
    return 0


def _word(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<Q", data, offset)[0])
