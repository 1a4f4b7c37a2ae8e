# SPDX-License-Identifier: Apache-2.0
"""Which builds of the programs this kernel must take: by its version, so that features are tested by it."""

from __future__ import annotations

import os

from rubyunwind.bpf.features import CO_RE, LEGACY

__all__ = ["BUILDS", "EXPECTED"]


def _release() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int(minor)


# The guests' kernels have type information from 5.10 on.
EXPECTED = (CO_RE, LEGACY) if _release() >= (5, 10) else (LEGACY,)
"""Flavours that work here, the one that is chosen first."""

BUILDS = [build for build in ("release", "debug", "legacy") if build == "legacy" or CO_RE in EXPECTED]
