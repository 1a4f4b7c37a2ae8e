# SPDX-License-Identifier: Apache-2.0
"""Every error the package raises on purpose. Messages say what was tried, what was found, what to do."""

from __future__ import annotations

import os

__all__ = ["AttachError", "BpfError", "DecodeError", "NotSupported", "RubyUnwindError", "UnsupportedRuby"]


class RubyUnwindError(Exception):
    """Root of the package's errors."""


class AttachError(RubyUnwindError):
    """A process could not be profiled: it is gone, is no Ruby, or may not be read."""


class UnsupportedRuby(AttachError):
    """No layout is known for the Ruby version that was found.

    `found` is the version read from the process ("3.9.0"), `nearest` the closest one with a layout,
    or None.
    """

    def __init__(self, message: str, *, found: str, nearest: str | None = None) -> None:
        super().__init__(message)
        self.found = found
        self.nearest = nearest


class BpfError(RubyUnwindError):
    """The kernel or libbpf refused an operation.

    `errno` is positive, `operation` names what was tried, `log` keeps the verifier's whole output
    ("" when there is none); the message holds a summary only.
    """

    def __init__(self, errno: int, operation: str, detail: str = "", *, log: str = "") -> None:
        text = f"{operation}: {os.strerror(errno)} (errno {errno})"
        super().__init__(f"{text}; {detail}" if detail else text)
        self.errno = errno
        self.operation = operation
        self.log = log


class NotSupported(RubyUnwindError):
    """This kernel, user or machine lacks something.

    `feature` names it; `needs` is the minimum kernel, capability or package that brings it.
    """

    def __init__(self, message: str, *, feature: str, needs: str) -> None:
        super().__init__(message)
        self.feature = feature
        self.needs = needs


class DecodeError(RubyUnwindError, ValueError):
    """Bytes that are no record of ours: cut short, inconsistent, or of the wrong size."""


class GivenUp(DecodeError):
    """A file that cannot be had: its server does not answer, or not as that of a file would."""
