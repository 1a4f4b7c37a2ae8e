# SPDX-License-Identifier: Apache-2.0
"""The data of a flame graph page, read back without any of the code that wrote it."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections import Counter
from html.parser import HTMLParser
from typing import Any, NamedTuple

__all__ = ["Entry", "Page", "entries_of", "unpacked"]

_TYPES = {"u8": ("B", 1), "u16": ("H", 2), "u32": ("I", 4), "f64": ("d", 8)}


class Page(HTMLParser):
    """The page as a parser sees it: its tags in order, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data

    @property
    def script_types(self) -> list[str | None]:
        return [attributes.get("type") for tag, attributes in self.tags if tag == "script"]

    @property
    def profile(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.scripts[self.script_types.index("application/json")])
        return value


def unpacked(column: list[str]) -> list[int]:
    """Return the numbers of a packed column."""
    kind, packed = column
    code, size = _TYPES[kind]
    raw = zlib.decompress(base64.b64decode(packed, validate=True))
    numbers = struct.unpack(f"<{len(raw) // size}{code}", raw)
    assert all(number == int(number) for number in numbers)
    return [int(number) for number in numbers]


class Entry(NamedTuple):
    """Where weight is: (kind, name, path, module, line) of each frame from the root, and the rest."""

    path: tuple[tuple[str, str, str | None, str | None, int], ...]
    pid: int
    tid: int
    unit: str
    slice: int
    side: int = 0


def entries_of(profile: dict[str, Any]) -> Counter[Entry]:
    """Return the weight of each entry. Fails on a reference that leads nowhere and on empty entries."""
    strings = profile["strings"]
    assert len(set(strings)) == len(strings)

    def string(index: int) -> str | None:
        assert -1 <= index < len(strings)
        return None if index < 0 else strings[index]

    frames = [tuple(map(string, frame)) for frame in profile["frames"]]
    tracks = [(pid, tid, string(unit), *side) for pid, tid, _, _, unit, *side in profile["tracks"]]
    site_frames, site_lines = (unpacked(profile["sites"][name]) for name in ("frame", "line"))
    sites = [(*frames[frame], line) for frame, line in zip(site_frames, site_lines, strict=True)]
    depths, node_sites = (unpacked(profile["nodes"][name]) for name in ("depth", "site"))
    assert depths[0] == 0
    assert sites[node_sites[0]][:2] == ("root", "all")
    paths: list[Any] = []
    above: list[Any] = []
    for depth, site in zip(depths, node_sites, strict=True):
        assert 0 < depth <= len(above) or not above
        above = [*above[:depth], () if depth == 0 else (*above[depth - 1], sites[site])]
        paths.append(above[-1])
    assert len(set(paths)) == len(paths)
    found: Counter[Entry] = Counter()
    columns = (unpacked(profile["weights"][name]) for name in ("node", "track", "slice", "weight"))
    for node, track, at, weight in zip(*columns, strict=True):
        pid, tid, unit, *side = tracks[track]
        assert 0 <= at < profile["time"][2]
        assert weight > 0
        entry = Entry(paths[node], pid, tid, unit, at, *side)
        assert entry not in found
        found[entry] = weight
    return found
