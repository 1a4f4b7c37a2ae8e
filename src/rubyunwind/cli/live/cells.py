# SPDX-License-Identifier: Apache-2.0
"""How wide text is on a terminal, in cells, and text that is cut to a width."""

from __future__ import annotations

import unicodedata

__all__ = ["cells", "fit", "fit_end", "padded"]

_CUT = "…"
# A base with more marks than any language has is a joke on the lines above and below it.
_MOST_MARKS = 4
# The emoji selector makes its base as wide as an emoji, where the terminal knows that.
_EMOJI_SELECTOR = "\ufe0f"
# Wide since Unicode 16, newer than many a Python: tri-, di-, tetra- and hexagrams, counting rods.
# And regional indicators, two of which are a flag of two cells, or one letter each that is as wide.
_WIDE_LATELY = (
    (0x2630, 0x2637),
    (0x268A, 0x268F),
    (0x4DC0, 0x4DFF),
    (0x1D300, 0x1D356),
    (0x1D360, 0x1D376),
    (0x1F1E6, 0x1F1FF),
)


def cells(text: str) -> int:
    """Return how many cells a text of printable characters takes; where terminals differ, the largest."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    code = ord(character)
    if code < 0x80:
        return 1
    if unicodedata.east_asian_width(character) in "WF" or any(a <= code <= b for a, b in _WIDE_LATELY):
        return 2
    if character == _EMOJI_SELECTOR:
        return 1
    return 0 if _is_mark(character) else 1


def _is_mark(character: str) -> bool:
    """Whether it is drawn over the character before. Spacing marks (Mc) are not: most terminals move on."""
    return unicodedata.category(character) in ("Mn", "Me")


def fit(text: str, width: int) -> str:
    """Cut a text to `width` cells at most; what was cut is marked at its end."""
    if text.isascii() and len(text) <= width:
        return text
    kept = _thinned(text)
    return kept if cells(kept) <= width else _first(kept, width - 1) + _CUT[: max(width, 0)]


def fit_end(text: str, width: int) -> str:
    """Cut a text to `width` cells at most, at its beginning: the end of a path says more."""
    if text.isascii() and len(text) <= width:
        return text
    kept = _thinned(text)
    return kept if cells(kept) <= width else _CUT[: max(width, 0)] + _last(kept, width - 1)


def padded(text: str, width: int, *, keep_end: bool = False) -> str:
    """Cut a text, or fill it up with spaces, to `width` cells exactly."""
    cut = fit_end(text, width) if keep_end else fit(text, width)
    return cut + " " * (width - cells(cut))


def _first(text: str, width: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += _width(character)
        if used > width:
            return text[:index]
    return text


def _last(text: str, width: int) -> str:
    used, start = 0, len(text)
    for index in range(len(text) - 1, -1, -1):
        used += _width(text[index])
        if used > width:
            break
        if not _is_mark(text[index]):  # a mark goes with its base, or not at all
            start = index
    return text[start:]


def _thinned(text: str) -> str:
    """The text without the marks that are too many for one base."""
    if text.isascii():
        return text
    kept, marks = [], 0
    for character in text:
        marks = marks + 1 if _is_mark(character) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)
