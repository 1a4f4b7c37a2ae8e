# SPDX-License-Identifier: Apache-2.0
"""Picks few inputs of a Python target that reach all lines: `python fuzz/choose_inputs.py NAME TO FROM`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import python_targets

import rubyunwind

PACKAGE = str(Path(rubyunwind.__file__).parent)


def reached(target: str, data: bytes) -> set[tuple[str, int, int]]:
    """Return the steps (file, line, next line) that an input takes in the package."""
    found: set[tuple[str, int, int]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE):
            return None
        before = 0

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal before
            found.add((name, before, frame.f_lineno))
            before = frame.f_lineno
            return line

        return line

    sys.settrace(enter)
    try:
        python_targets.TARGETS[target](data)
    finally:
        sys.settrace(None)
    return found


def main() -> None:
    target, to, source = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    known: set[tuple[str, int, int]] = set()
    for path in sorted(source.iterdir(), key=lambda one: (one.stat().st_size, one.name)):
        data = path.read_bytes()
        new = reached(target, data) - known
        if new:
            known |= new
            (to / path.name).write_bytes(data)


if __name__ == "__main__":
    main()
