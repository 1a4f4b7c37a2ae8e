# SPDX-License-Identifier: Apache-2.0
"""A kernel that runs no flavour has tests of its own: that it is refused, and what is left."""

from __future__ import annotations

from flavours import EXPECTED

collect_ignore = ["test_refusal.py"] if EXPECTED else ["test_exact.py", "test_load.py", "test_record.py"]
