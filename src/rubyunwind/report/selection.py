# SPDX-License-Identifier: Apache-2.0
"""Which part of a recording is looked at: by time, process, thread, method, and kind of frame."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.samples import SampledStack, SampledThread, Samples

__all__ = ["NATIVE", "Selection", "leaves_out", "name_matcher", "path_matcher"]

NATIVE = ("all", "outside-c", "none")
"""Which native frames are kept: all, those that are not inside a C function, none in stacks of Ruby.

With none, frames of the kernel and of compiled code are left out, too."""

_RUBY = frozenset({"ruby", "cfunc"})
_MACHINE = frozenset({"native", "kernel", "jit"})


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether names match: a glob over the whole name, or `/a regular expression/` anywhere in it.

    Raises ValueError for an expression that is none.
    """
    if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
        try:
            found = re.compile(pattern[1:-1])
        except re.error as error:
            raise ValueError(f"{pattern} is no regular expression: {error}") from None
        return lambda name: found.search(name) is not None
    whole = re.compile(translate(pattern))
    return lambda name: whole.match(name) is not None


def path_matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether paths match: as in name_matcher, and a glob also from any `/` in the path on.

    Raises ValueError for an expression that is none.
    """
    pattern = pattern.removeprefix("./")
    whole = name_matcher(pattern)
    if len(pattern) > 2 and pattern.startswith("/"):
        return whole
    ending = name_matcher(f"*/{pattern}")
    return lambda path: whole(path) or ending(path)


@dataclass(frozen=True, slots=True)
class Selection:
    """What is wanted; what is empty or None does not restrict.

    `since` and `until` are unix ns, the end not included. `threads` are tids or globs of thread names.
    `methods` (see name_matcher) takes stacks that have a frame of any of them, `kinds` is of the leaf,
    `native` of NATIVE.
    """

    since: int | None = None
    until: int | None = None
    pids: tuple[int, ...] = ()
    threads: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    native: str = "all"

    def of(self, samples: Samples) -> Samples:
        """Return the samples that are wanted, in order. Raises ValueError for a pattern that is none."""
        if self == Selection():
            return samples
        stack = _StackChoice(self)
        thread = _thread_choice(self)
        return samples.selected(
            [stack.choose(each) for each in samples.stacks],
            [thread(each) for each in samples.threads],
            self.since,
            self.until,
        )


def _thread_choice(selection: Selection) -> Callable[[SampledThread], bool]:
    tids = {int(text) for text in selection.threads if text.isascii() and text.isdigit()}
    # A name may be a number, too.
    names = [name_matcher(text) for text in selection.threads]

    def wanted(thread: SampledThread) -> bool:
        if selection.pids and thread.pid not in selection.pids:
            return False
        if not selection.threads:
            return True
        return thread.tid in tids or any(matches(thread.comm) for matches in names)

    return wanted


class _StackChoice:
    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._matchers = [name_matcher(pattern) for pattern in selection.methods]
        self._known: dict[int, tuple[Frame, bool]] = {}  # by identity; the frame keeps its id

    def choose(self, stack: SampledStack) -> SampledStack | None:
        """Return the stack as it is wanted, None if it is not."""
        kinds = self._selection.kinds
        if self._matchers and not any(map(self._matches, stack.frames)):
            return None
        frames = stack.frames
        if self._selection.native != "all":
            frames = _without_native(frames, self._selection.native)
        if kinds and not (frames and frames[0].kind in kinds):
            return None
        return stack if len(frames) == len(stack.frames) else stack._replace(frames=frames)

    def _matches(self, frame: Frame) -> bool:
        known = self._known.get(id(frame))
        if known is None:
            known = self._known[id(frame)] = (frame, any(matches(frame.name) for matches in self._matchers))
        return known[1]


def leaves_out(samples: Samples) -> bool:
    """Whether any stack of the samples has frames that `native="none"` leaves out."""
    return any(len(_without_native(stack.frames, "none")) < len(stack.frames) for stack in samples.stacks)


def _without_native(frames: tuple[Frame, ...], native: str) -> tuple[Frame, ...]:
    """A stack without Ruby stays as it is: nothing would be left of it."""
    if not any(frame.kind in _RUBY for frame in frames):
        return frames
    if native == "none":
        # What stands in brackets is a remark of the profiler: what a thread waits for.
        return tuple(frame for frame in frames if frame.kind not in _MACHINE or frame.name.startswith("["))
    kept = []
    inside = False
    for frame in reversed(frames):
        if frame.kind in _RUBY:
            inside = frame.kind == "cfunc"
        if not (inside and frame.kind == "native"):
            kept.append(frame)
    return tuple(reversed(kept))
