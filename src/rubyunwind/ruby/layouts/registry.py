# SPDX-License-Identifier: Apache-2.0
"""From a version string to the layout that fits it, or to a clear refusal."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from rubyunwind.errors import UnsupportedRuby
from rubyunwind.ruby.layouts.layout import Layout
from rubyunwind.ruby.layouts.series import AARCH64_SHIFT, LAST_PATCH, PATCHES, SERIES

__all__ = ["LayoutMatch", "find_layout", "nearest_version", "parse_version", "version_number"]

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?!\d)")


@dataclass(frozen=True, slots=True)
class LayoutMatch:
    """A layout, and how it was chosen.

    `exact` is False when the release is newer than any whose structs were looked at: the layout of
    `version`, the nearest known one of its series, is then a guess that only a self-check makes good.
    """

    layout: Layout
    version: str
    exact: bool


def parse_version(text: str) -> tuple[int, int, int]:
    """Return (major, minor, patch) of "3.1.2", "3.5.0dev" or "4.1.0-preview1"; ValueError for other text."""
    match = _VERSION.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no Ruby version: expected something like 3.1.2")
    major, minor, patch = (int(part) for part in match.groups())
    return major, minor, patch


def version_number(version: tuple[int, int, int]) -> int:
    """Return major << 16 | minor << 8 | patch, each part cut to a byte: RubyProcInfo.version."""
    major, minor, patch = (min(part, 255) for part in version)
    return major << 16 | minor << 8 | patch


def nearest_version(version: tuple[int, int, int]) -> str:
    """Return the known release closest to `version`: of its series, or else of the series next to it."""
    series = version[:2]
    if series not in SERIES:
        below = [known for known in SERIES if known < series]
        series = max(below) if below else min(SERIES)
        patch = LAST_PATCH[series] if below else 0
    else:
        patch = min(version[2], LAST_PATCH[series])
    return f"{series[0]}.{series[1]}.{patch}"


def find_layout(version: str, *, aarch64: bool = False) -> LayoutMatch:
    """Return the layout of `version`.

    Development versions ("3.4.0dev", "4.0.0preview2") may lack changes that their release has, so they
    count as a guess, as patch releases do that came out later than the data. Raises UnsupportedRuby for
    a series without a layout, with the nearest known release.
    """
    try:
        numbers = parse_version(version)
    except ValueError as error:
        raise UnsupportedRuby(str(error), found=version) from None
    nearest = nearest_version(numbers)
    series = numbers[:2]
    if series not in SERIES:
        first, last = min(SERIES), max(SERIES)
        raise UnsupportedRuby(
            f"Ruby {version} has no known layout: {first[0]}.{first[1]} to {last[0]}.{last[1]} have one, the "
            f"nearest is {nearest}'s; a newer rubyunwind may know it",
            found=version,
            nearest=nearest,
        )
    exact = nearest == version
    return LayoutMatch(_layout(series, parse_version(nearest)[2], aarch64), nearest, exact)


def known_version(version: str | None) -> str | None:
    """Return a version that a user gave, if there is a layout for it. Raises UnsupportedRuby."""
    if version is not None:
        find_layout(version)
    return version


@lru_cache(maxsize=64)
def _layout(series: tuple[int, int], patch: int, aarch64: bool) -> Layout:
    changes: dict[str, Any] = {}
    for first, moved in PATCHES.get(series, ()):
        if patch >= first:
            changes.update(moved)
    layout = replace(SERIES[series], **changes)
    if not aarch64:
        return layout
    shifted = {
        field.name: getattr(layout, field.name) + AARCH64_SHIFT[field.name]
        for field in fields(layout)
        if field.name in AARCH64_SHIFT and getattr(layout, field.name) is not None
    }
    return replace(layout, **shifted)
