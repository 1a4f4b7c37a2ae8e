# SPDX-License-Identifier: Apache-2.0
"""What happens when people click in a flame graph page that compares two recordings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from browser import Browser
from clicking import choose, click_frame, drawn, middle, table, whole
from test_page import START, colours_of, native, ruby

from rubyunwind.formats.difference import Side
from rubyunwind.formats.flamegraph import write_difference
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals
from rubyunwind.profiler.samples import Samples

MAIN, SERVE = ruby("<main>"), ruby("Server#serve", 10)
PARSE, RENDER = ruby("Parser#parse", 20), ruby("View#render", 30)
READ = Frame("cfunc", "IO#read", path="/app/server.rb", line=21)

# From the root, and what it weighs. After has three times as many samples, and half the share of parsing.
BEFORE: tuple[tuple[tuple[Frame, ...], int], ...] = (
    ((MAIN, SERVE), 100),
    ((MAIN, SERVE, PARSE), 200),
    ((MAIN, SERVE, READ), 100),
)
AFTER: tuple[tuple[tuple[Frame, ...], int], ...] = (
    ((MAIN, SERVE), 300),
    ((MAIN, SERVE, PARSE), 300),
    ((MAIN, RENDER), 600),
)


def side(stacks: Sequence[tuple[tuple[Frame, ...], int]], pid: int, name: str = "app", **other: str) -> Side:
    samples = Samples(
        Sample(START, pid, pid, "ruby", tuple(reversed(frames)), weight=weight, **other)  # type: ignore[arg-type]
        for frames, weight in stacks
    )
    return Side(
        samples,
        Totals(sum(weight for _, weight in stacks), pid),
        Meta(name, f"ruby {name}.rb", START, 10, 99),
    )


def show(browser: Browser, folder: Path, before: Side, after: Side) -> None:
    path = folder / "diff.html"
    with path.open("wb") as file:
        write_difference(file, before, after)
    browser.open(path.as_uri())


@pytest.fixture
def page(silent: Browser, tmp_path: Path) -> Browser:
    show(silent, tmp_path, side(BEFORE, 11, "old"), side(AFTER, 22, "new"))
    return silent


def test_widths_are_of_what_came_after_and_of_what_was_before(page: Browser) -> None:
    assert drawn(page) == [["all"], ["<main>"], ["Server#serve", "View#render"], ["Parser#parse"]]
    assert whole(page) == 1200
    page.click('input[name="side"][value="before"]')
    assert drawn(page) == [["all"], ["<main>"], ["Server#serve"], ["Parser#parse", "IO#read"]]
    assert whole(page) == 400
    assert "side=before" in page.evaluate("location.hash")
    page.key("w")
    assert whole(page) == 1200
    page.click("#back")
    page.until("flamegraph.view.total[0] === 400")


def test_the_tip_has_both_numbers_and_the_change_in_points(page: Browser) -> None:
    page.mouse("mouseMoved", *middle(page, "Parser#parse"))
    assert "50.00% before (200 samples), 25.00% after (300 samples): -25.0 points" in page.text("#tip")
    page.mouse("mouseMoved", *middle(page, "Server#serve"))
    tip = page.text("#tip")
    assert "100.00% before (400 samples), 50.00% after (600 samples): -50.0 points" in tip
    assert "itself 25.00% before (100 samples), 25.00% after (300 samples): no change" in tip
    page.mouse("mouseMoved", *middle(page, "<main>"))
    assert "no change" in page.text("#tip")


def test_a_change_that_may_be_chance_says_so(silent: Browser, tmp_path: Path) -> None:
    few = [((MAIN, PARSE), 9), ((MAIN, RENDER), 11)], [((MAIN, PARSE), 11), ((MAIN, RENDER), 9)]
    many = [[(stack, weight * 100) for stack, weight in each] for each in few]
    show(silent, tmp_path, side(few[0], 1), side(few[1], 2))
    silent.mouse("mouseMoved", *middle(silent, "Parser#parse"))
    assert (
        "45.00% before (9 samples), 55.00% after (11 samples): +10.0 points, which may be chance"
        in silent.text("#tip")
    )
    show(silent, tmp_path, side(many[0], 1), side(many[1], 2))
    silent.mouse("mouseMoved", *middle(silent, "Parser#parse"))
    assert "+10.0 points" in silent.text("#tip")
    assert "chance" not in silent.text("#tip")


def test_the_table_has_both_shares_and_the_change(page: Browser) -> None:
    assert table(page) == [
        ["0.00%", "50.00%", "+50.0", "View#render"],
        ["50.00%", "25.00%", "-25.0", "Parser#parse"],
        ["25.00%", "0.00%", "-25.0", "IO#read"],
        ["25.00%", "25.00%", "0", "Server#serve"],
        ["0.00%", "0.00%", "0", "<main>"],
    ]
    page.click('input[name="of"][value="total"]')
    assert table(page)[:2] == [
        ["100.00%", "50.00%", "-50.0", "Server#serve"],
        ["0.00%", "50.00%", "+50.0", "View#render"],
    ]
    page.click("#by-before")
    assert [row[3] for row in table(page)][:2] == ["<main>", "Server#serve"]
    assert page.evaluate("document.getElementById('by-before').parentNode.ariaSort") == "descending"
    page.click("#by-name")
    assert [row[3] for row in table(page)] == sorted(row[3] for row in table(page))


def test_search_tells_both_shares(page: Browser) -> None:
    page.key("/")
    page.type("pars")
    page.key("Enter")
    assert (
        page.text("#matches")
        == "50.00% before (200 samples), 25.00% after (300 samples): -25.0 points, 1 name"
    )
    assert [row[3] for row in table(page)] == ["Parser#parse"]
    page.key("Escape")
    assert page.text("#matches") == ""


def test_zoom_reset_and_what_vanished(page: Browser) -> None:
    click_frame(page, "Server#serve")
    assert drawn(page) == [["all"], ["<main>"], ["Server#serve"], ["Parser#parse"]]
    page.key("w")
    assert drawn(page)[3] == ["Parser#parse", "IO#read"]
    assert page.evaluate("flamegraph.view.frame(flamegraph.zoomed).name") == "Server#serve"
    click_frame(page, "IO#read")
    page.key("w")
    # It is gone after: there is its box, since it was zoomed, and nothing in it.
    assert drawn(page)[-1] == ["IO#read"]
    assert "25.00% before (100 samples), 0.00% after (0 samples): -25.0 points" in page.text("#status")
    page.click("#reset")
    assert len(drawn(page)) == 4


def hue(colour: tuple[int, ...]) -> str:
    red, _, blue = colour
    return "red" if red > blue + 30 else "blue" if blue > red + 30 else "grey"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_grew_is_red_what_shrank_is_blue_as_the_legend_says(
    silent: Browser, tmp_path: Path, scheme: str
) -> None:
    silent.media(scheme=scheme)
    show(silent, tmp_path, side(BEFORE, 1), side(AFTER, 2))
    pixels = colours_of(silent.screenshot())

    def at(place: tuple[float, float]) -> tuple[int, ...]:
        return pixels[int(place[1]) * 1400 + int(place[0])]

    for name, expected in (("View#render", "red"), ("Parser#parse", "blue"), ("<main>", "grey")):
        x, y = middle(silent, name)
        assert hue(at((x, y - 7))) == expected, name
    steps = silent.evaluate(
        "[...document.querySelectorAll('#legend .step')].map((e) => {"
        "const b = e.getBoundingClientRect(); return [e.textContent, e.title, b.x + 2, b.y + 2]; })"
    )
    assert [text for text, *_ in steps] == ["5", "2", "0.5", "0.1", "same", "0.1", "0.5", "2", "5"]
    assert (steps[0][1], steps[-1][1]) == ("shrank by 5 points or more", "grew by 5 points or more")
    colours = [at((x, y)) for _, _, x, y in steps]
    assert [hue(colour) for colour in (colours[0], colours[4], colours[-1])] == ["blue", "grey", "red"]
    assert len(set(colours)) == len(colours)
    x, y = middle(silent, "View#render")
    assert all(abs(a - b) < 3 for a, b in zip(at((x, y - 7)), colours[-1], strict=True))


def luminance(colour: Sequence[int]) -> float:
    """By WCAG 2.2, relative luminance."""
    linear = [
        value / 255 / 12.92 if value <= 10.31475 else ((value / 255 + 0.055) / 1.055) ** 2.4
        for value in colour
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_every_colour(silent: Browser, tmp_path: Path, scheme: str) -> None:
    silent.media(scheme=scheme)
    show(silent, tmp_path, side(BEFORE, 1), side(AFTER, 2))
    found = silent.evaluate(
        "[...document.querySelectorAll('#legend .step')].map((e) => [getComputedStyle(e).backgroundColor,"
        "getComputedStyle(e).color].map((c) => c.match(/[0-9]+/g).map(Number)))"
    )
    for ground, text in found:
        dark, light = sorted((luminance(ground), luminance(text)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (ground, text)


def test_both_recordings_and_their_losses_are_told(page: Browser) -> None:
    assert page.text("#title") == "old -> new"
    lines = page.evaluate("[...document.querySelectorAll('#totals .side')].map((e) => e.textContent)")
    assert lines[0].startswith("Before: old · ruby old.rb · 99 Hz · 10.0 s · ")
    assert lines[0].endswith("read 400 · lost 11 · truncated 0 · incomplete or not sent: none")
    assert lines[1].startswith("After: new · ruby new.rb · ")
    assert lines[1].endswith("read 1,200 · lost 22 · truncated 0 · incomplete or not sent: none")
    for hidden in ("time", "threads", "units"):
        assert not page.evaluate(f"document.getElementById('{hidden}').checkVisibility()")


def test_kinds_lines_and_native_frames_are_chosen_as_on_every_page(silent: Browser, tmp_path: Path) -> None:
    stack = (native("rb_vm_exec"), MAIN, READ, native("read"))
    show(silent, tmp_path, side([(stack, 4)], 1), side([(stack, 8)], 2))
    assert drawn(silent) == [["all"], ["<main>"], ["IO#read"], ["read"]]
    silent.click('input[value="all"]')
    assert drawn(silent) == [["all"], ["rb_vm_exec"], ["<main>"], ["IO#read"], ["read"]]
    silent.click('input[value="off"]')
    silent.click('[data-kind="cfunc"]')
    assert drawn(silent) == [["all"], ["<main>"]]
    assert whole(silent) == 8


def test_incomplete_stacks_and_units_of_both(silent: Browser, tmp_path: Path) -> None:
    before, after = side(BEFORE, 1), side(AFTER, 2)
    before.samples.append(Sample(START, 1, 1, "ruby", (PARSE,), False, "limit", 100))
    after.samples.append(Sample(START, 2, 2, "ruby", (MAIN,), weight=3_000_000, unit="ns", origin="off-cpu"))
    show(silent, tmp_path, before, after)
    assert silent.text("#warning").startswith(
        "before: 20.00% (100 samples) is in stacks that did not reach their root"
    )
    silent.click('[data-kind="incomplete"]')
    assert "left out" in silent.text("#warning")
    assert silent.evaluate("flamegraph.view.sideTotals.map((each) => each[0])") == [400, 1200]
    choose(silent, "#unit", "ns")
    assert whole(silent) == 3_000_000
    assert silent.text("#warning") == "There is nothing before."
    assert drawn(silent) == [["all"], ["<main>"]]


def test_processes_are_told_apart_by_name_only(silent: Browser, tmp_path: Path) -> None:
    before, after = side(BEFORE, 1), side(AFTER, 2)
    for each, pid in ((before, 71), (after, 72)):
        each.samples.append(Sample(START, pid, pid, "sidekiq", (MAIN,), weight=9))
    show(silent, tmp_path, before, after)
    assert drawn(silent)[1] == ["ruby", "sidekiq"]
    click_frame(silent, "sidekiq")
    assert "(9 samples)" in silent.text("#status")


def test_two_recordings_without_samples_say_so(silent: Browser, tmp_path: Path) -> None:
    show(silent, tmp_path, side([], 1), side([], 2))
    assert silent.evaluate("document.getElementById('empty').checkVisibility()")
