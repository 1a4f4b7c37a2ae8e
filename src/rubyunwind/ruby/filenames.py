# SPDX-License-Identifier: Apache-2.0
"""What the names of mapped files say about Ruby: which may be an interpreter, and of which version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.process.mappings import Mapping

__all__ = ["MAX_CANDIDATES", "candidates", "is_ruby_name", "series_in_path", "version_in_name"]

# libruby.so.3.1.2, libruby-3.3.so.3.3.10, libruby2.7.so, libruby-static..., and ruby, ruby3.1, ruby-mri.
_LIBRARY = re.compile(r"libruby(?:[-._+\w]*)\.so(?:\.\d+)*")
_PROGRAM = re.compile(r"ruby(?:[-._]?[\w.]+)?")
# The version in libruby-3.1.so.3.1.2; the one in .../lib/ruby/2.5.0/x86_64-linux/stringio.so has the series.
_VERSION = re.compile(r"libruby.*\.so\.(\d+\.\d+\.\d+)")
_SERIES = re.compile(r"/ruby/(\d+\.\d+\.0)/")

MAX_CANDIDATES = 512
"""Files of one process that are looked into for `ruby_version`."""


def is_ruby_name(path: str) -> bool:
    """Whether a file's name is one that Ruby interpreters and their libraries have."""
    name = path.rpartition("/")[2]
    return bool(_LIBRARY.fullmatch(name) or _PROGRAM.fullmatch(name))


def candidates(mappings: Iterable[Mapping]) -> list[Mapping]:
    """Return one executable mapping per file, in the order in which they are worth a look.

    Files with Ruby's names come first, libraries before programs, then the rest in address order (an
    interpreter may be part of any program and have any name). At most MAX_CANDIDATES.
    """
    files: dict[tuple[int, int, str], Mapping] = {}
    for mapping in mappings:
        if mapping.is_file and mapping.executable:
            files.setdefault(mapping.file_key, mapping)

    def rank(mapping: Mapping) -> int:
        name = mapping.path.rpartition("/")[2]
        return 0 if _LIBRARY.fullmatch(name) else 1 if _PROGRAM.fullmatch(name) else 2

    return sorted(files.values(), key=rank)[:MAX_CANDIDATES]


def version_in_name(path: str) -> str:
    """Return the version that the name of a shared libruby ends with, or ""."""
    match = _VERSION.fullmatch(path.rpartition("/")[2])
    return match[1] if match is not None else ""


def series_in_path(path: str) -> str:
    """Return the first release of the series in whose directory of libraries a file lies, or ""."""
    match = _SERIES.search(path)
    return match[1] if match is not None else ""
