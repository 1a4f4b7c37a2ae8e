# SPDX-License-Identifier: Apache-2.0
"""Ownership of kernel objects: closed once, closed children first, never used in a forked child.

Everything in this room that owns a descriptor holds a `Resource`. In a forked child the descriptors
are still the parent's business: disabling a shared perf event there would stop the parent's profile,
so a Resource refuses use and its close does nothing but mark it closed. The kernel drops the child's copies
at exec or exit.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from rubyunwind.errors import RubyUnwindError

__all__ = ["LifetimeError", "Resource"]


class LifetimeError(RubyUnwindError, RuntimeError):
    """A BPF object was used after it was closed, or in a child of the process that opened it."""


class Resource:
    """Something to release exactly once. `release` must hold no reference to the object that owns it."""

    __slots__ = ("_children", "_parent", "_pid", "_release", "closed", "what")

    def __init__(
        self, what: str, release: Callable[[], None], *, parent: Resource | None = None, owner: object = None
    ) -> None:
        self.what = what
        self.closed = False
        self._release = release
        self._pid = os.getpid()
        self._children: list[Resource] = []
        self._parent = parent
        if parent is not None:
            parent._children.append(self)
        if owner is not None:
            self.guard(owner)

    def guard(self, owner: object) -> None:
        """Close when `owner` is collected or the interpreter exits: the net under a forgotten close()."""
        weakref.finalize(owner, self.close)

    @property
    def here(self) -> bool:
        """Whether this is the process that opened it, not a forked child."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise LifetimeError unless the resource is open and this is the process that opened it."""
        if self.closed:
            raise LifetimeError(f"{self.what} is closed")
        if not self.here:
            raise LifetimeError(
                f"{self.what} was opened by process {self._pid} and does not survive fork: this is process "
                f"{os.getpid()}. Open it anew in the child."
            )

    def close(self) -> None:
        """Release children, newest first, then this. Closing twice is harmless."""
        if self.closed:
            return
        self.closed = True
        children, self._children = self._children, []
        for child in reversed(children):
            child._parent = None
            child.close()
        if self._parent is not None:
            self._parent._children.remove(self)
            self._parent = None
        if self.here:
            self._release()
