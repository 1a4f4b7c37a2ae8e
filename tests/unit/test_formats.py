# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import pytest

from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats import FORMATS, write
from rubyunwind.formats.registry import format_of
from rubyunwind.profiler.sample import Frame, Sample

SAMPLE = Sample(1, 1, 1, "ruby", (Frame("ruby", "only_here"),))
GZIP_MAGIC = b"\x1f\x8b"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A format that can be written here."""
    if request.param == "otlp":
        pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    return str(request.param)


def plain(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data


@pytest.mark.parametrize("name", FORMATS, indirect=True)
def test_every_format_writes_to_a_path_and_to_an_open_file_alike(name: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    write(file, name, [SAMPLE])
    write(tmp_path / "out", name, iter([SAMPLE]))
    assert not file.closed
    if name != "recording":  # that has a compression of its own
        assert b"only_here" in plain(file.getvalue())
    assert (tmp_path / "out").read_bytes() == file.getvalue()


@pytest.mark.parametrize("name", FORMATS, indirect=True)
def test_every_format_takes_a_profile_without_samples(name: str) -> None:
    file = io.BytesIO()
    write(file, name, [])
    assert b"only_here" not in plain(file.getvalue())


@pytest.mark.parametrize("name", FORMATS, indirect=True)
def test_a_suffix_names_its_format(name: str) -> None:
    assert format_of(f"/tmp/a.b{FORMATS[name].suffix}") == name


def test_a_suffix_of_no_format_names_none() -> None:
    assert format_of("/tmp/a.json") is None
    assert format_of("") is None


def test_an_unknown_format_names_the_known_ones_and_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        RubyUnwindError, match="'svg'; known formats: flamegraph, folded, speedscope, "
    ) as caught:
        write(tmp_path / "out", "svg", [SAMPLE])
    assert isinstance(caught.value, ValueError)
    assert not (tmp_path / "out").exists()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out"
    with pytest.raises(RubyUnwindError, match=r"missing/out.*No such file or directory"):
        write(path, "folded", [SAMPLE])


def test_format_modules_are_imported_only_when_used() -> None:
    script = (
        "import sys, rubyunwind.formats as f; print(len(f.FORMATS));"
        "print([m for m in [x.module for x in f.FORMATS.values()] if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    count, imported = done.stdout.splitlines()
    assert int(count) >= 3
    assert imported == "[]"
