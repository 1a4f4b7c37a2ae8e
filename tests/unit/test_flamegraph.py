# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from page_reader import Page, entries_of, unpacked
from profile_strategies import HOSTILE_NAMES, profiles

import rubyunwind.formats.weights
from rubyunwind.formats import Meta, write
from rubyunwind.formats.flamegraph import _packed, embedded_json
from rubyunwind.profiler.sample import Frame, Sample, Totals
from rubyunwind.profiler.samples import Samples

PAGE_DIRECTORY = Path(rubyunwind.formats.__file__).parent / "page"


def page_of(*samples: Sample, totals: Totals | None = None, meta: Meta | None = None) -> Page:
    file = io.BytesIO()
    write(file, "flamegraph", samples, totals, meta)
    return Page(file.getvalue().decode("utf-8"))


def paths_of(profile: dict[str, Any]) -> Counter[tuple[tuple[str, str], ...]]:
    """Weight of each path of (kind, name) from the root, all threads and moments together."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for entry, weight in entries_of(profile).items():
        found[tuple((kind, name) for kind, name, *_ in entry.path)] += weight
    return found


@given(profiles)
@settings(max_examples=60)
def test_the_page_holds_every_stack_of_every_thread_with_its_weight(profile: list[Sample]) -> None:
    several = len({sample.pid for sample in profile}) > 1
    expected: Counter[object] = Counter()
    for sample in profile:
        frames = tuple(
            (frame.kind, frame.name, frame.path, frame.module, frame.line or 0)
            for frame in reversed(sample.frames)
        )
        expected[frames, sample.pid, sample.tid, sample.unit] += sample.weight
    found: Counter[object] = Counter()
    for entry, weight in entries_of(page_of(*profile).profile).items():
        kinds = [step[0] for step in entry.path]
        assert ("process" in kinds) == several
        frames = tuple(step for step in entry.path if step[0] not in ("process", "incomplete"))
        found[frames, entry.pid, entry.tid, entry.unit] += weight
    assert found == expected


@given(profiles)
@settings(max_examples=60)
def test_samples_and_an_iterator_over_them_give_the_same_page(profile: list[Sample]) -> None:
    def page(samples: Iterable[Sample]) -> bytes:
        file = io.BytesIO()
        write(file, "flamegraph", samples)
        return file.getvalue()

    assert page(Samples(profile)) == page(iter(profile))


@given(profiles)
@settings(max_examples=60)
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
@settings(max_examples=40)
def test_embedded_json_is_harmless_and_parses_back_equal(profile: list[Sample]) -> None:
    value = [[frame.name, frame.path, sample.reason] for sample in profile for frame in sample.frames]
    text = embedded_json(value)
    assert text.isascii()
    assert not set(text) & set("<>&")
    assert json.loads(text) == value


def test_lines_and_files_are_told_apart_and_addresses_are_not() -> None:
    def at(line: int, weight: int, path: str = "/a.rb") -> Sample:
        return Sample(1, 1, 1, "ruby", (Frame("ruby", "a", label="a", path=path, line=line),), weight=weight)

    def native(offset: int) -> Sample:
        return Sample(1, 1, 1, "ruby", (Frame("native", "f", module="libc", offset=offset),))

    page = page_of(at(3, 1), at(9, 2), at(3, 2), at(1, 1, "/b.rb"), native(1), native(2)).profile
    found = {entry.path[0][1:]: weight for entry, weight in entries_of(page).items()}
    assert found == {
        ("a", "/a.rb", None, 3): 3,
        ("a", "/a.rb", None, 9): 2,
        ("a", "/b.rb", None, 1): 1,
        ("f", None, "libc", 0): 2,
    }


def test_units_are_told_apart_where_stacks_are_equal() -> None:
    frames = (Frame("ruby", "a"),)
    page = page_of(
        Sample(1, 1, 1, "ruby", frames), Sample(1, 1, 1, "ruby", frames, weight=5_000, unit="ns")
    ).profile
    assert {entry.unit: weight for entry, weight in entries_of(page).items()} == {"samples": 1, "ns": 5000}
    assert len(unpacked(page["nodes"]["depth"])) == 2


def test_a_thread_that_changed_its_name_is_one_with_its_last_name() -> None:
    def named(comm: str, tid: int = 1) -> Sample:
        return Sample(1, 1, tid, comm, (Frame("ruby", "a"),), container="c0ffee")

    profile = page_of(named("ruby"), named("worker 1", 2), named("puma")).profile
    strings = profile["strings"]
    assert [[*track[:2], *(strings[index] for index in track[2:])] for track in profile["tracks"]] == [
        [1, 1, "puma", "c0ffee", "samples"],
        [1, 2, "worker 1", "c0ffee", "samples"],
    ]


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("seconds", "width", "slices"),
    [(0, 1e-9, 1), (0.9, 1e-3, 901), (10, 0.02, 501), (600, 1, 601), (86_400, 100, 865)],
)
def test_time_is_cut_into_round_slices(seconds: float, width: float, slices: int) -> None:
    def at(time: int) -> Sample:
        return Sample(1_700_000_000 * SECOND + time, 1, 1, "ruby", (Frame("ruby", "a"),))

    last = int(seconds * SECOND)
    profile = page_of(at(0), at(last // 2), at(last)).profile
    assert profile["time"] == [1_700_000_000, width, slices]
    expected = Counter([0, last // 2 // round(width * SECOND), slices - 1])
    assert Counter({entry.slice: weight for entry, weight in entries_of(profile).items()}) == expected


def test_time_begins_and_ends_with_the_recording_if_the_clocks_agree() -> None:
    sample = Sample(1_700_000_003 * SECOND, 1, 1, "ruby", (Frame("ruby", "a"),))
    agreed = page_of(sample, meta=Meta(started=1_700_000_000 * SECOND, duration=10)).profile
    assert agreed["time"] == [1_700_000_000, 0.01, 1000]
    assert [entry.slice for entry in entries_of(agreed)] == [300]
    other = page_of(sample, meta=Meta(started=1_600_000_000 * SECOND, duration=10)).profile
    assert other["time"] == [1_700_000_003, 1e-9, 1]


def test_many_samples_make_slices_longer_and_keep_their_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rubyunwind.formats.weights, "_MOST_ENTRIES", 50)
    frames = (Frame("ruby", "a"),)
    profile = page_of(*(Sample(number * SECOND, 1, 1, "ruby", frames) for number in range(1000))).profile
    entries = entries_of(profile)
    assert profile["time"][1:] == [20, 50]
    assert [weight for _, weight in sorted(entries.items(), key=lambda item: item[0].slice)] == [20] * 50


@given(st.lists(st.integers(0, 2**53)))
@example([255])
@example([256, 65_535])
@example([65_536, 2**32 - 1])
@example([2**32])
def test_columns_are_as_narrow_as_they_can_be_and_exact(numbers: list[int]) -> None:
    column = _packed(array("Q", numbers))
    assert unpacked(column) == numbers
    narrow = next(name for name, bits in (("u8", 8), ("u16", 16), ("u32", 32), ("f64", 64))
                  if max(numbers, default=0) < 1 << bits)  # fmt: skip
    assert column[0] == narrow


def test_the_page_does_not_depend_on_the_order_of_samples() -> None:
    some = [
        Sample(
            1, 1, 1, "ruby", tuple(Frame("ruby", name, path="/a.rb", line=index) for name in pair), weight=2
        )
        for index, pair in enumerate([("a", "b"), ("b", "a"), ("a", "b"), ("c",)])
    ]
    forward, backward = page_of(*some).profile, page_of(*reversed(some)).profile
    assert forward == backward


def test_a_stack_of_many_thousand_frames_can_be_written() -> None:
    frames = tuple(Frame("ruby", f"f{number % 3}") for number in range(20_000))
    depths = unpacked(page_of(Sample(1, 1, 1, "ruby", frames)).profile["nodes"]["depth"])
    assert depths == list(range(20_001))


def test_an_empty_profile_gives_a_whole_page_with_its_totals() -> None:
    totals = Totals(lost=3, failed=(("no unwind row", 2),))
    page = page_of(totals=totals)
    assert page.profile["tracks"] == []
    assert not entries_of(page.profile)
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


def scripts() -> str:
    return "".join(path.read_text("utf-8") for path in sorted(PAGE_DIRECTORY.glob("*.js")))


def test_every_script_of_the_page_is_in_it() -> None:
    page = page_of()
    run = {text for text, kind in zip(page.scripts, page.script_types, strict=True) if kind is None}
    assert run == {path.read_text("utf-8") for path in PAGE_DIRECTORY.glob("*.js")}


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = page_of()
    assert not [attributes for _, attributes in page.tags if {"src", "href", "data"} & set(attributes)]
    style = (PAGE_DIRECTORY / "page.css").read_text("utf-8")
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"\bfetch\b|XMLHttpRequest|WebSocket|import\(", scripts())


def test_the_scripts_never_make_markup_from_text() -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\.html\(|\beval\b", scripts()
    )
