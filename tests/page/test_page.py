# SPDX-License-Identifier: Apache-2.0
"""What happens when people click in a flame graph page."""

from __future__ import annotations

import json
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from clicking import choose, click_frame, drawn, middle, table, whole
from large_profile import large_profile

from rubyunwind.formats import Meta, write
from rubyunwind.profiler.sample import Frame, Sample, Totals

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from profile_strategies import HOSTILE_NAMES

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
LIBRUBY = "/usr/lib/libruby.so"


def ruby(name: str, line: int = 1) -> Frame:
    return Frame("ruby", name, path="/app/server.rb", line=line)


def native(name: str) -> Frame:
    return Frame("native", name, module=LIBRUBY)


BOOT, LOOP = native("ruby_run_node"), native("rb_vm_exec")
MAIN, SERVE = ruby("<main>", 1), ruby("App::Server#serve", 10)
PARSE, RENDER = ruby("Parser#parse", 20), ruby("View#render", 30)
EACH = Frame("cfunc", "Array#each", path="/app/server.rb", line=11)
READ = Frame("cfunc", "IO#read", path="/app/server.rb", line=21)
SYS_READ = Frame("kernel", "vfs_read")
ITEMS = (BOOT, LOOP, MAIN, SERVE, EACH, native("rb_ary_each"), LOOP)

# From the root, what it weighs, the thread, and in which of ten seconds.
PROFILE: tuple[tuple[tuple[Frame, ...], int, int, int], ...] = (
    ((BOOT, LOOP, MAIN, SERVE, LOOP), 40, 1, 0),
    ((*ITEMS, PARSE), 20, 1, 2),
    ((*ITEMS, PARSE, READ, native("rb_io_read"), SYS_READ), 10, 2, 5),
    ((BOOT, LOOP, MAIN, RENDER, PARSE), 20, 2, 9),
    ((BOOT, native("ruby_init")), 10, 1, 0),
)
TOTAL = 100


def samples() -> Iterator[Sample]:
    for frames, weight, thread, second in PROFILE:
        yield Sample(
            START + second * SECOND, 1, thread, f"worker {thread}", tuple(reversed(frames)), weight=weight
        )


@pytest.fixture
def page(silent: Browser, tmp_path: Path) -> Browser:
    show(silent, tmp_path, list(samples()))
    return silent


def show(
    browser: Browser, folder: Path, some: Sequence[Sample], totals: Totals | None = None, name: str = "app"
) -> None:
    path = folder / "page.html"
    meta = Meta(name, "ruby server.rb", START, 10, 99, ("ruby 3.1.2",))
    write(path, "flamegraph", some, totals, meta)
    browser.open(path.as_uri())


INSIDE = [
    ["all"],
    ["<main>", "ruby_run_node"],
    ["App::Server#serve", "View#render", "ruby_init"],
    ["Array#each", "Parser#parse"],
    ["Parser#parse"],
    ["IO#read"],
    ["rb_io_read"],
    ["vfs_read"],
]


def test_native_frames_are_first_shown_where_a_c_function_or_no_ruby_code_runs(page: Browser) -> None:
    assert drawn(page) == INSIDE
    assert whole(page) == TOTAL


def test_native_frames_can_be_switched_off_and_all_on(page: Browser) -> None:
    page.click('input[value="off"]')
    assert drawn(page) == [
        ["all"],
        ["<main>", "[only hidden frames]"],
        ["App::Server#serve", "View#render"],
        ["Array#each", "Parser#parse"],
        ["Parser#parse"],
        ["IO#read"],
        ["vfs_read"],
    ]
    assert whole(page) == TOTAL
    page.click('input[value="all"]')
    assert drawn(page) == [
        ["all"],
        ["ruby_run_node"],
        ["rb_vm_exec", "ruby_init"],
        ["<main>"],
        ["App::Server#serve", "View#render"],
        ["rb_vm_exec", "Array#each", "Parser#parse"],
        ["rb_ary_each"],
        ["rb_vm_exec"],
        ["Parser#parse"],
        ["IO#read"],
        ["rb_io_read"],
        ["vfs_read"],
    ]
    assert whole(page) == TOTAL
    page.click('input[value="inside"]')
    assert drawn(page) == INSIDE


def test_a_click_zooms_and_back_forward_and_reset_work(page: Browser) -> None:
    click_frame(page, "View#render")
    assert drawn(page) == [["all"], ["<main>"], ["View#render"], ["Parser#parse"]]
    assert "zoom=" in page.evaluate("location.hash")
    assert page.text("#where") == "/app/server.rb:30"
    page.click("#back")
    page.until("flamegraph.zoomed === 0")
    assert drawn(page) == INSIDE
    page.click("#forward")
    page.until("flamegraph.zoomed > 0")
    assert drawn(page)[-1] == ["Parser#parse"]
    page.click("#reset")
    assert drawn(page) == INSIDE
    assert page.evaluate("document.getElementById('reset').disabled")


def test_a_click_on_a_caller_zooms_out_to_it(page: Browser) -> None:
    click_frame(page, "View#render")
    click_frame(page, "<main>")
    assert drawn(page)[1:3] == [["<main>"], ["App::Server#serve", "View#render"]]


def test_zoom_and_search_survive_a_reload(page: Browser) -> None:
    click_frame(page, "App::Server#serve")
    page.click("#search")
    page.type("parse")
    page.until("document.getElementById('matches').textContent")
    before = drawn(page), page.text("#matches")
    page.open(page.evaluate("location.href"))
    assert (drawn(page), page.text("#matches")) == before
    assert page.evaluate("document.getElementById('search').value") == "parse"


def test_the_zoomed_frame_stays_when_native_frames_come_and_go(page: Browser) -> None:
    click_frame(page, "IO#read")
    for mode in ("all", "off", "inside"):
        page.click(f'input[value="{mode}"]')
        assert page.evaluate("flamegraph.view.frame(flamegraph.zoomed).name") == "IO#read"


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("parse", "50.00% matched (50 samples, 1 name)"),
        ("PARSE", "50.00% matched (50 samples, 1 name)"),
        ("/^Array|render$/", "50.00% matched (50 samples, 2 names)"),
        ("io", "10.00% matched (10 samples, 2 names)"),  # IO#read, and rb_io_read inside it: counted once
        ("e", "100% matched (100 samples, 8 names)"),
        ("path:LIBRUBY", "20.00% matched (20 samples, 3 names)"),
        ("nowhere", "no frame matches"),
        ("/(/", "not a regular expression"),
    ],
)
def test_search_tells_the_share_of_what_matches(page: Browser, query: str, told: str) -> None:
    page.key("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.type(query)
    page.key("Enter")
    assert page.text("#matches").startswith(told)
    page.key("Escape")
    assert page.text("#matches") == ""
    assert page.evaluate("document.getElementById('search').value") == ""


def test_search_is_of_the_zoomed_part_and_narrows_the_table(page: Browser) -> None:
    click_frame(page, "App::Server#serve")
    page.key("/")
    page.type("parse")
    page.key("Enter")
    assert page.text("#matches") == "42.86% matched (30 samples, 1 name)"
    assert [row[2] for row in table(page)] == ["Parser#parse"]


def test_threads_can_be_looked_at_alone(page: Browser) -> None:
    options = page.evaluate("[...document.querySelectorAll('#thread option')].map((o) => o.textContent)")
    assert options == ["all", "worker 1 (1): 70.00%", "worker 2 (2): 30.00%"]
    choose(page, "#thread", "1/2")
    assert whole(page) == 30
    assert drawn(page)[1] == ["<main>"]
    assert "Chosen: 30 samples of 100 samples" in page.text("#warning")
    choose(page, "#thread", "")
    assert whole(page) == TOTAL


def test_a_part_of_the_time_can_be_chosen_by_dragging_and_by_typing(page: Browser) -> None:
    box = page.evaluate(
        "(() => { const b = document.getElementById('bars').getBoundingClientRect();"
        "return [b.x, b.y + b.height / 2, b.width]; })()"
    )
    page.mouse("mousePressed", box[0] + 0.41 * box[2], box[1])
    page.mouse("mouseMoved", box[0] + 0.7 * box[2], box[1], pressed=True)
    page.mouse("mouseReleased", box[0] + 0.99 * box[2], box[1])
    assert whole(page) == 30
    page.click("#whole")
    assert whole(page) == TOTAL
    choose(page, "#to", "3")
    assert whole(page) == 70
    choose(page, "#from", "1.5")
    assert whole(page) == 20
    assert "Parser#parse" in drawn(page)[-1]


def test_the_table_sorts_by_self_total_and_name(page: Browser) -> None:
    assert table(page)[0] == ["40.00%", "70.00%", "App::Server#serve"]
    assert table(page)[1] == ["40.00%", "50.00%", "Parser#parse"]
    page.click("#by-total")
    assert [row[2] for row in table(page)][:3] == ["<main>", "App::Server#serve", "Parser#parse"]
    assert page.evaluate("document.getElementById('by-total').parentNode.ariaSort") == "descending"
    page.click("#by-name")
    names = [row[2] for row in table(page)]
    assert names == sorted(names)
    own = sum(float(row[0].rstrip("%")) for row in table(page))
    assert own == pytest.approx(100)


def test_a_method_that_calls_itself_is_counted_once(silent: Browser, tmp_path: Path) -> None:
    frames = tuple(reversed([ruby("a"), ruby("b"), ruby("a"), ruby("a")]))
    show(silent, tmp_path, [Sample(START, 1, 1, "x", frames, weight=7)])
    assert table(silent) == [["100%", "100%", "a"], ["0.00%", "100%", "b"]]


def test_a_click_on_a_method_searches_for_exactly_it(page: Browser) -> None:
    page.evaluate(
        "[...document.querySelectorAll('#rows button')].find((b) => b.textContent === '<main>').click()"
    )
    assert page.evaluate("document.getElementById('matches').textContent").startswith("90.00% matched")
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('q')") == "/^<main>$/"


def test_kinds_are_switched_in_the_legend(page: Browser) -> None:
    kinds = page.evaluate("[...document.querySelectorAll('#legend button')].map((b) => b.textContent)")
    assert kinds == ["Ruby 80.00%", "C function 0.00%", "native 10.00%", "kernel 10.00%"]
    page.click('[data-kind="kernel"]')
    assert drawn(page) == INSIDE[:-1]
    assert page.evaluate("document.querySelector('[data-kind=kernel]').ariaPressed") == "false"
    page.click('[data-kind="cfunc"]')
    assert "Array#each" not in str(drawn(page))
    assert whole(page) == TOTAL
    page.click('[data-kind="cfunc"]')
    page.click('[data-kind="kernel"]')
    assert drawn(page) == INSIDE


def test_incomplete_stacks_stand_apart_and_can_be_left_out(silent: Browser, tmp_path: Path) -> None:
    cut = [Sample(START, 1, 1, "x", (PARSE,), False, reason, 5) for reason in ("no unwind row", "limit")]
    show(silent, tmp_path, [*samples(), *cut])
    assert drawn(silent)[1] == [
        "<main>",
        "ruby_run_node",
        "[incomplete: no unwind row]",
        "[truncated: limit]",
    ]
    assert "9.09% (10 samples)" in silent.text("#warning")
    silent.click('[data-kind="incomplete"]')
    assert drawn(silent) == INSIDE
    assert whole(silent) == TOTAL
    assert "left out" in silent.text("#warning")


def test_units_are_never_added_up(silent: Browser, tmp_path: Path) -> None:
    asleep = (Frame("native", "[waits for the GVL]"), native("rb_thread_wait"), SERVE)
    away = Sample(START, 1, 1, "x", asleep, weight=2_500_000_000, unit="ns", origin="off-cpu")
    show(silent, tmp_path, [*samples(), away])
    assert whole(silent) == TOTAL
    choose(silent, "#unit", "ns")
    assert whole(silent) == 2_500_000_000
    # What a thread waits for is no code: it is shown however native frames are.
    assert drawn(silent) == [["all"], ["App::Server#serve"], ["[waits for the GVL]"]]
    click_frame(silent, "[waits for the GVL]")
    assert "2.50 s, 100% of all" in silent.text("#status")


def test_processes_stay_apart_and_can_be_looked_at_alone(silent: Browser, tmp_path: Path) -> None:
    other = Sample(START, 7, 7, "sidekiq", (MAIN,), weight=50)
    show(silent, tmp_path, [*samples(), other])
    assert drawn(silent)[1] == ["worker 1 (1)", "sidekiq (7)"]
    choose(silent, "#thread", "7")
    assert drawn(silent) == [["all"], ["sidekiq (7)"], ["<main>"]]
    assert whole(silent) == 50


def test_lines_of_a_method_are_in_the_tip_and_can_be_told_apart(silent: Browser, tmp_path: Path) -> None:
    some = [Sample(START, 1, 1, "x", (ruby("a", line),), weight=weight) for line, weight in ((3, 1), (9, 3))]
    show(silent, tmp_path, some)
    silent.mouse("mouseMoved", *middle(silent, "a"))
    tip = silent.text("#tip")
    assert "/app/server.rb:9" in tip
    assert "lines 9 (75.00%), 3 (25.00%)" in tip
    assert "4 samples, 100% of all" in tip
    silent.click("#lines")
    assert drawn(silent) == [["all"], ["a", "a"]]
    click_frame(silent, "a")
    assert silent.text("#where") == "/app/server.rb:9"


def test_path_and_line_are_copied(page: Browser) -> None:
    page.send("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    click_frame(page, "View#render")
    page.click("#copy")
    page.until("document.getElementById('copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "/app/server.rb:30"


def test_the_graph_is_walked_and_zoomed_with_keys(page: Browser) -> None:
    page.evaluate("document.getElementById('graph').focus()")
    page.key("ArrowDown")
    assert page.text("#status").startswith("all ")
    page.key("ArrowDown")
    assert page.text("#status").startswith("<main> ")
    page.key("ArrowRight")
    assert page.text("#status").startswith("ruby_run_node ")
    page.key("ArrowLeft")
    page.key("ArrowDown")
    page.key("ArrowRight")
    assert page.text("#status").startswith("View#render ")
    page.key("Enter")
    assert page.evaluate("flamegraph.view.frame(flamegraph.zoomed).name") == "View#render"
    page.key("ArrowUp")
    assert page.text("#status").startswith("<main> ")
    page.key("Escape")
    assert drawn(page) == INSIDE
    page.key("n")
    assert page.evaluate("document.querySelector('[name=native]:checked').value") == "all"
    page.key("f")
    assert page.text("#flip") == "Root at the top"
    top, bottom = middle(page, "vfs_read")[1], middle(page, "all")[1]
    assert top < bottom


def test_help_opens_and_closes(page: Browser) -> None:
    page.key("?")
    assert page.evaluate("document.getElementById('help').open")
    page.key("Escape")
    page.until("!document.getElementById('help').open")


def test_focus_can_be_seen_on_everything_that_can_have_it(page: Browser) -> None:
    page.key("/")
    page.key("Escape")
    unseen = page.evaluate(
        "[...document.querySelectorAll('button, input, select, #graph, #scroll')].filter((e) => {"
        "if (e.disabled || !e.checkVisibility()) return false;"
        "e.focus({focusVisible: true});"
        "return getComputedStyle(e).outlineStyle !== 'solid'; }).map((e) => e.outerHTML)"
    )
    assert unseen == []


def colours_of(png: bytes) -> list[tuple[int, ...]]:
    """The pixels of a picture, row after row; filters of PNG undone by hand to need no library."""
    width, height = struct.unpack(">II", png[16:24])
    channels = {2: 3, 6: 4}[png[25]]
    packed, at = b"", 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + size]
        at += size + 12
    raw, stride = zlib.decompress(packed), width * channels
    before = bytearray(stride)
    pixels: list[tuple[int, ...]] = []
    for row in range(height):
        line = bytearray(raw[row * (stride + 1) + 1 : (row + 1) * (stride + 1)])
        kind = raw[row * (stride + 1)]
        for x in range(stride):
            a = line[x - channels] if x >= channels else 0
            b, c = before[x], before[x - channels] if x >= channels else 0
            nearest = min((a, b, c), key=lambda value, p=a + b - c: abs(p - value))
            line[x] = (line[x] + (0, a, b, (a + b) // 2, nearest)[kind]) & 255
        before = line
        pixels += [tuple(line[x : x + 3]) for x in range(0, stride, channels)]
    return pixels


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_reader(silent: Browser, tmp_path: Path, scheme: str) -> None:
    silent.media(scheme=scheme)
    silent.size(700, 400)
    show(silent, tmp_path, list(samples()))
    ground = {"light": (255, 255, 255), "dark": (0x17, 0x17, 0x1A)}
    other = {"light": "dark", "dark": "light"}[scheme]
    pixels = colours_of(silent.screenshot())
    assert max(set(pixels), key=pixels.count) == ground[scheme]
    silent.click("#theme")
    pixels = colours_of(silent.screenshot())
    assert max(set(pixels), key=pixels.count) == ground[other]
    silent.click("#theme")
    silent.evaluate("localStorage.clear()")


def test_frames_have_the_colours_of_the_legend(page: Browser) -> None:
    pixels = colours_of(page.screenshot())
    for kind, name in (("ruby", "View#render"), ("cfunc", "Array#each"), ("native", "ruby_init")):
        x, y = middle(page, name)
        frame = pixels[int(y - 8) * 1400 + int(x)]
        swatch = page.evaluate(
            "(() => { const b = document.querySelector"
            f"('[data-kind={kind}] .swatch').getBoundingClientRect(); return [b.x + 5, b.y + 5]; }})()"
        )
        legend = pixels[int(swatch[1]) * 1400 + int(swatch[0])]
        assert all(abs(a - b) < 25 for a, b in zip(frame, legend, strict=True)), (kind, frame, legend)


def test_the_printed_page_has_graph_and_table_in_light_colours(silent: Browser, tmp_path: Path) -> None:
    silent.media(scheme="dark")
    show(silent, tmp_path, list(samples()))
    silent.evaluate("dispatchEvent(new Event('beforeprint'))")
    silent.media(scheme="dark", kind="print")
    seen: Any = silent.evaluate(
        "[document.documentElement.dataset.theme, "
        "...['canvas', 'rows', 'totals', 'legend', 'search', 'theme', 'time']"
        ".map((id) => document.getElementById(id).checkVisibility())]"
    )
    assert seen == ["light", True, True, True, True, False, False, False]
    silent.media(scheme="dark")
    silent.evaluate("dispatchEvent(new Event('afterprint'))")
    assert silent.evaluate("document.documentElement.dataset.theme") == "dark"


def test_totals_and_losses_are_in_plain_sight(silent: Browser, tmp_path: Path) -> None:
    totals = Totals(1234, 5, 6, (("no unwind row", 7), ("<b>&\u202e", 8)))
    show(silent, tmp_path, list(samples()), totals)
    assert silent.text("#totals") == (
        "read 1,234 · lost 5 · truncated 6 · incomplete or not sent: no unwind row 7, <b>&\\u202e 8"
    )
    assert (
        silent.evaluate("getComputedStyle(document.querySelector('#totals .bad')).color")
        == "rgb(154, 28, 28)"
    )


def test_a_profile_without_samples_says_so(silent: Browser, tmp_path: Path) -> None:
    show(silent, tmp_path, [], Totals(lost=3))
    assert silent.evaluate("document.getElementById('empty').checkVisibility()")
    assert not silent.evaluate("document.getElementById('main').checkVisibility()")
    assert "lost 3" in silent.text("#totals")


def test_hostile_names_stay_text_and_are_shown_escaped(silent: Browser, tmp_path: Path) -> None:
    def stack(name: str) -> tuple[Frame, ...]:
        return (Frame("native", name, module=name), Frame("cfunc", name, path=name, line=1), ruby(name))

    some = [
        Sample(START + number * SECOND, number, number, name, stack(name), number % 2 == 0, name)
        for number, name in enumerate(HOSTILE_NAMES, 1)
    ]
    totals = Totals(1, failed=tuple((name, 1) for name in HOSTILE_NAMES))
    show(silent, tmp_path, some, totals, HOSTILE_NAMES[0])
    count = "document.querySelectorAll('script, img, b').length"
    scripts = silent.evaluate(count) - silent.evaluate("document.querySelectorAll('#totals b').length")
    assert scripts == 16  # the data and our own
    for row in drawn(silent):
        for name in row:
            assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", name)
    shown = silent.text("body")
    assert "safe\\u202egnp.exe\\u202c\\u2066\\u200b" in shown
    assert "<img src=x onerror=" in shown
    for name in HOSTILE_NAMES:
        silent.evaluate(f"flamegraph.set({{q: {json.dumps(name)}}})")
        if name.strip():
            assert "matched" in silent.text("#matches"), name
    silent.mouse("mouseMoved", *middle(silent, "all"))
    assert silent.evaluate("document.querySelectorAll('img').length") == 0


def test_a_stack_of_thousands_of_frames_can_be_scrolled_and_zoomed(silent: Browser, tmp_path: Path) -> None:
    frames = tuple(ruby(f"f{number}") for number in range(5000, 0, -1))
    show(silent, tmp_path, [Sample(START, 1, 1, "x", frames)])
    assert len(drawn(silent)) == 5001
    silent.evaluate("document.getElementById('graph').scrollTop = 1e9")
    silent.until("document.getElementById('graph').scrollTop > 80000")
    click_frame(silent, "f5000")
    assert silent.evaluate("flamegraph.view.frame(flamegraph.zoomed).name") == "f5000"
    assert silent.text("#where") == "/app/server.rb:1"


def test_what_does_not_fit_the_profile_in_an_address_is_left_out(page: Browser) -> None:
    address = page.evaluate("location.href")
    page.open(
        address + "#zoom=99999.x.-1&native=some&unit=none&from=x&to=-5&thread=%22%5D&hide=a,,b&q=/(/&who=1"
    )
    assert page.evaluate("flamegraph.choices.state.native") == "inside"
    assert page.text("#matches").startswith("not a regular expression")
    assert whole(page) == 0
    page.open(address + "#zoom=99999.x.-1")
    assert drawn(page) == INSIDE


def test_a_page_of_twenty_thousand_stacks_is_small_and_shows_all_of_them(
    silent: Browser, tmp_path: Path
) -> None:
    some = large_profile(20_000, 120_000, START)
    assert len(some.stacks) == 20_000
    show(silent, tmp_path, some)
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    assert whole(silent) == 120_000
    assert silent.evaluate("flamegraph.profile.time.slices") > 500
    silent.click('input[value="all"]')
    assert whole(silent) == 120_000
    choose(silent, "#to", "300")
    assert whole(silent) == 60_000
