# SPDX-License-Identifier: Apache-2.0
"""Stacks merged into one tree, held as flat columns: stacks may be thousands of frames deep."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rubyunwind.formats.memo import Memo
from rubyunwind.formats.stacks import Marker
from rubyunwind.profiler.sample import Frame

__all__ = ["Place", "Site", "Tree", "merge", "place_of"]


class Place(NamedTuple):
    """What makes two frames one: kind and name, and the file they are from.

    `path` is set for Ruby frames and C functions, `module` for native ones. Lines and offsets do not
    tell frames apart.
    """

    kind: str
    name: str
    path: str | None = None
    module: str | None = None


class Site(NamedTuple):
    """A line of a place: an index into the places, and the line, 0 if there is none."""

    place: int
    line: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A call tree of sites. Node 0 is the root; a parent comes before its children, siblings in their order.

    Columns of one entry a node: `depths` (0 for the root; the parent is the last node before it that is one
    less deep) and `site_ids` (index into `sites`). `leaves` has for each path that was merged the node that
    it ends in.
    """

    places: tuple[Place, ...]
    sites: tuple[Site, ...]
    depths: array[int]
    site_ids: array[int]
    leaves: array[int]


def place_of(frame: Frame | Marker) -> Place:
    """Return what a frame is merged by."""
    if isinstance(frame, Marker):
        return Place(frame.kind, frame.name)
    return Place(frame.kind, frame.name, frame.path, frame.module)


def _rank(place: Place) -> tuple[bool, str, str, str, str]:
    return place.kind != "root", place.name, place.kind, place.path or "", place.module or ""


class _Sites:
    """Numbers for the sites of frames, in the order in which they are met."""

    def __init__(self) -> None:
        self.sites: dict[tuple[Place, int], int] = {(place_of(Marker("root", "all")), 0): 0}
        # Tuples of numbers, here and in merge: the garbage collector leaves them alone, lists it would walk.
        self.numbers = Memo(self._number).of

    def _number(self, frame: Frame | Marker) -> int:
        line = (frame.line or 0) if isinstance(frame, Frame) else 0
        return self.sites.setdefault((place_of(frame), max(line, 0)), len(self.sites))

    def sorted(self) -> tuple[tuple[Place, ...], tuple[Site, ...], list[int]]:
        """Places and sites in an order that does not depend on that of the samples, and where each went."""
        places = sorted({place for place, _ in self.sites}, key=_rank)
        numbers = {place: number for number, place in enumerate(places)}
        found = [Site(numbers[place], line) for place, line in self.sites]
        order = sorted(range(len(found)), key=found.__getitem__)
        moved = [0] * len(found)
        for new, old in enumerate(order):
            moved[old] = new
        return tuple(places), tuple(found[old] for old in order), moved


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many numbers two paths begin with alike. By halves, since slices are compared in C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def merge(paths: Sequence[Sequence[Frame | Marker]]) -> Tree:
    """Merge paths, each from the root to the leaf."""
    numbering = _Sites()
    met = [numbering.numbers(path) for path in paths]
    places, sites, moved = numbering.sorted()
    keys = [tuple(map(moved.__getitem__, path)) for path in met]
    # In their order, paths that begin alike stand together: what a path does not share with the one before
    # it is new.
    depths, site_ids = array("I", [0]), array("I", [0])
    leaves = array("I", bytes(4 * len(keys)))
    nodes = [0]  # of the path before, from the root
    before: tuple[int, ...] = ()
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        key = keys[index]
        shared = _shared(key, before)
        del nodes[shared + 1 :]
        first = len(depths)
        depths.extend(range(shared + 1, len(key) + 1))
        site_ids.extend(key[shared:])
        nodes.extend(range(first, len(depths)))
        leaves[index] = nodes[-1]
        before = key
    return Tree(places, sites, depths, site_ids, leaves)
