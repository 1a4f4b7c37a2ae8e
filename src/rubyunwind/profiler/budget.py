# SPDX-License-Identifier: Apache-2.0
"""A share of the time that a sort of work may take, however much of it there is."""

from __future__ import annotations

import time

__all__ = ["Budget"]


class Budget:
    """Allows `share` of the time on average, in CPU seconds, and `burst` seconds at once after a quiet while.

    `exceeded` counts how often it was used up.
    """

    def __init__(self, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self._left = burst
        self._counted = time.monotonic()
        self.exceeded = 0

    def left(self) -> float:
        """Return how many seconds may be worked now; 0 or less: none."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._counted) * self._share)
        self._counted = now
        return self._left

    def spend(self, seconds: float) -> None:
        """Note that so much was worked."""
        before, self._left = self._left, self._left - seconds
        self.exceeded += before > 0 >= self._left

    def wait(self, seconds: float) -> float:
        """Return in how many seconds so much may be worked."""
        return max(0.0, (seconds - self.left()) / self._share)
