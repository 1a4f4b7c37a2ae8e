# SPDX-License-Identifier: Apache-2.0
"""The fields of the Firefox profiler's processed profile format, held against its published types."""

from __future__ import annotations

from typing import Any

import pytest
from format_readers import read_firefox, unescape, written
from profile_strategies import HOSTILE_NAMES

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

STARTED = 1_700_000_000_123_456_789
META = Meta("a title", "ruby a.rb", STARTED, 2.5, 100.0, ("ruby 3.1.2",))
A = Frame("ruby", "a", path="/a.rb", line=1)
ALL_KINDS = (
    Frame("kernel", "vfs_read"),
    Frame("native", "read", module="/lib/libc.so.6", offset=0x1234),
    Frame("gc", "[gc: marking]"),
    Frame("jit", "[jit]"),
    Frame("unknown", "[unknown]"),
    Frame("error", "[error]"),
    Frame("cfunc", "IO#read", path="/a.rb", line=1),
    A,
)

# What has to be there, from src/types/profile.ts of the profiler at format version 70. A name that ends in ?
# is optional there; we write no field that is not named here.
FIELDS = {
    "profile": "meta libs shared threads",
    "meta": (
        "interval startTime profilingStartTime? profilingEndTime? processType categories? product stackwalk "
        "version preprocessedProfileVersion arguments? platform? oscpu? symbolicated? markerSchema "
        "sampleUnits? importedFrom? usesOnlyOneStackType? sourceCodeIsNotOnSearchfox? extra?"
    ),
    "shared": (
        "stackTable frameTable funcTable resourceTable nativeSymbols stringArray sources sourceLocationTable"
    ),
    "stackTable": "frame prefixOffset length",
    "frameTable": (
        "address lib inlineDepth category subcategory func nativeSymbol innerWindowID line column "
        "originalLocation length"
    ),
    "funcTable": ("name isJS relevantForJS resource source lineNumber columnNumber originalLocation length"),
    "resourceTable": "length name host type",
    "nativeSymbols": "libIndex address name functionSize length",
    "sources": "length id filename startLine startColumn sourceMapURL content",
    "sourceLocationTable": "source line column length",
    "library": "arch name path debugName debugPath breakpadId codeId",
    "thread": (
        "processType processStartupTime processShutdownTime registerTime unregisterTime pausedRanges name "
        "isMainThread processName? pid tid samples markers"
    ),
    "samples": "stack time weight weightType length",
    "markers": "data name startTime endTime phase category length",
    "category": "name color subcategories",
}
COLOURS = (
    "transparent", "purple", "green", "orange", "yellow", "lightblue", "blue", "brown", "magenta", "red",
    "lightred", "darkgrey", "grey",
)  # fmt: skip


def check_fields(kind: str, value: dict[str, Any]) -> None:
    known = FIELDS[kind].split()
    assert {name for name in known if not name.endswith("?")} <= set(value), kind
    assert set(value) <= {name.rstrip("?") for name in known}, kind


def firefox(*samples: Sample, totals: Totals | None = None, meta: Meta = META) -> dict[str, Any]:
    return read_firefox(written("firefox", samples, totals, meta))[1]


@pytest.mark.parametrize("samples", [[], [Sample(STARTED, 1, 1, "ruby", ALL_KINDS, False, "limit")]])
def test_every_field_is_one_the_format_has_and_none_is_missing(samples: list[Sample]) -> None:
    file = firefox(*samples)
    check_fields("profile", file)
    check_fields("meta", file["meta"])
    check_fields("shared", file["shared"])
    for name, table in file["shared"].items():
        if name != "stringArray":
            check_fields(name, table)
    for library in file["libs"]:
        check_fields("library", library)
    for category in file["meta"]["categories"]:
        check_fields("category", category)
        assert category["color"] in COLOURS
        assert category["subcategories"][0] == "Other"
    for thread in file["threads"]:
        check_fields("thread", thread)
        check_fields("samples", thread["samples"])
        check_fields("markers", thread["markers"])
        assert isinstance(thread["pid"], str)
    assert file["threads"]
    assert [category["name"] for category in file["meta"]["categories"] if category["color"] == "grey"] == [
        "Other"
    ]
    assert file["meta"]["preprocessedProfileVersion"] == 70


def test_times_are_milliseconds_since_the_start_to_the_nanosecond() -> None:
    later = Sample(STARTED + 1_500_000, 1, 1, "ruby", (A,))
    file = firefox(later, Sample(STARTED, 1, 1, "ruby", (A,)))
    assert file["meta"]["startTime"] == STARTED // 1_000_000
    assert file["threads"][0]["samples"]["time"] == [0.456789, 1.956789]
    assert file["meta"]["interval"] == 10
    assert file["meta"]["profilingEndTime"] == 2500


def test_no_time_is_negative_when_a_sample_came_before_the_start() -> None:
    file = firefox(Sample(STARTED - 10**9, 1, 1, "ruby", (A,)))
    assert file["threads"][0]["samples"]["time"] == [0.456789]


def test_threads_have_their_names_and_ids() -> None:
    file = firefox(
        Sample(STARTED, 7, 7, "puma", (A,)),
        Sample(STARTED, 7, 9, "worker 1", (A,)),
        Sample(STARTED, 7, 9, "worker 1", (A,), unit="ns", weight=2_500_000),
    )
    names = ("name", "processName", "pid", "tid", "isMainThread")
    assert [tuple(thread[name] for name in names) for thread in file["threads"]] == [
        ("puma", "puma", "7", 7, True),
        ("worker 1", "puma", "7", 9, False),
        ("worker 1", "puma", "7", "9 ns", False),
    ]
    off_cpu = file["threads"][2]["samples"]
    assert (off_cpu["weight"], off_cpu["weightType"]) == ([2.5], "tracing-ms")


def test_an_empty_profile_has_a_thread_that_says_so() -> None:
    file = firefox(totals=Totals(lost=3))
    assert [(thread["name"], thread["samples"]["length"]) for thread in file["threads"]] == [
        ("no samples", 0)
    ]
    said = [entry["value"] for entry in file["meta"]["extra"][0]["entries"]]
    assert said[-2:] == ["no samples", "samples: 0 read, 0 truncated, 3 lost"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_can_be_read_back(name: str) -> None:
    frames = (Frame("ruby", name, path=name, line=1), Frame("native", name, module=name))
    stacks, file = read_firefox(written("firefox", [Sample(1, 1, 1, name, frames)], meta=Meta(name, name)))
    [key] = stacks
    assert [shown.name for shown in key.stack] == [name, name]
    assert unescape(file["threads"][0]["name"]) == name
