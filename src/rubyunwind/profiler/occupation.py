# SPDX-License-Identifier: Apache-2.0
"""What a thread of a snapshot is doing, as its innermost Ruby frame and its state tell: what it waits for."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rubyunwind.profiler.sample import Frame
    from rubyunwind.profiler.snapshot import ThreadStack

__all__ = ["Concern", "Occupation", "occupation_of"]


class Concern(IntEnum):
    """How soon somebody who looks for what is wrong wants to see a thread."""

    LOCKED_WITH_LOCK = 0
    LOCKED = 1
    BUSY = 2
    HOLDER = 3
    UNKNOWN = 4
    WAITING = 5


class Occupation(NamedTuple):
    """What a thread does and where it took the locks that it holds.

    `text` is "" where the state says all; `holds` has `path:line` of each lock, the innermost first.
    """

    concern: Concern
    text: str
    holds: tuple[str, ...]


# Names as Ruby qualifies them; 3.2 does not tell the class, before 3.1 Mutex was not below Thread.
_LOCK = re.compile(r"(?:(?:Thread::)?Mutex#)?(?:lock|synchronize)|Monitor#(?:mon_)?(?:enter|synchronize)")
_HELD = re.compile(r"(?:(?:Thread::)?Mutex#)?synchronize|Monitor#(?:mon_)?synchronize")
_WAITS = (
    (_LOCK, "waiting for a lock"),
    (
        re.compile(r"(?:Thread::)?(?:Mutex#sleep|ConditionVariable#wait)|Monitor#wait_for_cond"),
        "waiting for a condition variable",
    ),
    (
        re.compile(r"(?:Thread::)?(?:Sized)?Queue#(?:pop|shift|deq|push|enq|<<)|Ractor[.#](?:receive|take)"),
        "waiting for a queue",
    ),
    (re.compile(r"Thread#(?:join|value)"), "waiting for another thread to end"),
    (re.compile(r"Process\.(?:wait|detach)\w*|Kernel#(?:system|`)"), "waiting for a child process"),
    (re.compile(r"Kernel#sleep|Thread\.stop|sleep"), "asleep as told"),
    (re.compile(r"(?:PG|Mysql2|Trilogy|SQLite3)(?:::\w+)*[.#]\w+"), "waiting for a database"),
    (
        re.compile(
            r"(?:(?:\w+::)*\w*(?:IO|File|Socket|Server|Addrinfo)|ARGF\.class)[.#]\w+[?!]?"
            r"|Kernel[.#](?:gets|readlines?|select|puts|print|p|open)"
        ),
        "waiting for input or output",
    ),
)
_LOCKS, _CONDITIONS = 0, 1  # indices into _WAITS
_CODE = ("ruby", "cfunc")


def occupation_of(thread: ThreadStack) -> Occupation:
    """Return what a thread does. What it says of locks is what its frames say: no memory is read."""
    code = [frame for frame in thread.frames if frame.kind in _CODE]
    asleep = thread.state not in ("running", "stopped", "traced")
    waits = _wait(code[0]) if code and asleep else None
    # Ruby gives a lock back while it waits for a condition variable; such a frame is innermost then.
    held = [] if waits == _CONDITIONS else [frame for frame in code[1:] if _HELD.fullmatch(frame.name)]
    holds = tuple(dict.fromkeys(_place(frame) for frame in held))
    if waits == _LOCKS:
        return Occupation(Concern.LOCKED_WITH_LOCK if holds else Concern.LOCKED, _WAITS[0][1], holds)
    if thread.state in ("running", "in uninterruptible sleep") or thread.state.startswith("signal "):
        return Occupation(Concern.BUSY, "", holds)
    text = _WAITS[waits][1] if waits is not None else ""
    if waits is None and code and code[0].kind == "ruby" and thread.state == "sleeping":
        # Code of Ruby's own never sleeps but for the lock that lets one thread run at a time.
        return Occupation(Concern.BUSY, "waiting for its turn to run (the GVL)", holds)
    if holds:
        return Occupation(Concern.HOLDER, text, holds)
    return Occupation(Concern.WAITING if thread.complete or code else Concern.UNKNOWN, text, holds)


def _wait(frame: Frame) -> int | None:
    found = (at for at, (names, _) in enumerate(_WAITS) if names.fullmatch(frame.name))
    return next(found, None)


def _place(frame: Frame) -> str:
    return f"{frame.path}:{frame.line}" if frame.path is not None else frame.name
