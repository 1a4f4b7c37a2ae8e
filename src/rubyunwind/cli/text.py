# SPDX-License-Identifier: Apache-2.0
"""Text of other programs on our terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Escape what would disturb a terminal: controls, and bytes that are no UTF-8."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
