# SPDX-License-Identifier: Apache-2.0
"""The code that processes share: files, and what the kernel's tables have of them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from rubyunwind.errors import DecodeError
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler.files import FileCache, is_code
from rubyunwind.profiler.native_tables import NativeTables
from rubyunwind.profiler.process import LOOPS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rubyunwind.elf.deltas import StackDeltas
    from rubyunwind.profiler.native_tables import TracerMaps

__all__ = ["CodeRegistry"]

# Seconds that a file stays which nobody maps any more: short-lived processes run the same ones again,
# and traces that have it may be on their way.
_KEPT = 5.0


class CodeRegistry:
    """Keeps files open and registered while a process has them mapped, and some seconds longer."""

    def __init__(self, collection: TracerMaps, most_files: int) -> None:
        self._maps = collection.maps
        self.files = FileCache(most_files)
        self.tables = NativeTables(collection, self._reclaim)

    @property
    def no_room(self) -> int:
        """How often a file could not be opened or registered for lack of room."""
        return self.tables.without_room + self.files.refused

    def expect(self, paths: Iterable[Path]) -> None:
        """Register files before a process maps them: what it samples there is unwound from the start."""
        files = [file for path in paths if (file := self.files.expect(path)) is not None]
        with LiveProcess(os.getpid()) as ours:  # every process has the same vdso
            for mapping in ours.mappings():
                if is_code(mapping) and not mapping.is_file:
                    file = self.files.open(ours, mapping)
                    self.files.hold([mapping.file_key])
                    files += [file] if file is not None else []
        fresh: dict[int, StackDeltas] = {}
        for file in files:
            if file.file_id not in self.tables:
                with suppress(DecodeError):
                    fresh[file.file_id] = file.deltas()
        self.tables.add(fresh)

    def tidy(self) -> None:
        """Drop the files that nobody has mapped for some seconds."""
        self._drop(time.monotonic() - _KEPT)

    def _reclaim(self) -> bool:
        """Make room; False if every file is mapped by somebody."""
        return self._drop(time.monotonic())

    def _drop(self, before: float) -> bool:
        dropped = self.files.expire(before)
        for file_id in dropped:
            self.tables.remove(file_id)
            for name in LOOPS:
                self._maps[name].pop(file_id.to_bytes(8, "little"), None)
        return bool(dropped)

    def close(self) -> None:
        """Close the files. Twice is harmless."""
        self.files.close()
