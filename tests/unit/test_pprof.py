# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip

import pytest
from format_readers import fields_of, read_pprof, written
from profile_strategies import HOSTILE_NAMES

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

STARTED = 1_700_000_000_000_000_000
META = Meta("a title", "ruby a.rb", STARTED, 2.5, 99.0, ("ruby 3.1.2",))
FRAMES = (
    Frame("native", "read", module="/lib/libc.so.6", offset=0x1234),
    Frame("cfunc", "IO#read", path="/app.rb", line=3),
    Frame("ruby", "Foo#bar", path="/app.rb", line=3),
)


def test_time_duration_and_period_are_those_of_the_recording() -> None:
    read = read_pprof(written("pprof", [Sample(STARTED + 5, 1, 1, "ruby", FRAMES)], meta=META))
    assert (read.time, read.duration) == (STARTED, 2_500_000_000)
    assert read.period == (("cpu", "nanoseconds"), 10_101_010)


def test_samples_are_counted_and_have_their_cpu_time() -> None:
    read = read_pprof(written("pprof", [Sample(STARTED, 1, 1, "ruby", FRAMES, weight=3)], meta=META))
    assert read.types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert read.values == {"samples": 3, "cpu": 3 * 10_101_010}
    assert read.default == "cpu"


def test_without_a_rate_there_is_no_cpu_time() -> None:
    read = read_pprof(written("pprof", [Sample(STARTED, 1, 1, "ruby", FRAMES)]))
    assert (read.types, read.default, read.period) == ([("samples", "count")], "samples", None)


def test_time_off_the_cpu_has_a_column_of_its_own() -> None:
    some = [
        Sample(STARTED, 1, 1, "ruby", FRAMES, weight=2),
        Sample(STARTED, 1, 1, "ruby", FRAMES, unit="ns", weight=500),
    ]
    assert read_pprof(written("pprof", some)).values == {"samples": 2, "off_cpu": 500}
    alone = read_pprof(written("pprof", some[1:], meta=META))
    assert (alone.types, alone.default) == ([("off_cpu", "nanoseconds")], "off_cpu")


def test_cpu_time_that_no_number_holds_is_the_largest_number() -> None:
    read = read_pprof(written("pprof", [Sample(STARTED, 1, 1, "ruby", FRAMES, weight=10**15)], meta=META))
    assert read.values == {"samples": 10**15, "cpu": 2**63 - 1}


def test_labels_say_whose_a_sample_is() -> None:
    some = [
        Sample(STARTED, 7, 9, "worker\n1", FRAMES, container="c0ffee"),
        Sample(STARTED, 7, 7, "puma", FRAMES),
        Sample(STARTED, 8, 8, "", FRAMES),
    ]
    assert read_pprof(written("pprof", some)).labels == [
        {"pid": 7, "tid": 9, "thread": "worker\n1", "process": "puma", "container": "c0ffee"},
        {"pid": 7, "tid": 7, "thread": "puma", "process": "puma"},
        {"pid": 8, "tid": 8},
    ]


def test_an_empty_profile_is_whole_and_says_so() -> None:
    read = read_pprof(written("pprof", [], Totals(lost=3, failed=(("no unwind row", 2),)), META))
    assert not read.stacks
    assert read.types == [("samples", "count"), ("cpu", "nanoseconds")]
    assert read.comments[-3:] == [
        "no samples",
        "samples: 0 read, 0 truncated, 3 lost",
        "incomplete or unsent, by reason: no unwind row 2",
    ]
    assert read.comments[0] == "ruby a.rb"


def test_the_same_profile_gives_the_same_bytes() -> None:
    some = [Sample(STARTED, 1, 1, "ruby", FRAMES)]
    assert written("pprof", some, meta=META) == written("pprof", some, meta=META)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_is_valid_utf_8_on_one_line_and_can_be_read_back(name: str) -> None:
    frames = (Frame("ruby", name, path=name, line=1), Frame("native", name, module=name))
    meta = Meta(name, name, runtimes=(name,))
    read = read_pprof(written("pprof", [Sample(1, 1, 1, name, frames, False, name)], meta=meta))
    [key] = read.stacks
    assert [shown.name for shown in key.stack[1:]] == [name, name]
    assert read.labels[0].get("thread", "") == name


def test_the_first_mapping_is_the_program() -> None:
    frames = (*FRAMES, Frame("native", "main", module="/usr/bin/ruby3.1", offset=0x99))
    data = written("pprof", [Sample(1, 1, 1, "ruby", frames, False, "limit")])
    profile = fields_of(gzip.decompress(data))
    names = [profile[6][fields_of(mapping)[5][0]] for mapping in profile[3]]
    assert names == [b"/usr/bin/ruby3.1", b"/lib/libc.so.6", b"[incomplete]", b"[ruby]", b"[cfunc]"]
