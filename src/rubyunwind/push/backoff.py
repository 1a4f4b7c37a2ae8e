# SPDX-License-Identifier: Apache-2.0
"""When a receiver that failed is tried again: later each time, never at the same moment as all others."""

from __future__ import annotations

import time
from random import Random

__all__ = ["Backoff"]

# Seconds: after the first failure, and at most; at most where the receiver says how long (Retry-After).
_FIRST, _MOST, _MOST_ASKED = 1.0, 60.0, 300.0


class Backoff:
    """Waits on the monotonic clock, so that changes of the time of day do not matter."""

    def __init__(self, first: float = _FIRST, most: float = _MOST, most_asked: float = _MOST_ASKED) -> None:
        self._first = first
        self._most = most
        self._most_asked = most_asked
        self._random = Random()
        self._until = 0.0
        self._failures = 0

    @property
    def left(self) -> float:
        """Seconds until it may be tried again; 0 for at once."""
        return max(0.0, self._until - time.monotonic())

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures = 0
        self._until = 0.0

    def failed(self, asked: float | None = None) -> None:
        """Wait from now on: as long as is `asked` for and a little more, else twice as long as before."""
        if asked is not None:
            wait = min(self._most_asked, asked) * self._random.uniform(1.0, 1.1)
        else:
            wait = min(self._most, self._first * 2.0 ** min(self._failures, 30)) * self._random.uniform(
                0.5, 1.0
            )
        self._failures += 1
        self._until = time.monotonic() + wait
