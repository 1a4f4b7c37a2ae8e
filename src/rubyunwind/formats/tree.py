# SPDX-License-Identifier: Apache-2.0
"""Stacks merged into one tree, held as flat columns: stacks may be thousands of frames deep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from rubyunwind.formats.stacks import Marker, Stack
from rubyunwind.profiler.sample import Frame

__all__ = ["Place", "Tree", "merge", "place_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """What makes two frames one node: kind and name, and the file they are from.

    `path` is set for Ruby frames and C functions, `module` for native ones. Lines and offsets do not
    tell nodes apart.
    """

    kind: str
    name: str
    path: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """A call tree. Node 0 is the root; a parent comes before its children, heavier children first.

    Columns of one entry a node: `parents` (-1 for the root), `place_ids` (index into `places`),
    `weights` (of the node and all below it), `lines` (the heaviest line, 0 when unknown).
    """

    places: tuple[Place, ...]
    parents: tuple[int, ...]
    place_ids: tuple[int, ...]
    weights: tuple[int, ...]
    lines: tuple[int, ...]


def place_of(frame: Frame | Marker) -> Place:
    """Return what a frame is merged by."""
    if isinstance(frame, Marker):
        return Place(frame.kind, frame.name)
    return Place(frame.kind, frame.name, frame.path, frame.module)


class _Growing:
    """The tree while stacks are added: nodes in the order they were met."""

    def __init__(self) -> None:
        self.places: dict[Place, int] = {Place("root", "all"): 0}
        self.parents = [-1]
        self.place_ids = [0]
        self.weights = [0]
        self.lines: list[dict[int, int]] = [{}]
        self._nodes: dict[tuple[int, int], int] = {}
        # By identity first: frames are shared, and hashing one costs a hash of seven fields. The frame
        # is kept beside its id, which can thus not be given to another.
        self._seen: dict[int, tuple[Frame | Marker, int]] = {}

    def _place_id(self, frame: Frame | Marker) -> int:
        seen = self._seen.get(id(frame))
        if seen is not None:
            return seen[1]
        place_id = self.places.setdefault(place_of(frame), len(self.places))
        self._seen[id(frame)] = (frame, place_id)
        return place_id

    def add(self, stack: Stack) -> None:
        node = 0
        weight = stack.weight
        self.weights[0] += weight
        path: chain[Frame | Marker] = chain(stack.markers, reversed(stack.frames))
        for frame in path:
            place_id = self._place_id(frame)
            parent = node
            found = self._nodes.get((parent, place_id))
            if found is None:
                node = self._nodes[parent, place_id] = len(self.parents)
                self.parents.append(parent)
                self.place_ids.append(place_id)
                self.weights.append(0)
                self.lines.append({})
            else:
                node = found
            self.weights[node] += weight
            if isinstance(frame, Frame) and frame.line:
                lines = self.lines[node]
                lines[frame.line] = lines.get(frame.line, 0) + weight

    def order(self, places: tuple[Place, ...]) -> list[int]:
        """Nodes so that a parent comes first, then heavy before light; markers of incompleteness last."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, len(self.parents)):
            children[self.parents[node]].append(node)

        def rank(node: int) -> tuple[bool, int, str, str, str, str]:
            place = places[self.place_ids[node]]
            names = (place.name, place.kind, place.path or "", place.module or "")
            return (place.kind == "incomplete", -self.weights[node], *names)

        ordered = []
        waiting = [0]
        while waiting:
            node = waiting.pop()
            ordered.append(node)
            waiting.extend(sorted(children[node], key=rank, reverse=True))
        return ordered


def merge(stacks: Iterable[Stack]) -> Tree:
    """Merge stacks from their roots. The root's weight is the sum of all weights."""
    growing = _Growing()
    for stack in stacks:
        growing.add(stack)
    places = tuple(growing.places)
    ordered = growing.order(places)
    renumbered = {old: new for new, old in enumerate(ordered)}
    renumbered[-1] = -1
    return Tree(
        places=places,
        parents=tuple(renumbered[growing.parents[node]] for node in ordered),
        place_ids=tuple(growing.place_ids[node] for node in ordered),
        weights=tuple(growing.weights[node] for node in ordered),
        # Of lines that weigh the same the first: the page must not depend on the order of samples.
        lines=tuple(
            min(lines, key=lambda line: (-lines[line], line)) if (lines := growing.lines[node]) else 0
            for node in ordered
        ),
    )
