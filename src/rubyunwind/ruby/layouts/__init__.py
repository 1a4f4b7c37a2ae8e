# SPDX-License-Identifier: Apache-2.0
"""Where each Ruby version keeps what an unwinder and a symbolizer read: layouts by version."""

from __future__ import annotations

from rubyunwind.ruby.layouts.layout import Layout
from rubyunwind.ruby.layouts.registry import (
    LayoutMatch,
    find_layout,
    known_version,
    parse_version,
    version_number,
)

__all__ = ["Layout", "LayoutMatch", "find_layout", "known_version", "parse_version", "version_number"]
