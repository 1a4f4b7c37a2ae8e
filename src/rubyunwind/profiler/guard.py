# SPDX-License-Identifier: Apache-2.0
"""One user at a time, and a close that may come from anywhere."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rubyunwind.bpf.lifetime import LifetimeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Guard"]


class Guard:
    """Lets something be used, and released when nobody is using it.

    `check` raises unless it may be used, `release` releases it; `wake` ends what a user waits for. A `close`
    of another thread waits for the user; one that a signal handler calls in the midst of a use is done when
    that ends. `closing` is true from then on.
    """

    def __init__(self, what: str, check: Callable[[], None], release: Callable[[], None]) -> None:
        self._what = what
        self._check = check
        self._release = release
        self._lock = threading.RLock()
        self._user = 0  # the thread that holds it
        self.closing = False
        self.wake: Callable[[], None] = lambda: None

    def check(self) -> None:
        """Raise LifetimeError unless it may be used."""
        self._check()
        if self.closing:
            raise LifetimeError(f"{self._what} is closed")

    @contextmanager
    def use(self) -> Iterator[None]:
        """Keep it from being released for a while."""
        self.check()
        with self._lock:
            self.check()
            before, self._user = self._user, threading.get_ident()
            try:
                yield
            finally:
                self._user = before
                if self.closing and not before:
                    self._release()

    def close(self) -> None:
        """Release it, now or at the end of the use that this was called in."""
        self.closing = True
        if self._user == threading.get_ident():
            return
        self.wake()
        with self._lock:
            self._release()
