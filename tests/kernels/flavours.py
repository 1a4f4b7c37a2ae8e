# SPDX-License-Identifier: Apache-2.0
"""Which builds of the programs this kernel must take: by its version, so that features are tested by it."""

from __future__ import annotations

import os
from pathlib import Path

from rubyunwind.bpf.features import CO_RE, LEGACY

__all__ = ["BUILDS", "EXPECTED", "RUBIES"]

RUBIES = sorted(Path("/tmp/job/rubies").glob("*"))
"""Root file systems with other Rubies than the guest's own, SERIES-PACKAGE."""


def _release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int(minor)


def _expected() -> tuple[str, ...]:
    if _release() >= (5, 10):  # from there on the guests' kernels have type information
        return CO_RE, LEGACY
    return (LEGACY,) if _release() >= (4, 19) else ()


EXPECTED = _expected()
"""Flavours that work here, the one that is chosen first."""

_BUILDS = [
    ("release", "walker", CO_RE),
    ("release", "chain", CO_RE),
    ("debug", "walker", CO_RE),
    ("debug", "chain", CO_RE),
    ("legacy", "chain", LEGACY),
]
BUILDS = [(build, unwinder) for build, unwinder, flavour in _BUILDS if flavour in EXPECTED]
"""Objects that load here, and what of them is loaded."""
