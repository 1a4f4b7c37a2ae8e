# SPDX-License-Identifier: Apache-2.0
"""Does a layout fit the process? Walk one stack and look whether it makes sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.labels import read_iseq_body
from rubyunwind.ruby.lines import BadLineTable, position_of
from rubyunwind.ruby.procinfo import running_context
from rubyunwind.ruby.stack_walk import walk_stack

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.labels import IseqBody
    from rubyunwind.ruby.layouts import Layout

__all__ = ["SelfCheck", "check_running", "check_stack", "find_context"]

_CHECKS = 8
_MOST_FRAMES = 64
_LAST_LINE = 10_000_000


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Outcome of a check. "early": there is no Ruby frame to judge by yet; "bad" has a reason."""

    result: Literal["good", "early", "bad"]
    reason: str = ""
    frames: int = 0


def check_stack(memory: Memory, layout: Layout, context: int, *, enough: int = _MOST_FRAMES) -> SelfCheck:
    """Walk the newest frames of `context` and judge them, until there were `enough` of Ruby code.

    Every Ruby frame must have an iseq whose path and label are Strings (they may be empty or odd: eval
    takes any name), and most a pc inside of it with a believable line (compiled code leaves some unset).
    The process may be running meanwhile, so a bad result can come from a stack that changed under the
    walk: the caller repeats the check before it believes it.
    """
    if not context:
        return SelfCheck("early", "the interpreter has not started yet")
    frames = without_line = 0
    try:
        if not memory.u64(context + layout.ec_vm_stack) or not memory.u64(context + layout.ec_cfp):
            return SelfCheck("early", "the interpreter is being set up")
        for frame in walk_stack(memory, layout, context, limit=_MOST_FRAMES):
            if frame.kind != "ruby":
                continue
            frames += 1
            body = read_iseq_body(memory, layout, frame.iseq_body)
            without_line += not _has_line(body, frame.pc)
            if frames >= enough:
                break
    except RubyUnwindError as error:
        return SelfCheck(
            "bad", f"Ruby frame {frames} from the leaf: {error}" if frames else str(error), frames
        )
    if not frames:
        return SelfCheck("early", "no Ruby code runs yet")
    if 2 * without_line > frames:
        return SelfCheck(
            "bad", f"{without_line} of {frames} Ruby frames have a pc outside of their code", frames
        )
    return SelfCheck("good", frames=frames)


def check_running(
    memory: Memory, layout: Layout, context_address: int, vm_address: int, *, proven: bool = False
) -> SelfCheck:
    """Check the stack of the thread that runs, again while it is bad: the process is not stopped.

    Where the layout is `proven` for the file, one Ruby frame tells that this process has come as far.
    """
    if not context_address and not vm_address:
        return SelfCheck("early", "the binary does not tell where its execution context is")
    check = SelfCheck("early")
    for _ in range(_CHECKS):
        try:
            memory.u64(context_address or vm_address)
        except MemoryReadError:
            # The variable itself is not mapped: the dynamic linker is still at work.
            return SelfCheck("early", "the interpreter's data is not mapped yet")
        try:
            context = running_context(memory, layout, context_address, vm_address)
        except MemoryReadError as error:
            check = SelfCheck("bad", str(error))
            continue
        if proven and (check := check_stack(memory, layout, context, enough=1)).result != "bad":
            break
        check = check_stack(memory, layout, context)
        if check.result != "bad":
            break
    return check


def find_context(memory: Memory, layout: Layout, address: int) -> tuple[int, SelfCheck]:
    """Return the execution context at `address`, or the one that a pointer there points to, and its check.

    The check is "good" or "bad" here: where somebody says there is one, there must be Ruby frames.
    """
    check = check_stack(memory, layout, address)
    if check.result == "good":
        return address, check
    try:
        pointed = memory.u64(address)
    except RubyUnwindError as error:
        return 0, SelfCheck("bad", f"the address of the execution context: {error}")
    behind = check_stack(memory, layout, pointed)
    if behind.result == "good":
        return pointed, behind
    reason = behind.reason if pointed and check.result == "early" else check.reason
    return 0, SelfCheck("bad", f"no execution context at {address:#x}: {reason}")


def _has_line(body: IseqBody, pc: int) -> bool:
    try:
        line = body.lines.line(position_of(pc, body.iseq_encoded, body.iseq_size))
    except BadLineTable:
        return False
    return -_LAST_LINE < line < _LAST_LINE
