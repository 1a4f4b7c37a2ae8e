# SPDX-License-Identifier: Apache-2.0
"""Ruby frames at their place among native ones, also while the interpreter enters or leaves its loop.

The kernel side gives each native frame of the interpreter loop (rb_vm_exec) the Ruby frames up to one with
the FINISH flag. That is exact but for two short moments. Ruby pushes the frame of a block or method that C
calls, and then calls rb_vm_exec for it: between the two there is one Ruby group more than loops, all
groups sit one loop too far out, and what is left over comes last. And when the loop returns it has popped
its frame already: there is one group less, and all sit one loop too far in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rubyunwind.abi import FrameMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rubyunwind.abi import Frame, Step

__all__ = ["place_ruby_frames", "shown_frames"]

_Frame = TypeVar("_Frame", "Frame", "Step")

# A tuple, as members of an enum and plain numbers are equal, but do not hash alike.
_RUBY = (int(FrameMarker.RUBY), int(FrameMarker.RUBY_CFUNC), int(FrameMarker.RUBY_GC))


def place_ruby_frames(frames: Sequence[Step], is_loop: Callable[[Step], bool], *, rooted: bool) -> list[Step]:
    """Return the frames of a trace, leaf first, with each Ruby group before the loop that runs it.

    `is_loop` tells whether a native frame is the interpreter loop's; `rooted` says that the native walk
    reached its root, so that Ruby frames at the end are left over, not cut from a loop that was not reached.
    Frames that are in place already come back as they are, error frames stay last.
    """
    errors = [frame for frame in frames if frame.kind == FrameMarker.ABORT]
    rest = frames[: len(frames) - len(errors)] if errors else frames
    # Runs of Ruby frames, each with the run of other frames that precedes it towards the leaf.
    natives: list[list[Step]] = [[]]
    groups: list[list[Step]] = []
    for frame in rest:
        if frame.kind in _RUBY:
            if len(groups) < len(natives):
                groups.append([])
            groups[-1].append(frame)
        else:
            if len(groups) == len(natives):
                natives.append([])
            natives[-1].append(frame)
    if not groups:
        return list(frames)
    if rooted and len(groups) == len(natives) > 1:
        return _entering(natives, groups) + errors
    # natives[i + 1] begins with the loop that has groups[i]; a second loop in the last run has no group.
    if len(natives) == len(groups) + 1 and is_loop(natives[-1][0]):
        outer = [index for index, frame in enumerate(natives[-1]) if is_loop(frame)]
        if len(outer) == 2:  # its own, and the one without a group
            return _leaving(natives, groups, outer[1]) + errors
    return list(frames)


def _entering(natives: list[list[Step]], groups: list[list[Step]]) -> list[Step]:
    """The first group is the frame just pushed: it is the leaf, and the others move one loop in."""
    kernel = [frame for frame in natives[0] if frame.kind == FrameMarker.KERNEL]
    moved = kernel + groups[0] + natives[0][len(kernel) :]
    for group, native in zip(groups[1:], natives[1:], strict=True):
        moved += group + native
    return moved


def _leaving(natives: list[list[Step]], groups: list[list[Step]], at: int) -> list[Step]:
    """The first loop has no frame left: every group moves one loop out."""
    *inner, last = natives
    moved = list(inner[0])
    for index, native in enumerate(inner[1:]):
        moved += native + groups[index]
    return moved + last[:at] + groups[-1] + last[at:]


def shown_frames(frames: Sequence[_Frame], folds: Callable[[int], bool]) -> Sequence[_Frame]:
    """Return the frames, leaf first, without the Ruby frames that Ruby leaves out of a backtrace.

    `folds` tells of an iseq body whether the next Ruby frame towards the root is left out for it.
    """
    kept: list[_Frame] = []
    folded = False
    for frame in frames:
        if frame.kind != FrameMarker.RUBY:
            kept.append(frame)
            continue
        if not folded:
            kept.append(frame)
        folded = folds(frame.file_id)  # one that is left out counts as well
    return kept if len(kept) < len(frames) else frames
