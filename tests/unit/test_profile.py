# SPDX-License-Identifier: Apache-2.0
"""record() and what comes of it: arguments that make no sense, and writing a profile."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

import rubyunwind
from rubyunwind import Profile, Profiler, Recording, Sample, record
from rubyunwind.bpf.lifetime import LifetimeError
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS, UnknownFormat
from rubyunwind.profiler.sample import Frame

SAMPLES = [Sample(1, 2, 3, "ruby", (Frame("ruby", "leaf", "leaf", "/a.rb", 1),), weight=3)]


@pytest.mark.parametrize(
    "arguments", [{}, {"pid": 1, "command": ["true"]}, {"command": []}, {"pid": None, "command": None}]
)
def test_either_a_process_or_a_command_is_recorded(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="processes, all of them, or a command to record, one of these"):
        record(**arguments)


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_below_one_is_refused_and_the_command_never_runs(tmp_path: Path, rate: int) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(ValueError, match=f"a rate of {rate} Hz"):
        record(command=["touch", str(mark)], rate=rate)
    assert not mark.exists()


def test_a_command_is_titled_as_a_user_would_type_it() -> None:
    assert Recording(command=["ruby", "-e", "p 1"]).profile.command == "ruby -e 'p 1'"
    assert Recording(pids=[3, 4]).profile.command == "pid 3, pid 4"


def test_profiles_do_not_share_their_samples() -> None:
    first, second = Profile(), Profile()
    first.samples += SAMPLES
    assert second.samples == []


@pytest.mark.parametrize("format_", list(FORMATS))
def test_a_path_and_a_file_get_the_same(tmp_path: Path, format_: str) -> None:
    if format_ == "otlp":
        pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    profile = Profile(samples=SAMPLES, rate=99, command="ruby a.rb", started=1, duration=2.0)
    file = io.BytesIO()
    profile.write(file, format_)
    path = tmp_path / "out"
    profile.write(path, format_)
    profile.write(str(path), format=format_)
    assert path.read_bytes() == file.getvalue() != b""
    if format_ != "recording":  # that has a compression of its own
        assert b"leaf" in (gzip.decompress(file.getvalue()) if format_ == "pprof" else file.getvalue())


def test_a_flame_graph_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    Profile(samples=SAMPLES).write(path)
    assert b"<html" in path.read_bytes().lower()


def test_an_unknown_format_is_refused_before_the_file_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(UnknownFormat, match="unknown output format 'svg'; known formats: flamegraph"):
        Profile(samples=SAMPLES).write(path, "svg")
    assert not path.exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(RubyUnwindError, match=r"nowhere/out.*No such file or directory; choose another path"):
        Profile(samples=SAMPLES).write(tmp_path / "nowhere" / "out")


def test_a_profiler_that_is_not_entered_says_what_to_do() -> None:
    profiler = Profiler([1])
    for use in (
        profiler.poll,
        profiler.stop,
        profiler.fileno,
        lambda: profiler.follow(1),
        lambda: list(profiler.samples()),
        lambda: profiler.collection,
    ):
        with pytest.raises(LifetimeError, match="not entered yet: use it in a `with` block"):
            use()


def test_a_profiler_that_is_not_entered_has_counted_nothing_and_closes() -> None:
    profiler = Profiler([1])
    profiler.close()
    assert (profiler.stats, profiler.counters) == (rubyunwind.profiler.sample.Totals(), {})
    assert (profiler.notes, profiler.runtimes, profiler.running) == ((), (), False)
