# SPDX-License-Identifier: Apache-2.0
"""What a kernel was seen to do, for the table of all kernels; guest.py of support/ci-kernels prints it."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["note"]

VARIABLE = "RUBYUNWIND_FACTS"


def note(flavour: str, **facts: object) -> None:
    """Add facts about a flavour, by name; nothing happens outside of a guest."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps({"flavour": flavour, **facts}) + "\n")
