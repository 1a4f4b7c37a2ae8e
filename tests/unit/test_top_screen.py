# SPDX-License-Identifier: Apache-2.0
"""The screen that is drawn: it fits, it is harmless, and its numbers are the table's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_strategies import HOSTILE_NAMES, names, profiles

from rubyunwind.cli.live.cells import cells
from rubyunwind.cli.live.counts import Counts, Thread
from rubyunwind.cli.live.screen import Size, page_rows, render, table_lines
from rubyunwind.cli.live.state import HELP, State, View
from rubyunwind.cli.live.status import Status
from rubyunwind.cli.live.table import Table, make_table
from rubyunwind.profiler.sample import Frame, Sample, Totals

HOSTILE = (
    *HOSTILE_NAMES,
    "\x1b[2J\x1b]0;owned\x07",
    "\x9b31m",
    "\u202egnirts\u2066",
    "e" + "\u0301" * 300,
    "zero\u200bwidth\ufeff",
    "名" * 200,
)
FRAMES = (Frame("ruby", "Work#run", "run", "/app/work.rb", 3), Frame("ruby", "<main>", path="/app/app.rb"))

sizes = st.builds(Size, st.integers(1, 200), st.integers(1, 60))
states = st.builds(
    State,
    view=st.sampled_from(["methods", "threads", "processes"]),
    sort=st.sampled_from(["self", "total"]),
    since_start=st.booleans(),
    native=st.booleans(),
    paused=st.booleans(),
    filter=st.one_of(st.just(""), names),
    typing=st.booleans(),
    help=st.booleans(),
    scope=st.one_of(st.none(), st.just(Thread(1, 1)), st.just(Thread(1))),
)
statuses = st.builds(
    Status,
    target=names,
    runtimes=st.lists(names, max_size=2).map(tuple),
    seconds=st.floats(0, 1e6),
    totals=st.builds(Totals, st.integers(0, 10**9), failed=st.lists(st.tuples(names, st.just(3))).map(tuple)),
    notes=st.lists(names, max_size=3).map(tuple),
)


def counted(*samples: Sample) -> Counts:
    counts = Counts()
    counts.add(samples)
    counts.close(2.0)
    return counts


def one(*frames: Frame, tid: int = 1, weight: int = 1, comm: str = "ruby") -> Sample:
    return Sample(1, 1, tid, comm, frames, weight=weight)


@given(profiles, states, statuses, sizes)
def test_every_screen_fits_and_has_no_control_character(
    samples: list[Sample], state: State, status: Status, size: Size
) -> None:
    lines = render(make_table(counted(*samples), state), state, status, size)
    assert len(lines) == size.lines
    for line in lines:
        assert cells(line.text) <= size.columns
        assert line.text.isprintable()


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("view", ["methods", "threads", "processes"])
def test_hostile_names_stay_in_their_column(name: str, columns: int, view: View) -> None:
    frames = (Frame("ruby", name, name, name, 1), Frame("native", name, module=name))
    state = State(view=view, native=True)
    table = make_table(counted(one(*frames, comm=name)), state)
    status = Status(target=name, runtimes=(name,), notes=(name,))
    for line in render(table, state, status, Size(columns, 24)):
        assert line.text.isprintable()
        assert cells(line.text) <= columns


def shown(table: Table, state: State = State(), status: Status = Status(), size: Size = Size(80, 24)) -> str:  # noqa: B008
    return "\n".join(line.text.rstrip() for line in render(table, state, status, size))


def test_a_screen_of_80_by_24() -> None:
    counts = counted(one(*FRAMES, weight=3), one(FRAMES[1], weight=1))
    status = Status(
        target="pid 7", runtimes=("ruby 3.1.2",), backend="bpf", seconds=3725, incomplete=1,
        totals=Totals(read=4, lost=2, failed=(("unmapped pc", 1),)),
    )  # fmt: skip
    lines = shown(make_table(counts, State()), State(), status).split("\n")
    assert lines[:6] == [
        "rubyunwind top: pid 7 (ruby 3.1.2), 99 Hz, bpf",
        "4 samples in 1:02:05, now 2.0/s; 2 lost, 1 incomplete (unmapped pc 1)",
        "  now 2 s, %   all 0:00:02, %        methods, by self now",
        "  self total   self total samples    method                     where",
        "  75.0  75.0   75.0  75.0       3  R Work#run                   /app/work.rb:3",
        "  25.0 100.0   25.0 100.0       4  R <main>                     /app/app.rb",
    ]
    assert lines[6:23] == [""] * 17
    assert lines[23].startswith("q quit")


def test_the_help_has_room_on_80_by_24() -> None:
    text = shown(Table(), State(help=True), Status(notes=("a note",)))
    assert "…" not in text
    for keys, meaning in HELP:
        assert f"  {keys:13} {meaning}" in text.split("\n")
    assert "! error" in text


def test_the_page_of_documentation_names_the_same_keys() -> None:
    page = Path(__file__).parents[2] / "docs/top.md"
    if not page.exists():
        pytest.skip(f"no source tree here: {page} does not exist")
    rows = re.findall(r"^\| (.+?) +\| (.+?) +\|$", page.read_text(), re.MULTILINE)
    assert set(HELP) <= {(keys.replace("`", ""), meaning) for keys, meaning in rows}


def test_narrow_screens_drop_columns_and_keep_names() -> None:
    table = make_table(counted(one(*FRAMES)), State())
    assert "/app/work.rb:3" in shown(table, size=Size(80, 24))
    assert "samples" in shown(table, size=Size(60, 24))
    for columns in (20, 30, 45, 60):
        text = shown(table, size=Size(columns, 24))
        assert "Work#run" in text
        assert "/app" not in text
    assert "total" in shown(table, size=Size(40, 24))
    assert "total" not in shown(table, size=Size(25, 24))


def test_long_names_keep_what_says_most() -> None:
    frame = Frame("ruby", "Very::Long::Module::Path#method_name", path=f"/{'deep/' * 20}file.rb", line=1234)
    native = Frame("native", "function(of, many, types, and, arguments)", module="/lib/libc.so.6")
    text = shown(make_table(counted(one(frame, native)), State(native=True)))
    assert "function(of, many, types…" in text
    assert "p/file.rb:1234" in text
    assert "…Module::Path#method_name" in text


def test_threads_have_their_share_of_a_cpu() -> None:
    counts = counted(one(*FRAMES, tid=1, weight=198), one(FRAMES[1], tid=2, weight=99))
    text = shown(make_table(counts, State(view="threads")), State(view="threads"))
    first, second = text.split("\n")[4:6]
    assert first.split() == ["100.0", "66.7", "100.0", "66.7", "198", "1", "ruby", "Work#run"]
    assert second.split() == ["50.0", "33.3", "50.0", "33.3", "99", "2", "ruby", "<main>"]


def test_what_is_shown_is_said() -> None:
    table = make_table(counted(one(*FRAMES)), State(filter="main"))
    state = State(paused=True, filter="main", native=True, since_start=True, sort="total", scope=Thread(1, 2))
    text = shown(table, state, size=Size(140, 24))
    assert text.startswith("PAUSED")
    assert "methods of thread 2, by total of all, with native, 1 of 2 match 'main'" in text
    assert "/main_" in shown(table, State(filter="main", typing=True))
    assert "no row matches" in shown(make_table(counted(one(*FRAMES)), State(filter="zzz")))
    assert "no samples yet" in shown(Table())
    assert "note: deaf (and 1 more)" in shown(table, status=Status(notes=("deaf", "blind")))
    assert "G garbage collection" in shown(table, State(help=True))


def test_a_selected_row_is_on_the_screen_wherever_it_is() -> None:
    frames = [Frame("ruby", f"method_{n:03}", path="/a.rb", line=n) for n in range(100)]
    table = make_table(counted(*[one(frame, weight=1000 - n) for n, frame in enumerate(frames)]), State())
    for height in (8, 24, 50):
        size = Size(80, height)
        assert page_rows(Status(), size) == height - 5
        for number in (0, 17, 18, 19, 55, 99):
            state = State(selected=table.rows[number].key)
            (selected,) = [line for line in render(table, state, Status(), size) if line.style == "selected"]
            assert f"method_{number:03}" in selected.text
            assert cells(selected.text) == 80


def test_without_a_width_nothing_is_cut() -> None:
    frame = Frame("ruby", "name" * 50, path="/path" * 50, line=7)
    table = make_table(counted(one(frame), one(*FRAMES)), State())
    text = "\n".join(line.text for line in table_lines(table, State(), Status(), None, 0, 10))
    assert "name" * 50 in text
    assert "/path" * 50 + ":7" in text
