# SPDX-License-Identifier: Apache-2.0
"""A flame graph: one HTML page that needs nothing else, neither files nor a network.

The page is page/page.html with the style, the vendored libraries, their licences, the script and the
profile put in. The profile is a JSON block that no HTML parser can read as anything else, and the script
puts names into the page as text only. A content security policy names the three scripts by hash and
forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rubyunwind.formats.stacks import group
from rubyunwind.formats.summary import circumstances
from rubyunwind.formats.tree import Tree, merge
from rubyunwind.profiler.sample import Sample, Totals

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta

__all__ = ["embedded_json", "page_data", "write"]

_HERE = Path(__file__).parent
_LIBRARIES = ("d3-7.9.2/d3.min.js", "d3-flame-graph-5.0.0/d3-flamegraph.umd.min.js")
_SLOT = re.compile(r"@@([A-Z]+)@@")
_JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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


def page_data(tree: Tree, unit: str, totals: Totals, meta: Meta) -> dict[str, object]:
    """What the page's script reads.

    `frames` has [kind, name, path, module] as indexes into `strings` (-1: none); the columns of `nodes`
    are a Tree's, with `frame` an index into `frames`. `unit` is "" when the profile has several.
    """
    strings = _Strings()
    frames = [
        [strings.index(text) for text in (place.kind, place.name, place.path, place.module)]
        for place in tree.places
    ]
    return {
        "title": meta.title,
        "details": circumstances(meta),
        "unit": unit,
        "totals": {
            "read": totals.read,
            "lost": totals.lost,
            "truncated": totals.truncated,
            "failed": [[reason, count] for reason, count in totals.failed],
        },
        "strings": strings.table(),
        "frames": frames,
        "nodes": {
            "parent": tree.parents,
            "frame": tree.place_ids,
            "weight": tree.weights,
            "line": tree.lines,
        },
    }


def _hash_source(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _licences() -> str:
    parts = []
    for library in _LIBRARIES:
        directory = (_HERE / "vendor" / library).parent
        parts.append(f"{directory.name}\n\n{(directory / 'LICENSE').read_text('utf-8')}")
    return "\n\n".join(parts)


def _page(data: str) -> str:
    """The template with every slot filled. One pass, so that nothing put in is taken for a slot."""
    scripts = [(_HERE / "vendor" / library).read_text("utf-8") for library in _LIBRARIES]
    scripts.append((_HERE / "page/page.js").read_text("utf-8"))
    slots = {
        "HASHES": " ".join(_hash_source(script) for script in scripts),
        "STYLE": (_HERE / "page/page.css").read_text("utf-8"),
        "LIBRARIES": "\n".join(f"<script>{script}</script>" for script in scripts[:-1]),
        "SCRIPT": scripts[-1],
        "LICENCES": _licences(),
        "DATA": data,
    }
    template = (_HERE / "page/page.html").read_text("utf-8")
    return _SLOT.sub(lambda slot: slots[slot[1]], template)


def write(file: BinaryIO, samples: Iterable[Sample], totals: Totals, meta: Meta, /) -> None:
    """Write the page. A profile without samples gives a page that says so and shows the totals."""
    stacks = group(samples)
    units = {stack.unit for stack in stacks}
    unit = units.pop() if len(units) == 1 else ""
    file.write(_page(embedded_json(page_data(merge(stacks), unit, totals, meta))).encode())
