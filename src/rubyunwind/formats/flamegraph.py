# SPDX-License-Identifier: Apache-2.0
"""A flame graph: one HTML page that needs nothing else, neither files nor a network.

The page is page/page.html with the style, the scripts and the profile put in. The profile is a JSON block
that no HTML parser can read as anything else, and the scripts put names into the page as text only. A
content security policy names the scripts by hash and forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.registry import Meta
from rubyunwind.formats.summary import circumstances
from rubyunwind.formats.weights import Weights, weigh, weigh_sides
from rubyunwind.profiler.sample import Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.difference import Side

__all__ = ["embedded_json", "page_data", "write", "write_difference"]

_PAGE = Path(__file__).parent / "page"
# In the order in which they are run: each uses what those before it define.
_SCRIPTS = (
    "text.js",
    "change.js",
    "theme.js",
    "profile.js",
    "view.js",
    "search.js",
    "methods.js",
    "graph.js",
    "timeline.js",
    "choosers.js",
    "details.js",
    "heading.js",
    "address.js",
    "controls.js",
    "page.js",
)
_SLOT = re.compile(r"@@([A-Z]+)@@")
_JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
# Type of a column in the page: the array type that has it, and its largest value.
_COLUMNS = (("u8", "B", 1 << 8), ("u16", "H", 1 << 16), ("u32", "I", 1 << 32))


def embedded_json(value: object) -> str:
    """JSON that is safe inside a script element: ASCII, without `<`, `>` and `&`.

    Those three occur only inside strings, where an escape means the same. Everything outside ASCII is
    an escape too, U+2028 and lone surrogates among it.
    """
    return json.dumps(value, separators=(",", ":")).translate(_JSON_ESCAPES)


class _Strings:
    """A table of strings; None has the index -1."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def index(self, text: str | None) -> int:
        return -1 if text is None else self._ids.setdefault(text, len(self._ids))

    def table(self) -> list[str]:
        return list(self._ids)


def _packed(numbers: array[int]) -> list[str]:
    """A column as the page has it: its type, and its little-endian numbers, deflated (zlib), in base64."""
    most = max(numbers, default=0)
    # The script counts in doubles anyway: exact up to 2 ** 53, which is 104 days in ns.
    name, code = next(((name, code) for name, code, end in _COLUMNS if most < end), ("f64", "d"))
    column: array[int] = array(code, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return [name, base64.b64encode(zlib.compress(column.tobytes(), 6)).decode()]


def page_data(weights: Weights, totals: Totals, meta: Meta) -> dict[str, object]:
    """What the page's script reads.

    `frames` has [kind, name, path, module] as indexes into `strings` (-1: none), `tracks`
    [pid, tid, comm, container, unit], the last three likewise. The others are packed columns: `sites` are
    lines of frames, `nodes` those of a Tree, `weights` those of Weights. `time` has the start (unix
    seconds), the length of a slice (seconds) and how many there are.
    """
    tree, timeline = weights.tree, weights.timeline
    strings = _Strings()
    frames = [
        [strings.index(text) for text in (place.kind, place.name, place.path, place.module)]
        for place in tree.places
    ]
    tracks = [
        [track.pid, track.tid, *(strings.index(text) for text in (track.comm, track.container, track.unit))]
        for track in weights.tracks
    ]
    return {
        **_heading(totals, meta),
        "time": [timeline.start / 1e9, timeline.width / 1e9, timeline.slices],
        "strings": strings.table(),
        "frames": frames,
        "tracks": tracks,
        "sites": {
            "frame": _packed(array("I", (site.place for site in tree.sites))),
            "line": _packed(array("I", (site.line for site in tree.sites))),
        },
        "nodes": {"depth": _packed(tree.depths), "site": _packed(tree.site_ids)},
        "weights": {
            "node": _packed(weights.nodes),
            "track": _packed(weights.tracks_of),
            "slice": _packed(weights.slices),
            "weight": _packed(weights.weights),
        },
    }


def _heading(totals: Totals, meta: Meta) -> dict[str, object]:
    return {
        "title": meta.title,
        "details": circumstances(meta),
        "totals": {
            "read": totals.read,
            "lost": totals.lost,
            "truncated": totals.truncated,
            "failed": [[reason, count] for reason, count in totals.failed],
        },
    }


def difference_data(before: Side, after: Side) -> dict[str, object]:
    """What the page's script reads of a comparison: `sides` has the headings of both.

    There is a track for each side and unit; it ends in the number of its side.
    """
    weights = weigh_sides(before, after)
    titles = [side.meta.title or side.meta.command or "a profile" for side in (before, after)]
    meta = Meta(title=titles[0] if titles[0] == titles[1] else " -> ".join(titles))
    data = page_data(weights, Totals(), meta)
    tracks = data["tracks"]
    assert isinstance(tracks, list)
    return {
        **data,
        "tracks": [[*track, weights.tracks[at].tid] for at, track in enumerate(tracks)],
        "sides": [_heading(side.totals, side.meta) for side in (before, after)],
    }


def _hash_source(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _page(data: str) -> str:
    """The template with every slot filled. One pass, so that nothing put in is taken for a slot."""
    scripts = [(_PAGE / name).read_text("utf-8") for name in _SCRIPTS]
    slots = {
        "HASHES": " ".join(_hash_source(script) for script in scripts),
        "STYLE": (_PAGE / "page.css").read_text("utf-8"),
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
        "DATA": data,
    }
    template = (_PAGE / "page.html").read_text("utf-8")
    return _SLOT.sub(lambda slot: slots[slot[1]], template)


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the page. A profile without samples gives a page that says so and shows the totals."""
    file.write(_page(embedded_json(page_data(weigh(samples, meta), totals, meta))).encode())


def write_difference(file: BinaryIO, before: Side, after: Side, /) -> None:
    """Write a page that compares: widths by one of the sides, colours by how the share has changed."""
    file.write(_page(embedded_json(difference_data(before, after))).encode())
