# SPDX-License-Identifier: Apache-2.0
"""The recording file: what was written is read, and of what is damaged all that is whole, in words."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable
from typing import get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from profile_strategies import HOSTILE_NAMES, profiles

from rubyunwind.errors import DecodeError
from rubyunwind.formats.recorded import Recorded
from rubyunwind.formats.recording import about, chunks, reader, tables, write
from rubyunwind.formats.recording.chunks import MAGIC, chunk_bytes, header_bytes
from rubyunwind.formats.recording.columns import ColumnReader, ColumnWriter
from rubyunwind.formats.recording.reader import read_recording
from rubyunwind.formats.recording.writer import RecordingWriter
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals
from rubyunwind.profiler.samples import Samples

TOTALS = Totals(read=7, lost=2, truncated=1, failed=(("limit", 1), ("no unwind row", 3)))
META = Meta(
    title="ruby a.rb",
    command="ruby a.rb",
    started=1_700_000_000_000_000_000,
    duration=1.5,
    rate=99.0,
    runtimes=("ruby 3.1.2",),
    backend="bpf",
    notes=("pid 1: a note",),
)
HEADER = len(header_bytes())


def written(samples: Iterable[Sample], totals: Totals = TOTALS, meta: Meta = META) -> bytes:
    file = io.BytesIO()
    write(file, samples, totals, meta)
    return file.getvalue()


def read(data: bytes) -> Recorded:
    return read_recording(io.BytesIO(data), "x.rubyunwind")


def streamed(batches: Iterable[Iterable[Sample]]) -> tuple[bytes, list[int]]:
    """A file written in batches, each flushed, and where it ended after each."""
    file = io.BytesIO()
    writer = RecordingWriter(file)
    ends = []
    for number, batch in enumerate(batches):
        writer.add(Samples(batch))
        writer.update(Totals(read=number), META)
        ends.append(file.tell())
    writer.end()
    return file.getvalue(), ends


@given(profiles)
def test_what_was_written_is_read(profile: list[Sample]) -> None:
    for samples in (profile, Samples(profile), iter(profile)):
        found = read(written(samples))
        assert found == Recorded(Samples(profile), TOTALS, META)
        assert list(found.samples) == profile


@given(st.lists(profiles, max_size=5))
def test_what_was_written_in_batches_is_read_in_order(parts: list[list[Sample]]) -> None:
    data, _ = streamed(parts)
    found = read(data)
    assert list(found.samples) == [sample for part in parts for sample in part]
    assert found.notes == ()
    assert found.totals.read == max(0, len(parts) - 1)


def test_each_field_is_kept_at_its_limits() -> None:
    frames = (
        Frame("native", "f", module="/x", offset=2**64 - 1),
        Frame("native", "g", module=None, offset=0),
        Frame("ruby", "h", None, "", -5),
        Frame("ruby", "h", "", None, 0),
        Frame("ruby", "\ud800 lone", "\udcff", "\ud83d\ude00", 2**63 - 1),
    )
    samples = [
        Sample(-(2**63), 2**31, 2**22, "a", frames, weight=2**64 - 1, cpu=-(2**31), unit="ns"),
        Sample(2**63 - 1, 1, 1, "", (), False, None, 0, container="c", origin="off-cpu", backend="user"),
    ]
    assert list(read(written(samples)).samples) == samples


def test_hostile_names_are_kept() -> None:
    samples = [Sample(1, 1, 1, name, (Frame("ruby", name, name, name, 1),)) for name in HOSTILE_NAMES]
    assert list(read(written(samples)).samples) == samples


def some_samples(count: int = 12) -> list[Sample]:
    frames = [Frame("ruby", f"A#m{i}", f"m{i}", "/a.rb", i) for i in range(5)]
    return [
        Sample(10**18 + i * 10**7, 1, 1 + i % 2, "ruby", tuple(frames[: 1 + i % 5]), weight=1 + i)
        for i in range(count)
    ]


def test_every_prefix_gives_a_prefix_of_the_samples_or_a_clear_error() -> None:
    samples = some_samples()
    data, ends = streamed([samples[i : i + 3] for i in range(0, 12, 3)])
    most = 0
    for length in range(len(data)):
        try:
            found = read(data[:length])
        except DecodeError:
            assert length < HEADER
            continue
        assert length >= HEADER
        count = len(found.samples)
        assert list(found.samples) == samples[:count]
        assert count >= most
        assert count >= 3 * sum(end <= length for end in ends)
        assert len(found.notes) == 1  # at least that it was not ended
        most = count
    assert most == 12
    assert read(data).notes == ()
    with pytest.raises(DecodeError, match=r"x\.rubyunwind ends inside its header, after 9 of 16 bytes"):
        read(data[:9])


def test_every_flipped_byte_is_noticed() -> None:
    samples = some_samples()
    data, _ = streamed([samples[i : i + 3] for i in range(0, 12, 3)])
    for at in range(len(data)):
        for flip in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            try:
                found = read(bytes(damaged))
            except DecodeError:
                assert at < HEADER
                continue
            assert at >= HEADER
            assert len(found.notes) == 1, at
            assert list(found.samples) == samples[: len(found.samples)]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_contents_that_lie_behind_good_checksums_end_in_words(data: st.DataObject) -> None:
    """Whoever makes a file can make its checksums right: only the contents are checked then."""
    out = ColumnWriter()
    known = tables.Tables()
    samples = Samples(some_samples())
    for stack in samples.stacks:
        known.stack(stack)
    for thread in samples.threads:
        known.thread(thread)
    known.encode(out)
    tables.encode_samples(out, next(iter(samples.columns())))
    plain = bytearray(out.finish())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(plain) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if change == "set":
            plain[at] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del plain[at : at + data.draw(st.integers(1, 8))]
        else:
            plain[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        if not plain:
            break
    found = read(header_bytes() + chunk_bytes(b"SAMP", 0, bytes(plain)) + chunk_bytes(b"DONE", 1, b""))
    if found.notes:
        assert "left out" in found.notes[0]
        assert len(found.samples) == 0
    for sample in found.samples:  # whatever it says, it is whole
        assert all(isinstance(frame, Frame) for frame in sample.frames)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_end_in_words(noise: bytes, with_header: bool) -> None:
    try:
        found = read((header_bytes() if with_header else b"") + noise)
    except DecodeError:
        return
    assert len(found.samples) == 0
    assert found.notes


@given(
    st.sampled_from([b"SAMP", b"TOTL", b"META", b"DONE"]),
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["read", "lost", "failed", "duration", "rate", "started", "notes", "title"]
                    ),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    ),
)
def test_chunks_of_any_contents_end_in_words(kind: bytes, plain: bytes) -> None:
    found = read(header_bytes() + chunk_bytes(kind, 0, plain))
    assert len(found.notes) == (kind != b"DONE")
    assert isinstance(found.totals, Totals)


def test_json_that_is_nested_too_deeply_ends_in_words() -> None:
    found = read(header_bytes() + chunk_bytes(b"META", 0, b"[" * 200_000))
    assert "makes no sense" in found.notes[0]


# Versions


def header(version: int) -> bytes:
    head = struct.pack("<8sHH", MAGIC, version, 0)
    return head + struct.pack("<I", zlib.crc32(head))


@pytest.mark.parametrize("version", [2, 65535])
def test_a_newer_version_says_what_to_do(version: int) -> None:
    with pytest.raises(DecodeError, match=f"format version {version}, .* reads up to 1: update rubyunwind"):
        read(header(version) + b"anything")


def test_a_version_that_never_was_is_refused() -> None:
    with pytest.raises(DecodeError, match="format version 0, which no released rubyunwind wrote"):
        read(header(0))


def test_chunks_that_may_be_left_out_are_and_others_end_it() -> None:
    data = written(some_samples(2))
    first = data.index(b"TOTL")  # SAMP, META, TOTL, DONE
    optional = data[:first] + chunk_bytes(b"xtra", 2, b"new") + chunk_bytes(b"DONE", 3, b"")
    found = read(optional)
    assert len(found.samples) == 2
    assert found.notes == ("x.rubyunwind: 1 chunks that this rubyunwind does not know were left out",)
    needed = data[:first] + chunk_bytes(b"XTRA", 2, b"new")
    found = read(needed)
    assert len(found.samples) == 2
    assert "a chunk XTRA that only a newer rubyunwind can read" in found.notes[0]


def test_a_recording_behind_another_is_named() -> None:
    data = written(some_samples(2))
    found = read(data + data)
    assert len(found.samples) == 2
    assert f"another recording begins at byte {len(data)}" in found.notes[0]


def test_a_chunk_that_is_missing_or_comes_twice_is_noticed() -> None:
    data, ends = streamed([some_samples(3)] * 3)
    for damaged in (data[: ends[0]] + data[ends[1] :], data[: ends[0]] + data[HEADER:]):
        found = read(damaged)
        assert len(found.samples) == 3
        assert "is missing" in found.notes[0]


# Bounds


def test_a_length_that_lies_asks_for_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Watched(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size)
            return super().read(size)

    head = struct.pack("<4sIII", b"SAMP", 60 << 20, 60 << 20, 0)
    found = read_recording(Watched(header_bytes() + head + bytes(4) + b"x" * 100), "x")
    assert "half-written (100 of 62914560 bytes" in found.notes[0]
    assert max(size for size in asked if size is not None) <= 1 << 20
    head = struct.pack("<4sIII", b"SAMP", 0xFFFFFFFF, 10, 0)
    assert "is no chunk" in read(header_bytes() + head + bytes(4)).notes[0]


def test_what_decompresses_to_more_than_it_claims_is_cut_off() -> None:
    stored = zlib.compress(bytes(50 << 20))
    head = struct.pack("<4sIII", b"SAMP", len(stored), 100, 0)
    crc = struct.pack("<I", zlib.crc32(stored, zlib.crc32(head)))
    assert "does not have the 100 bytes it claims" in read(header_bytes() + head + crc + stored).notes[0]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("_MOST_TEXT", "characters of names"),
        ("_MOST_ROWS", "names"),
        ("_MOST_NODES", "nodes of the call tree"),
        ("_MOST_FRAMES", "frames in all stacks"),
    ],
)
def test_more_than_fits_into_memory_ends_in_words(
    monkeypatch: pytest.MonkeyPatch, limit: str, text: str
) -> None:
    data = written(some_samples(12))
    monkeypatch.setattr(reader, limit, 3)
    assert f"more {text} than can be read (3)" in read(data).notes[0]


def test_totals_of_any_size_end_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "_MOST_BYTES", 3)
    assert "more bytes of totals than can be read (3)" in read(written(some_samples())).notes[0]


def test_all_totals_and_meta_are_kept_whatever_fields_they_get() -> None:
    def filled(kind: type, number: int) -> object:
        values = {}
        for at, (name, hint) in enumerate(get_type_hints(kind).items(), number):
            if hint is int:
                values[name] = at
            elif hint is float:
                values[name] = at / 4
            elif hint is str:
                values[name] = f"text {at}"
            elif hint == tuple[str, ...]:
                values[name] = (f"text {at}", "more")
            elif hint == tuple[tuple[str, int], ...]:
                values[name] = (("reason", at), ("another", 1))
            else:
                values[name] = filled(
                    next(each for each in get_args(hint) if each is not type(None)), at * 100
                )
        return kind(**values)

    totals, meta = filled(Totals, 1), filled(Meta, 50)
    found = read(written([], totals, meta))
    assert (found.totals, found.meta, found.notes) == (totals, meta, ())


def test_totals_of_a_newer_version_are_read_as_far_as_they_are_known() -> None:
    plain = b'{"read": 5, "new": {"a": 1}, "duration": 2.5}'
    found = read(header_bytes() + chunk_bytes(b"TOTL", 0, plain) + chunk_bytes(b"DONE", 1, b""))
    assert (found.totals, found.meta, found.notes) == (Totals(read=5), Meta(duration=2.5), ())


def test_what_the_reader_would_refuse_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a name of 16777217 bytes does not go into a recording"):
        written([Sample(1, 1, 1, "a" * (tables.MAX_TEXT + 1), ())])
    frame = Frame("ruby", "f")
    deepest = Sample(1, 1, 1, "", (frame,) * tables.MAX_DEPTH)
    assert list(read(written([deepest])).samples) == [deepest]
    with pytest.raises(ValueError, match="a stack of 65537 frames does not go into a recording"):
        written([Sample(1, 1, 1, "", (frame,) * (tables.MAX_DEPTH + 1))])
    with pytest.raises(ValueError, match="at most"):
        chunk_bytes(b"SAMP", 0, bytes(chunks.MAX_PLAIN + 1))


def test_many_new_stacks_go_into_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from rubyunwind.formats.recording import writer

    monkeypatch.setattr(writer, "_MOST_BYTES", 500)
    monkeypatch.setattr(writer, "_MOST_SAMPLES", 5)
    samples = some_samples(23)
    data = written(samples)
    assert data.count(b"SAMP") > 4
    assert list(read(data).samples) == samples


def test_deep_stacks_that_differ_at_the_leaf_take_little_room() -> None:
    root = tuple(Frame("ruby", f"M#m{i}", f"m{i}", "/a.rb", i) for i in range(1000))
    samples = [Sample(i, 1, 1, "ruby", (Frame("ruby", f"leaf{i}"), *root)) for i in range(500)]
    data = written(samples)
    assert len(data) < 20_000  # 500,000 frames
    assert list(read(data).samples) == samples


# Columns


@given(
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1)),
        st.lists(st.integers(0, 2**64 - 1)),
        st.lists(st.integers(-200, 200)),
    )
)
def test_a_column_is_read_as_it_was_written(values: list[int]) -> None:
    out = ColumnWriter()
    out.column(values)
    raw = out.finish()
    again = ColumnReader(raw)
    assert list(again.column(len(values))) == values
    again.finish()
    if values and min(values) >= 0 and max(values) < 256:
        assert len(raw) == 1 + len(values)
