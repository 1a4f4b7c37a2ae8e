# SPDX-License-Identifier: Apache-2.0
"""What the programs that people open our files with make of them."""

from __future__ import annotations

import base64
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foreign.conftest import FOREIGN
from foreign.made import META, SAMPLES, TOTALS, self_weights, total, total_weights
from rubyunwind.formats import FORMATS, write
from rubyunwind.formats.folded import escape_name
from rubyunwind.formats.names import printable
from rubyunwind.profiler.sample import Totals

Tool = Callable[[str], str]
Run = Callable[..., str]


def made(folder: Path, format_: str) -> Path:
    path = folder / f"made{FORMATS[format_].suffix}"
    write(path, format_, SAMPLES, TOTALS, META)
    return path


def empty(folder: Path, format_: str) -> Path:
    path = folder / f"empty{FORMATS[format_].suffix}"
    write(path, format_, [], Totals(lost=3), META)
    return path


# ---- folded: flamegraph.pl, inferno ----------------------------------------------------------------------


@pytest.mark.parametrize("program", ["flamegraph.pl", "inferno-flamegraph"])
def test_a_flame_graph_of_folded_stacks_has_every_frame(
    tool: Tool, run: Run, tmp_path: Path, program: str
) -> None:
    words = [tool(program), "--minwidth", "0"]
    svg = ElementTree.fromstring(run(*words, stdin=made(tmp_path, "folded").read_bytes()))
    titles = [element.text or "" for element in svg.iter() if element.tag.endswith("title")]
    shown: Counter[str] = Counter()
    for title in titles:
        found = re.fullmatch(r"(.*) \(([\d,]+) samples, [\d.]+%\)", title)
        if found:
            shown[found[1]] += int(found[2].replace(",", ""))
    assert shown.pop("all") == total()
    assert shown["[truncated: limit]"] == sum(sample.weight for sample in SAMPLES if not sample.complete)
    for raw, weight in total_weights().items():
        # flamegraph.pl itself turns angle brackets into round ones, and leaves out the kernel's suffix.
        name = escape_name(raw)
        if program == "flamegraph.pl":
            name = name.translate(str.maketrans("<>", "()"))
        assert shown[name] + shown[f"{name}_[k]"] == weight, name


# ---- pprof: go tool pprof --------------------------------------------------------------------------------


def test_pprof_lists_every_function_with_its_weights(tool: Tool, run: Run, tmp_path: Path) -> None:
    path = made(tmp_path, "pprof")
    top = run(
        tool("go"), "tool", "pprof", "-symbolize=none", "-top", "-nodefraction=0", "-nodecount=1000",
        "-sample_index=samples", path,
    )  # fmt: skip
    assert "File: ruby3.1" in top
    assert f"Total samples = {total()}" in top
    assert "Time: 2023-11-14" in top
    rows = re.findall(r"^ *(\d+) +[\d.]+% +[\d.]+% +(\d+) +[\d.]+%  (.*)$", top, re.MULTILINE)
    shown = {name: (int(flat), int(below)) for flat, below, name in rows}
    own, below = self_weights(), total_weights()
    # pprof ends a name at an argument list, and drops template arguments.
    for name in (
        "vfs_read",
        "read",
        "IO#read",
        "Foo#bar0",
        "gc: marking",
        "main",
        "a;b",
        "a\nb\r\nc",
        "a\0b",
    ):
        assert shown[printable(name)] == (own[name], below[name]), name
    assert sum(flat for flat, _ in shown.values()) == total()


def test_pprof_keeps_threads_and_says_what_was_lost(tool: Tool, run: Run, tmp_path: Path) -> None:
    raw = run(tool("go"), "tool", "pprof", "-symbolize=none", "-raw", made(tmp_path, "pprof"))
    assert "Comment: incomplete or unsent, by reason: no unwind row 7" in raw
    assert "PeriodType: cpu nanoseconds\nPeriod: 10000000\n" in raw
    assert "samples/count cpu/nanoseconds[dflt]\n" in raw
    tags = run(
        tool("go"),
        "tool",
        "pprof",
        "-symbolize=none",
        "-tags",
        "-sample_index=samples",
        made(tmp_path, "pprof"),
    )
    for tid in (70, 71, 80):
        weight = sum(sample.weight for sample in SAMPLES if sample.tid == tid)
        assert re.search(rf"^ +{weight} \( *[\d.]+%\): {tid}$", tags, re.MULTILINE)


def test_pprof_takes_an_empty_profile(tool: Tool, run: Run, tmp_path: Path) -> None:
    raw = run(tool("go"), "tool", "pprof", "-symbolize=none", "-raw", empty(tmp_path, "pprof"))
    assert "Comment: no samples\nComment: samples: 0 read, 0 truncated, 3 lost\n" in raw


# ---- callgrind: callgrind_annotate -----------------------------------------------------------------------


def annotated(text: str) -> dict[str, int]:
    """Costs by `file:function [object]`."""
    rows = re.findall(r"^ *([\d,]+) \( *[\d.]+%\)  (.+)$", text, re.MULTILINE)
    return {name: int(cost.replace(",", "")) for cost, name in rows}


def test_callgrind_annotate_lists_what_each_function_cost(tool: Tool, run: Run, tmp_path: Path) -> None:
    path = made(tmp_path, "callgrind")
    words = (tool("callgrind_annotate"), "--threshold=100", "--auto=no")
    shown = annotated(run(*words, path))
    assert shown.pop("PROGRAM TOTALS") == total()
    assert sum(shown.values()) == total()
    own = self_weights()
    assert shown["???:vfs_read [[kernel]]"] == own["vfs_read"]
    for name in own:
        assert [row for row in shown if f":{printable(name)} [" in row], name
    below = annotated(run(*words, "--inclusive=yes", path))
    assert below["/app.rb:IO#read [[cfunc]]"] == total_weights()["IO#read"]
    assert below["???:main [/usr/bin/ruby3.1]"] == total_weights()["main"]
    for pid, comm in ((70, "puma"), (71, "ruby")):
        weight = sum(sample.weight for sample in SAMPLES if sample.pid == pid)
        assert below[f"???:{comm} ({pid}) [[process]]"] == weight


def test_callgrind_annotate_takes_an_empty_profile(tool: Tool, run: Run, tmp_path: Path) -> None:
    text = run(tool("callgrind_annotate"), empty(tmp_path, "callgrind"))
    assert "no samples\nsamples: 0 read, 0 truncated, 3 lost\n" in text


# ---- speedscope: its own page in Chromium ----------------------------------------------------------------


def speedscope_page(tool: Tool, run: Run, folder: Path, profile: bytes) -> str:
    """Load a profile as `speedscope FILE` does, and return what the page then is."""
    index = FOREIGN / "node_modules/speedscope/dist/release/index.html"
    if not index.exists():
        pytest.skip("the npm package speedscope is not on this machine (make foreign gets it)")
    script = folder / "profile.js"
    data = base64.b64encode(profile).decode()
    script.write_text(f"speedscope.loadFileFromBase64('profile.json', '{data}')")
    return run(
        tool("chromium"), "--headless", "--no-sandbox", "--allow-file-access-from-files",
        "--enable-unsafe-swiftshader", f"--user-data-dir={folder / 'chromium'}", "--window-size=1200,1400",
        "--virtual-time-budget=10000", "--dump-dom", f"file://{index}#localProfilePath={script}&view=sandwich",
    )  # fmt: skip


def sandwich(page: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Total and self weight by file and name, of the table that the page shows."""
    number = r"<td[^>]*>([\d,]+) \([^)]*%\)<div.*?</div></div></td>"
    rows = re.findall(rf'{number}{number}<td title="([^"]*)"[^>]*>(.*?)</td></tr>', page)
    found = {}
    for below, own, file, name in rows:
        key = html.unescape(file), html.unescape(re.sub("<[^>]*>", "", name))
        assert key not in found
        found[key] = int(below.replace(",", "")), int(own.replace(",", ""))
    return found


@pytest.mark.parametrize("tid", [70, 80, 71])
def test_speedscopes_page_shows_every_function_of_a_thread(
    tool: Tool, run: Run, tmp_path: Path, tid: int
) -> None:
    file = json.loads(made(tmp_path, "speedscope").read_bytes())
    [at] = [at for at, profile in enumerate(file["profiles"]) if profile["name"].endswith(f"({tid})")]
    file["activeProfileIndex"] = at
    page = speedscope_page(tool, run, tmp_path, json.dumps(file).encode())
    shown = sandwich(page)
    own, below = self_weights(tid=tid), total_weights(tid=tid)
    assert sum(weight for _, weight in shown.values()) == sum(own.values())
    named = {name: weights for (_, name), weights in shown.items()}
    assert {printable(name): (below[name], own[name]) for name in below} == {
        name: weights for name, weights in named.items() if name != "[truncated: limit]"
    }
    assert ("[kernel]", "vfs_read") in shown
    assert ("/lib/libc.so.6", "read") in shown
    assert ("/app.rb", "IO#read") in shown


def test_speedscopes_page_takes_an_empty_profile(tool: Tool, run: Run, tmp_path: Path) -> None:
    page = speedscope_page(tool, run, tmp_path, empty(tmp_path, "speedscope").read_bytes())
    assert "No symbols found." in page
    assert "</div>no samples<div" in page
    assert "no samples; samples: 0 read, 0 truncated, 3 lost - speedscope</title>" in page


# ---- Firefox: the command line client of its profiler ------------------------------------------------------


@pytest.fixture
def firefox(tool: Tool, run: Run) -> Callable[[Path], Callable[..., object]]:
    program = tool("profiler-cli")

    def load(path: Path) -> Callable[..., object]:
        run(program, "load", path)

        def ask(*words: str) -> object:
            return json.loads(run(program, *words, "--json"))

        return ask

    return load


@pytest.fixture
def _no_daemon(tool: Tool, run: Run) -> object:
    """The client loads a profile into a process that stays."""
    yield
    run(tool("profiler-cli"), "stop", "--all")


@pytest.mark.usefixtures("_no_daemon")
def test_the_firefox_profiler_shows_every_function_of_a_thread(
    firefox: Callable[[Path], Callable[..., object]], tmp_path: Path
) -> None:
    ask = firefox(made(tmp_path, "firefox"))
    threads = ask("thread", "list")["threads"]  # type: ignore[index]
    assert sorted((each["tid"], str(each["pid"])) for each in threads) == [(70, "70"), (71, "71"), (80, "70")]
    for thread in threads:
        listed = ask("thread", "functions", "--thread", thread["threadHandle"])
        shown = {}
        for function in listed["functions"]:  # type: ignore[index]
            name = function["nameWithLibrary"].rpartition("!")[2]
            shown[name] = (function["totalSamples"], function["selfSamples"])
        own, below = self_weights(tid=thread["tid"]), total_weights(tid=thread["tid"])
        marked = shown.pop("[truncated: limit]", None)
        assert shown == {printable(name): (below[name], own[name]) for name in below}
        cut = [sample.weight for sample in SAMPLES if sample.tid == thread["tid"] and not sample.complete]
        assert marked == ((sum(cut), 0) if cut else None)


@pytest.mark.usefixtures("_no_daemon")
def test_the_firefox_profiler_takes_an_empty_profile(
    firefox: Callable[[Path], Callable[..., object]], tmp_path: Path
) -> None:
    ask = firefox(empty(tmp_path, "firefox"))
    assert [thread["name"] for thread in ask("thread", "list")["threads"]] == ["no samples"]  # type: ignore[index]
    assert ask("thread", "functions")["functions"] == []  # type: ignore[index]
