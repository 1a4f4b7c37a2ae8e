# SPDX-License-Identifier: Apache-2.0
"""Which builds of the programs this kernel must take: by its version, so that features are tested by it."""

from __future__ import annotations

import os

from rubyunwind.bpf.features import CO_RE, LEGACY

__all__ = ["BUILDS", "EXPECTED"]


def _release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int(minor)


def _expected() -> tuple[str, ...]:
    if _release() >= (5, 10):  # from there on the guests' kernels have type information
        return CO_RE, LEGACY
    return (LEGACY,) if _release() >= (4, 19) else ()


EXPECTED = _expected()
"""Flavours that work here, the one that is chosen first."""

_FLAVOUR_OF = {"release": CO_RE, "debug": CO_RE, "legacy": LEGACY}
BUILDS = [build for build, flavour in _FLAVOUR_OF.items() if flavour in EXPECTED]
