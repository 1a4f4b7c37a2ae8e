# SPDX-License-Identifier: Apache-2.0
"""jsonl is read back as it was written; what is no sample is counted, in words."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_strategies import profiles

from rubyunwind.errors import DecodeError
from rubyunwind.formats import jsonl_reader, write
from rubyunwind.formats.jsonl_reader import read_jsonl
from rubyunwind.formats.recorded import Recorded
from rubyunwind.profiler.sample import Frame, Sample, Totals

NO_TOTALS = "x is jsonl, which has no totals: what was lost is not known"
FRAMES = (Frame("ruby", "A#b", "b", "/a.rb", 3), Frame("native", "main", module="/bin/x", offset=5))
SAMPLES = [
    Sample(10**18, 1, 2, "ruby", FRAMES),
    Sample(10**18 + 2_000_000_000, 1, 2, "ruby", (), complete=False, reason="limit", weight=5),
    Sample(10**18 + 1, 1, 3, "other", FRAMES[:1], complete=False, reason="no unwind row", container="c1"),
]


def text(samples: list[Sample]) -> bytes:
    file = io.BytesIO()
    write(file, "jsonl", samples)
    return file.getvalue()


def read(data: bytes) -> Recorded:
    return read_jsonl(io.BytesIO(data), "x")


@given(profiles)
def test_what_was_written_is_read(profile: list[Sample]) -> None:
    found = read(text(profile))
    assert list(found.samples) == [replace(sample, cpu=-1) for sample in profile]
    assert found.notes == (NO_TOTALS,)


def test_totals_and_times_are_those_of_the_samples() -> None:
    found = read(text(SAMPLES))
    assert found.totals == Totals(read=3, truncated=1, failed=(("limit", 1), ("no unwind row", 1)))
    assert (found.meta.started, found.meta.duration) == (10**18, 2.0)


@given(profiles, st.data())
def test_a_prefix_gives_the_samples_that_are_whole(profile: list[Sample], data: st.DataObject) -> None:
    whole = text(profile)
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    found = read(cut)
    lines = cut.count(b"\n")
    # A last line may lack its newline only.
    assert len(found.samples) in (lines, lines + 1)
    assert list(found.samples) == profile[: len(found.samples)]
    half = cut and not cut.endswith(b"\n") and len(found.samples) == lines
    assert ("half-written" in found.notes[0]) == bool(half)


def test_fields_may_be_in_any_order_and_others_may_be_there() -> None:
    fields = json.loads(text(SAMPLES[:1]))
    frames = fields.pop("frames")
    line = json.dumps({"frames": [{**frames[0], "new": 1}, frames[1]], "new": [], **fields}).encode()
    assert list(read(line).samples) == SAMPLES[:1]
    short = b'{"ts": 5, "frames": []}\n'
    assert list(read(short).samples) == [Sample(5, 0, 0, "", ())]


def test_frames_that_stand_in_a_name_are_no_frames() -> None:
    hostile = 'x, "frames": [{"kind": "ruby", "name": "no"}]}'
    samples = [Sample(1, 1, 1, hostile, (Frame("ruby", hostile, None, None, None),)) for _ in range(3)]
    assert list(read(text(samples)).samples) == samples


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b"{}", "it has no frames"),
        (b'{"frames": []}', "it has no ts"),
        (b'{"ts": "x", "frames": []}', "ts is 'x'"),
        (b'{"ts": true, "frames": []}', "ts is True"),
        (b'{"ts": 1, "frames": [], "weight": -1}', "weight is -1"),
        (b'{"ts": 1, "frames": [], "weight": 1e400}', "weight is inf"),
        (b'{"ts": 1, "frames": [], "pid": 99999999999}', "pid is 99999999999"),
        (b'{"ts": 1, "frames": [], "reason": 5}', "reason is 5"),
        (b'{"ts": 1, "frames": [5]}', "a frame is no object"),
        (b'{"ts": 1, "frames": [{"name": "f"}]}', "a frame has no kind"),
        (b'{"ts": 1, "frames": [{"kind": "ruby", "name": "f", "line": "3"}]}', "line of a frame is '3'"),
        (b'{"ts": 1, "frames": [{"kind": "ruby", "name": "f", "path": 3}]}', "path of a frame is no string"),
        (b'{"ts": 1, "frames": [{"kind": "native", "name": "f", "offset": -3}]}', "offset of a frame is -3"),
        (b'{"ts": 1, "frames": ' + b"[" * 100_000 + b"}", "it is nested too deeply"),
        (b'{"ts": 1, "frames": [], "comm": "\xff"}', "it is no JSON"),
    ],
)
def test_a_line_that_is_no_sample_is_left_out_and_counted(line: bytes, why: str) -> None:
    good = text(SAMPLES)
    found = read(good + line + b"\n" + line + b"\n" + good)
    assert list(found.samples) == SAMPLES * 2
    assert found.notes[0].startswith(f"x: 2 lines are no samples and left out; the first is line 4: {why}")
    with pytest.raises(DecodeError, match="x is no jsonl of samples: line 1: "):
        read(line + b"\n" + good)


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_reader, "_LONGEST_LINE", 1000)
    with pytest.raises(DecodeError, match="line 4 has more than"):
        read(text(SAMPLES) + b"{" + b" " * 2000)


def test_few_texts_are_kept_and_equal_stacks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_reader, "_KEPT_TEXT", 300)
    samples = [replace(SAMPLES[0], frames=FRAMES * (1 + n % 3)) for n in range(30)]
    found = read(text(samples))
    assert list(found.samples) == samples
    assert len(found.samples.stacks) == 3
