# SPDX-License-Identifier: Apache-2.0
"""Output formats: functions over samples and totals. A format's module is imported when it is used."""

from __future__ import annotations

from rubyunwind.formats.registry import FORMATS, Format, Meta, UnknownFormat, Writer, write

__all__ = ["FORMATS", "Format", "Meta", "UnknownFormat", "Writer", "write"]
