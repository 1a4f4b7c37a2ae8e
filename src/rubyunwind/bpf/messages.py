# SPDX-License-Identifier: Apache-2.0
"""What libbpf prints: captured for error messages, or handed to `logging` as "rubyunwind.libbpf".

libbpf has one print function for the whole process; without one it writes to stderr. It is installed
once, when the library is opened, and never raises.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rubyunwind._libbpf import ffi

if TYPE_CHECKING:
    import logging

__all__ = ["LOGGER_NAME", "capture", "install"]

LOGGER_NAME = "rubyunwind.libbpf"
# enum libbpf_print_level of libbpf.h.
WARN, INFO, DEBUG = 0, 1, 2
# logging.WARNING, INFO and DEBUG, without importing logging (26 ms) when nothing is printed.
_LEVELS = {WARN: 30, INFO: 20, DEBUG: 10}
# Long enough for any single message: verifier logs do not come this way, they have their own buffer.
_MAX_TEXT = 1 << 16

_thread = threading.local()
_libc: Any = ffi.dlopen(None)


@contextmanager
def capture() -> Iterator[list[str]]:
    """Collect this thread's warnings and notes from libbpf, one stripped line group each.

    What is captured is shown by logging at DEBUG only: the caller decides if it was an error. Nested
    captures each get what is printed while they are the innermost.
    """
    outer: list[str] | None = getattr(_thread, "lines", None)
    lines: list[str] = []
    _thread.lines = lines
    try:
        yield lines
    finally:
        _thread.lines = outer


def _logger() -> logging.Logger:
    import logging

    logger = logging.getLogger(LOGGER_NAME)
    if not logger.handlers:
        # A library stays quiet in a program that has not configured logging.
        logger.addHandler(logging.NullHandler())
    return logger


def _format(template: Any, arguments: Any) -> str:
    text = ffi.new("char[]", _MAX_TEXT)
    _libc.vsnprintf(text, _MAX_TEXT, template, arguments)
    return bytes(ffi.string(text)).decode(errors="replace").removeprefix("libbpf: ").strip()


def _receive(level: int, template: Any, arguments: Any) -> int:
    captured: list[str] | None = getattr(_thread, "lines", None)
    take = captured is not None and level <= INFO
    rank = 10 if captured is not None else _LEVELS.get(level, 10)
    # Debug chatter is hundreds of lines a load: formatted only for a program that asks for it.
    if not take and rank < 30 and "logging" not in sys.modules:
        return 0
    if rank < 30 and "logging" in sys.modules and not _logger().isEnabledFor(rank):
        if not take:
            return 0
        rank = 0
    text = _format(template, arguments)
    if take and captured is not None:
        captured.append(text)
    if rank >= 30 or (rank and "logging" in sys.modules):
        _logger().log(rank, "%s", text)
    return 0


def _swallow(kind: Any, value: Any, trace: Any) -> int:
    """Keep every exception out of C: a failed print must not fail the load it comments on."""
    return 0


# Module level: libbpf keeps the pointer for good.
_callback = ffi.callback("int(int, const char *, void *)", _receive, error=0, onerror=_swallow)


def install(lib: Any) -> None:
    """Route the messages of the opened libbpf `lib` here. Installing again is harmless."""
    lib.libbpf_set_print(_callback)
