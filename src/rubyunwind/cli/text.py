# SPDX-License-Identifier: Apache-2.0
"""Text of other programs on our terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Escape what would disturb a terminal: controls, and bytes that are no UTF-8."""
    return text if text.isprintable() else "".join(map(_escape, text))


def _escape(c: str) -> str:
    if c.isprintable():
        return c
    if "\udc80" <= c <= "\udcff":  # surrogateescape: the byte is the low half
        return f"\\x{ord(c) & 0xFF:02x}"
    return c.encode("unicode_escape", "surrogatepass").decode()
