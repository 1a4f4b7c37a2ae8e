# SPDX-License-Identifier: Apache-2.0
"""Where a recording goes: refused before it begins, never damaged, never left empty."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from rubyunwind.cli.output import Output
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats.registry import FORMATS
from rubyunwind.profiler.recording import Profile
from rubyunwind.profiler.sample import Frame, Sample

SAMPLE = Sample(1, 2, 3, "ruby", (Frame("ruby", "leaf", "leaf", "/a.rb", 1),))
PROFILE = Profile(samples=[SAMPLE], rate=99, command="ruby a.rb")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere/out.html", "No such file or directory"),
        ("", "Is a directory"),
        ("x" * 300, "File name too long"),
        ("file/out.html", "Not a directory"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    before = descriptors()
    with pytest.raises(RubyUnwindError, match=rf"{reason}; nothing was recorded\. Name another file with -o"):
        Output.choose(str(tmp_path / name), None, "x")
    assert descriptors() == before


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RubyUnwindError, match="Permission denied"):
        Output.choose(str(tmp_path / "out.html"), None, "x")


def test_a_new_file_is_removed_if_nothing_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    with Output.choose(str(path), None, "x"):
        assert path.exists()
    assert not path.exists()


def test_an_error_during_the_recording_removes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    with pytest.raises(KeyError), Output.choose(str(path), None, "x"):
        raise KeyError
    assert not path.exists()


def test_a_file_that_was_there_is_untouched_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    old = "old " * 1000
    path.write_text(old)
    with Output.choose(str(path), None, "x"):
        assert path.read_text() == old
    assert path.read_text() == old
    with Output.choose(str(path), None, "x") as output:
        output.write(PROFILE)
    assert path.read_text() == "leaf 1\n"  # shorter, and nothing of the old one behind it


def test_an_empty_profile_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out.folded"
    with Output.choose(str(path), None, "x") as output:
        output.write(Profile())
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "asked", "format_"),
    [
        ("a.html", None, "flamegraph"),
        ("a.folded", None, "folded"),
        ("a.jsonl", None, "jsonl"),
        ("a.json.jsonl", None, "jsonl"),
        ("a.json", None, "flamegraph"),
        ("a.speedscope.json", None, "speedscope"),
        ("a.firefox.json", None, "firefox"),
        ("a.b.pb.gz", None, "pprof"),
        ("a.gz", None, "flamegraph"),
        ("a", None, "flamegraph"),
        ("a.txt", None, "flamegraph"),
        ("a.html", "folded", "folded"),
    ],
)
def test_the_format_is_what_was_asked_for_or_follows_from_the_suffix(
    tmp_path: Path, name: str, asked: str | None, format_: str
) -> None:
    with Output.choose(str(tmp_path / name), asked, "x") as output:
        assert output.format == format_


@pytest.mark.parametrize("format_", list(FORMATS))
def test_without_a_name_the_file_is_called_after_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    if format_ == "otlp":
        pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    monkeypatch.chdir(tmp_path)
    with Output.choose(None, format_, "puma") as output:
        assert output.path is not None
        assert output.path.name.startswith("rubyunwind-puma-2")
        assert output.path.name.endswith(FORMATS[format_].suffix)


class Stdout(io.TextIOWrapper):
    """A text stream over bytes that stay readable."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())


def test_a_dash_is_stdout_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stdout()
    monkeypatch.setattr(sys, "stdout", stream)
    with Output.choose("-", "folded", "x") as output:
        assert output.path is None
        output.write(PROFILE)
    assert not stream.buffer.closed
    assert stream.buffer.getvalue() == b"leaf 1\n"  # type: ignore[attr-defined]


def test_what_is_no_regular_file_can_be_written_to() -> None:
    with Output.choose("/dev/null", "folded", "x") as output:
        output.write(PROFILE)


def test_a_full_device_is_an_error_with_the_reason_and_closes_the_file() -> None:
    before = descriptors()
    with (
        pytest.raises(RubyUnwindError, match="cannot write /dev/full: No space left"),
        Output.choose("/dev/full", "folded", "x") as output,
    ):
        output.write(PROFILE)
    assert descriptors() == before


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    before = descriptors()
    with Output.choose(str(fifo), "folded", "x") as output:
        os.close(reader)
        output.write(PROFILE)
    assert descriptors() == before - 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_under_sudo_a_new_file_belongs_to_who_called_sudo_an_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_UID", "65534")
    monkeypatch.setenv("SUDO_GID", "65534")
    new, old = tmp_path / "new.folded", tmp_path / "old.folded"
    old.touch()
    for path in (new, old):
        with Output.choose(str(path), None, "x") as output:
            output.write(PROFILE)
    assert (new.stat().st_uid, new.stat().st_gid) == (65534, 65534)
    assert old.stat().st_uid == 0
