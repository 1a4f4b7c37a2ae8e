# SPDX-License-Identifier: Apache-2.0
"""A kernel that runs no flavour has tests of its own: that it is refused, and what is left."""

from __future__ import annotations

from flavours import EXPECTED, RUBIES

_NEED_PROGRAMS = ["test_exact.py", "test_load.py", "test_record.py", "test_rubies.py"]
collect_ignore = ["test_refusal.py"] if EXPECTED else _NEED_PROGRAMS
if not RUBIES:  # run-tests.sh was not told to bring some
    collect_ignore.append("test_rubies.py")
