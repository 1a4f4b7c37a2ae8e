# SPDX-License-Identifier: Apache-2.0
"""A snapshot as plain text: what needs a look first, and threads with equal stacks as one."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.cli.text import printable
from rubyunwind.profiler.occupation import Concern, Occupation, occupation_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.snapshot import Snapshot, ThreadStack

__all__ = ["shown_frames", "snapshot_text"]

_NAMES = 8  # of threads with equal stacks, that are shown unasked
_WIDTH = 100  # characters, for names of threads
_MACHINE = frozenset({"native", "kernel", "jit"})


class _Group(NamedTuple):
    """Threads that do the same."""

    occupation: Occupation
    threads: list[ThreadStack]
    frames: tuple[Frame, ...]


def shown_frames(thread: ThreadStack, *, native: bool) -> tuple[Frame, ...]:
    """Return the frames that are shown. A thread without Ruby code keeps its own."""
    if native or not any(frame.kind in ("ruby", "cfunc") for frame in thread.frames):
        return thread.frames
    return tuple(frame for frame in thread.frames if frame.kind not in _MACHINE)


def snapshot_text(taken: Snapshot, *, native: bool, every_name: bool = False) -> Iterator[str]:
    """Yield the lines. With `every_name` all threads of equal stacks are named."""
    groups = _groups(taken.threads, native=native)
    stood = f", stopped for {taken.stopped_ns / 1e6:.1f} ms" if taken.stopped_ns else ""
    runtimes = f" ({', '.join(taken.runtimes)})" if taken.runtimes else ""
    count = len(taken.threads)
    threads = f"{count} thread" + ("s" if count != 1 else "")
    yield f"process {taken.pid} {printable(taken.comm)}{runtimes}, {threads}{stood}"
    if count > 1:
        doings: Counter[str] = Counter()
        for group in groups:
            doings[_doing(group)] += len(group.threads)
        yield "  " + ", ".join(f"{number} {doing}" for doing, number in doings.items())
    both = sum(len(group.threads) for group in groups if group.occupation.concern == Concern.LOCKED_WITH_LOCK)
    if both > 1:
        yield f"  {both} threads wait for a lock and hold another: a deadlock if it is the other's"
    if not native and any(len(shown_frames(each, native=False)) < len(each.frames) for each in taken.threads):
        yield "  native frames are left out; --native shows them"
    for group in groups:
        yield ""
        yield from _group_text(group, every_name=every_name)


def _groups(threads: Sequence[ThreadStack], *, native: bool) -> list[_Group]:
    """Those that are locked or at work first; of the others the larger groups last: they are idle workers."""
    found: dict[tuple[object, ...], _Group] = {}
    for thread in threads:
        occupation = occupation_of(thread)
        frames = shown_frames(thread, native=native)
        # Not by where in the kernel: of Ruby's threads that wait alike one waits with a timer for all.
        key = (occupation, thread.state, frames, thread.complete, thread.reason)
        found.setdefault(key, _Group(occupation, [], frames)).threads.append(thread)
    return sorted(found.values(), key=lambda each: (each.occupation.concern, len(each.threads)))


def _doing(group: _Group) -> str:
    return group.occupation.text or group.threads[0].state or "unknown"


def _group_text(group: _Group, *, every_name: bool) -> Iterator[str]:
    thread = group.threads[0]
    channels = dict.fromkeys(each.wait_channel for each in group.threads if each.wait_channel)
    where = f" in {' or '.join(channels)}" if channels else ""
    state = f"{thread.state}{where}"
    if group.occupation.text:
        state = f"{group.occupation.text} ({state})" if state else group.occupation.text
    if len(group.threads) == 1:
        name = f" {printable(thread.name)}" if thread.name else ""
        yield f"thread {thread.tid}{name}: {state}"
    else:
        yield f"{len(group.threads)} threads: {state}"
        shown = group.threads if every_name else group.threads[:_NAMES]
        names = ", ".join(f"{printable(each.name)} ({each.tid})" for each in shown)
        rest = len(group.threads) - len(shown)
        names += f" and {rest} more; -v names all" if rest else ""
        yield from wrap(names, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    if group.occupation.holds:
        yield f"  holds the lock taken at {', '.join(map(printable, group.occupation.holds))}"
    for frame in group.frames:
        yield f"    {frame.kind:7} {printable(frame.name)}{_place(frame)}"
    if not thread.complete:
        yield f"    [incomplete: {thread.reason}]"


def _place(frame: Frame) -> str:
    if frame.path is not None:
        return f"  {printable(frame.path)}:{frame.line}"
    if frame.module and frame.offset is not None:
        return f"  {printable(frame.module)}+{frame.offset:#x}"
    return ""
