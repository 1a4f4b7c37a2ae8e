# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from profile_strategies import HOSTILE_NAMES, profiles

import rubyunwind.formats
from rubyunwind.formats import Meta, write
from rubyunwind.formats.flamegraph import embedded_json
from rubyunwind.profiler.sample import Frame, Sample, Totals

FORMATS_DIRECTORY = Path(rubyunwind.formats.__file__).parent


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


def page_of(*samples: Sample, totals: Totals | None = None, meta: Meta | None = None) -> Page:
    file = io.BytesIO()
    write(file, "flamegraph", samples, totals, meta)
    return Page(file.getvalue().decode("utf-8"))


def paths_of(profile: dict[str, Any]) -> dict[tuple[tuple[str, str], ...], int]:
    """Own weight of each path of (kind, name) from the root; fails on a reference that leads nowhere."""
    strings, nodes = profile["strings"], profile["nodes"]
    assert len({len(column) for column in nodes.values()}) == 1
    for frame in profile["frames"]:
        assert all(-1 <= index < len(strings) for index in frame)
        assert frame[0] >= 0
        assert frame[1] >= 0
    own = list(nodes["weight"])
    paths: list[tuple[tuple[str, str], ...]] = []
    for index, (parent, frame) in enumerate(zip(nodes["parent"], nodes["frame"], strict=True)):
        assert -1 <= parent < index or index == 0
        assert 0 <= frame < len(profile["frames"])
        kind, name = (strings[number] for number in profile["frames"][frame][:2])
        paths.append(() if index == 0 else (*paths[parent], (kind, name)))
        if index:
            own[parent] -= nodes["weight"][index]
    assert min(own) >= 0
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for path, weight in zip(paths, own, strict=True):
        found[path] += weight
    return {path: weight for path, weight in found.items() if weight}


@given(profiles)
@settings(max_examples=60, deadline=None)
def test_the_tree_holds_every_stack_with_its_weight(profile: list[Sample]) -> None:
    several = len({sample.pid for sample in profile}) > 1
    expected: Counter[tuple[tuple[str, str], ...]] = Counter()
    for sample in profile:
        expected[tuple((frame.kind, frame.name) for frame in reversed(sample.frames))] += sample.weight
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    shown = page_of(*profile).profile
    for path, weight in paths_of(shown).items():
        kinds = [kind for kind, _ in path]
        assert ("process" in kinds) == several
        found[tuple(step for step in path if step[0] not in ("process", "incomplete"))] += weight
    assert found == expected
    assert shown["nodes"]["weight"][0] == sum(sample.weight for sample in profile)


@given(profiles)
@settings(max_examples=60, deadline=None)
def test_incomplete_weight_stands_on_marked_frames_at_the_root(profile: list[Sample]) -> None:
    marked = sum(
        weight
        for path, weight in paths_of(page_of(*profile).profile).items()
        if "incomplete" in [kind for kind, _ in path[:2]]
    )
    assert marked == sum(sample.weight for sample in profile if not (sample.complete and sample.frames))


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_changes_what_a_parser_sees_of_the_page(name: str) -> None:
    def page(text: str) -> Page:
        frames = (Frame("ruby", text, label=text, path=text, line=1), Frame("native", text, module=text))
        sample = Sample(1, 1, 1, text, frames, False, text)
        meta = Meta(title=text, command=text, runtimes=(text,))
        return page_of(sample, totals=Totals(1, failed=((text, 1),)), meta=meta)

    hostile, plain = page(name), page("plain")
    assert hostile.tags == plain.tags
    assert len(hostile.scripts) == len(plain.scripts)
    assert name in hostile.profile["strings"]
    assert hostile.profile["title"] == name
    assert hostile.profile["totals"]["failed"] == [[name, 1]]


@given(profiles)
@settings(max_examples=40, deadline=None)
def test_embedded_json_is_harmless_and_parses_back_equal(profile: list[Sample]) -> None:
    value = [[frame.name, frame.path, sample.reason] for sample in profile for frame in sample.frames]
    text = embedded_json(value)
    assert text.isascii()
    assert not set(text) & set("<>&")
    assert json.loads(text) == value


def test_frames_merge_by_kind_name_and_file_and_keep_their_heaviest_line() -> None:
    def at(line: int, weight: int, path: str = "/a.rb") -> Sample:
        return Sample(1, 1, 1, "ruby", (Frame("ruby", "a", label="a", path=path, line=line),), weight=weight)

    profile = page_of(at(3, 1), at(9, 2), at(3, 2), at(1, 1, "/b.rb")).profile
    assert profile["nodes"]["weight"] == [6, 5, 1]
    assert profile["nodes"]["line"] == [0, 3, 1]
    paths = [profile["strings"][profile["frames"][frame][2]] for frame in profile["nodes"]["frame"][1:]]
    assert paths == ["/a.rb", "/b.rb"]


def test_heavier_frames_come_first_and_incomplete_stacks_last() -> None:
    def named(name: str, weight: int, reason: str | None = None) -> Sample:
        return Sample(1, 1, 1, "ruby", (Frame("ruby", name),), reason is None, reason, weight)

    profile = page_of(named("x", 9, "limit"), named("light", 1), named("heavy", 2)).profile
    order = [profile["strings"][profile["frames"][frame][1]] for frame in profile["nodes"]["frame"]]
    assert order == ["all", "heavy", "light", "[truncated: limit]", "x"]


def test_the_page_does_not_depend_on_the_order_of_samples() -> None:
    some = [
        Sample(
            1, 1, 1, "ruby", tuple(Frame("ruby", name, path="/a.rb", line=index) for name in pair), weight=2
        )
        for index, pair in enumerate([("a", "b"), ("b", "a"), ("a", "b"), ("c",)])
    ]
    forward, backward = page_of(*some).profile, page_of(*reversed(some)).profile
    assert paths_of(forward) == paths_of(backward)
    assert forward["nodes"]["line"] == backward["nodes"]["line"]


def test_a_stack_of_many_thousand_frames_can_be_written() -> None:
    frames = tuple(Frame("ruby", f"f{number % 3}") for number in range(20_000))
    assert len(page_of(Sample(1, 1, 1, "ruby", frames)).profile["nodes"]["weight"]) == 20_001


def test_an_empty_profile_gives_a_whole_page_with_its_totals() -> None:
    totals = Totals(lost=3, failed=(("no unwind row", 2),))
    page = page_of(totals=totals)
    assert page.profile["nodes"]["weight"] == [0]
    assert page.profile["totals"] == {"read": 0, "lost": 3, "truncated": 0, "failed": [["no unwind row", 2]]}
    assert [tag for tag, attributes in page.tags if attributes.get("id") == "empty"] == ["p"]


def test_totals_and_circumstances_are_in_the_page() -> None:
    meta = Meta("a title", "ruby a.rb", 1_700_000_000_000_000_000, 10.04, 99, ("ruby 3.1.2",))
    profile = page_of(totals=Totals(5, 4, 3), meta=meta).profile
    assert profile["totals"] == {"read": 5, "lost": 4, "truncated": 3, "failed": []}
    assert profile["title"] == "a title"
    assert profile["details"] == ["ruby a.rb", "ruby 3.1.2", "99 Hz", "10.0 s", "2023-11-14 22:13:20 UTC"]


def test_the_policy_allows_exactly_the_scripts_of_the_page_and_no_connection() -> None:
    page = page_of()
    [policy] = [
        attributes["content"] or ""
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    run = [text for text, kind in zip(page.scripts, page.script_types, strict=True) if kind is None]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run]
    assert directives["default-src"] == "'none'"
    assert "connect-src" not in directives
    assert directives["script-src"].split() == [f"'sha256-{value}'" for value in hashes]


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = page_of()
    assert not [attributes for _, attributes in page.tags if {"src", "href", "data"} & set(attributes)]
    style = (FORMATS_DIRECTORY / "page/page.css").read_text("utf-8")
    assert "@import" not in style
    assert "url(" not in style
    script = (FORMATS_DIRECTORY / "page/page.js").read_text("utf-8")
    assert not re.search(r"\bfetch\b|XMLHttpRequest|WebSocket|import\(", script)


def test_the_script_never_makes_markup_from_text() -> None:
    script = (FORMATS_DIRECTORY / "page/page.js").read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.html\(|\beval\b", script)


def test_vendored_files_are_the_published_ones_with_their_licences() -> None:
    vendor = FORMATS_DIRECTORY / "vendor"
    rows = re.findall(
        r"^\| (\S+) +\| (\S+) +\| `(\S+)` +\| \S+ +\| `([0-9a-f]{64})` \|$",
        (vendor / "README.md").read_text("utf-8"),
        re.MULTILINE,
    )
    listed = set()
    for name, version, file, digest in rows:
        path = vendor / f"{name}-{version}" / file
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        assert (path.parent / "LICENSE").stat().st_size > 500
        listed.add(path)
    assert listed == set(vendor.glob("*/*.js"))


def test_the_page_carries_the_licences_of_what_it_embeds() -> None:
    page = page_of()
    text = page.scripts[page.script_types.index("text/plain")]
    assert "d3-7.9.2" in text
    assert "Permission to use, copy, modify" in text
    assert "d3-flame-graph-5.0.0" in text
    assert "Apache License" in text


def test_each_unit_has_a_graph_of_its_own() -> None:
    def named(name: str, unit: str, weight: int) -> Sample:
        return Sample(1, 1, 1, "ruby", (Frame("ruby", name),), weight=weight, unit=unit)

    profile = page_of(named("a", "ns", 500), named("a", "samples", 3), named("b", "ns", 7)).profile
    (other,) = profile["others"]
    assert (profile["unit"], other["unit"]) == ("samples", "ns")
    assert paths_of(profile) == {(("ruby", "a"),): 3}
    assert paths_of(other) == {(("ruby", "a"),): 500, (("ruby", "b"),): 7}
    assert page_of(named("a", "ns", 500)).profile["others"] == []
