# SPDX-License-Identifier: Apache-2.0
r"""Names as they stand in files that other tools read: one line, valid UTF-8, and they can be read back.

    \\          a backslash            \n \r \t   line feed, carriage return, tab
    \xNN        another control below \x80; from \x80 on, a byte that was no UTF-8
    \uNNNN      further controls, line and paragraph separators

Some of these formats could hold a line feed or a NUL as it is, but what reads them prints names into lines
and tables; the same name is thus written alike in all of them.
"""

from __future__ import annotations

import re

__all__ = ["escape", "printable"]

_UNSAFE = re.compile("[\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(character: str) -> str:
    """One character in the form above."""
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: the byte is the low half
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}"


def printable(name: str) -> str:
    """The name without line breaks, controls and lone surrogates. Different names stay different."""
    if name.isprintable() and "\\" not in name:  # as nearly all are; no other unsafe character is printable
        return name
    return _UNSAFE.sub(lambda match: escape(match[0]), name)
