# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given
from profile_strategies import profiles

from rubyunwind.formats import write
from rubyunwind.formats.jsonl import SampleEncoder, frame_fields
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples


def lines_of(samples: Iterable[Sample]) -> list[str]:
    file = io.BytesIO()
    write(file, "jsonl", samples)
    text = file.getvalue().decode("utf-8")
    assert text.endswith("\n") or not text
    return text.split("\n")[:-1]


def sample_of(line: str) -> Sample:
    value: dict[str, Any] = json.loads(line)
    frames = tuple(Frame(**frame) for frame in value.pop("frames"))
    return Sample(timestamp=value.pop("ts"), frames=frames, **value)


DESIGNED = Sample(
    timestamp=1_700_000_000_123_456_789,
    pid=1,
    tid=2,
    comm="ruby",
    frames=(
        Frame("ruby", "Foo#bar", label="bar", path="/a.rb", line=3),
        Frame("cfunc", "Array#each", label="each", path="/a.rb", line=2),
        Frame("native", "rb_vm_exec", module="/usr/lib/libruby.so", offset=1234),
        Frame("kernel", "do_syscall_64", module="[kernel]", offset=99),
    ),
)


def test_a_line_has_the_keys_of_the_contract_in_their_order() -> None:
    [line] = lines_of([DESIGNED])
    assert line == (
        '{"ts": 1700000000123456789, "pid": 1, "tid": 2, "comm": "ruby", "origin": "sampling", '
        '"backend": "bpf", "weight": 1, "unit": "samples", '
        '"complete": true, "reason": null, "container": null, "frames": ['
        '{"kind": "ruby", "name": "Foo#bar", "label": "bar", "path": "/a.rb", "line": 3}, '
        '{"kind": "cfunc", "name": "Array#each", "label": "each", "path": "/a.rb", "line": 2}, '
        '{"kind": "native", "name": "rb_vm_exec", "module": "/usr/lib/libruby.so", "offset": 1234}, '
        '{"kind": "kernel", "name": "do_syscall_64"}]}'
    )


def test_an_unknown_line_module_or_offset_is_null_not_missing() -> None:
    [line] = lines_of([Sample(1, 1, 1, "ruby", (Frame("ruby", "a"), Frame("native", "b")))])
    assert json.loads(line)["frames"] == [
        {"kind": "ruby", "name": "a", "label": None, "path": None, "line": None},
        {"kind": "native", "name": "b", "module": None, "offset": None},
    ]


def test_other_kinds_show_what_is_known_of_them() -> None:
    frames = (Frame("gc", "marking"), Frame("unknown", "?", module="/lib/x.so", offset=0))
    [line] = lines_of([Sample(1, 1, 1, "ruby", frames)])
    assert json.loads(line)["frames"] == [
        {"kind": "gc", "name": "marking"},
        {"kind": "unknown", "name": "?", "module": "/lib/x.so", "offset": 0},
    ]


@given(profiles)
def test_a_parser_gets_back_equal_samples_whatever_the_names(profile: list[Sample]) -> None:
    assert [sample_of(line) for line in lines_of(profile)] == profile


@given(profiles)
def test_samples_by_the_column_are_the_same_lines(profile: list[Sample]) -> None:
    assert lines_of(Samples(profile)) == lines_of(profile)


@given(profiles)
def test_frames_are_written_as_the_objects_they_are(profile: list[Sample]) -> None:
    for line, sample in zip(lines_of(profile), profile, strict=True):
        assert f'"frames": {json.dumps([frame_fields(frame) for frame in sample.frames])}}}' in line


def test_an_undecodable_byte_is_an_escaped_surrogate() -> None:
    [line] = lines_of(
        [Sample(1, 1, 1, "ruby", (Frame("kernel", b"\xe9".decode("utf-8", "surrogateescape")),))]
    )
    assert r'"name": "\udce9"' in line
    assert line.isascii()


def test_each_sample_is_written_before_the_next_is_asked_for() -> None:
    file = io.BytesIO()
    written: list[int] = []

    def watched() -> Iterator[Sample]:
        for _ in range(3):
            yield DESIGNED
            written.append(file.getvalue().count(b"\n"))

    write(file, "jsonl", watched())
    assert written == [1, 2, 3]


def test_more_stacks_than_are_kept_still_give_each_its_own_frames() -> None:
    encoder = SampleEncoder()
    for number in range(10_000):
        sample = Sample(1, 1, 1, "ruby", (Frame("kernel", str(number)),))
        assert json.loads(encoder.line(sample))["frames"][0]["name"] == str(number)
