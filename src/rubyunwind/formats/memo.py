# SPDX-License-Identifier: Apache-2.0
"""What a format makes of a frame, made once for each frame however many stacks it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Memo"]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Memo(Generic[_Item, _Made]):
    """What `make` returns for items, found by their identity: stacks share their frames, and hashing one
    hashes seven fields. For equal items that are not the same it is made anew."""

    def __init__(self, make: Callable[[_Item], _Made]) -> None:
        self._make = make
        self._known: dict[int, _Made] = {}
        # Kept, so that their ids are not given to others.
        self._kept: list[_Item] = []

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, items: Sequence[_Item]) -> tuple[_Made, ...]:
        """What is made of each item, in their order."""
        known = self._known
        try:
            return tuple(map(known.__getitem__, map(id, items)))
        except KeyError:
            for item in items:
                if id(item) not in known:
                    known[id(item)] = self._make(item)
                    self._kept.append(item)
            return tuple(map(known.__getitem__, map(id, items)))
