# SPDX-License-Identifier: Apache-2.0
"""Profiles taken and printed by a Collector of OpenTelemetry: collector/, which `make foreign` builds."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foreign.made import META, SAMPLES, TOTALS, total
from rubyunwind.formats import write
from rubyunwind.formats.names import printable
from rubyunwind.profiler.sample import Sample

CONFIGURATION = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}}
exporters: {debug: {verbosity: detailed}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [debug]}}
"""
START = 60  # seconds

Post = Callable[[bytes], int]


@pytest.fixture
def collector(tool: Callable[[str], str], tmp_path: Path) -> Iterator[tuple[Post, Path]]:
    """A Collector that runs: what posts to it and gives the status, and the file that it prints into."""
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    program = tool("collector")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    configuration, printed = tmp_path / "collector.yaml", tmp_path / "printed"
    configuration.write_text(CONFIGURATION % port)

    def post(body: bytes) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1development/profiles",
            data=body,
            headers={"Content-Type": "application/x-protobuf"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with printed.open("wb") as file:
        running = subprocess.Popen(
            [program, f"--config=file:{configuration}", "--feature-gates=service.profilesSupport"],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + START
        while "Everything is ready" not in printed.read_text():
            assert running.poll() is None, printed.read_text()
            assert time.monotonic() < end, printed.read_text()
            time.sleep(0.1)
        yield post, printed
    finally:
        running.terminate()
        running.wait(START)


def sent(collector: tuple[Post, Path], folder: Path, samples: list[Sample]) -> str:
    """Post a profile, whose file is the request as it is, and return what the Collector prints of it."""
    post, printed = collector
    path = folder / "profile.otlp"
    write(path, "otlp", samples, TOTALS, META)
    before = len(printed.read_text())
    assert post(path.read_bytes()) == 200
    return printed.read_text()[before:]


def test_a_collector_takes_every_sample(collector: tuple[Post, Path], tmp_path: Path) -> None:
    text = sent(collector, tmp_path, SAMPLES)
    values = [int(number) for row in re.findall(r"Values: \[([\d ]+)\]", text) for number in row.split()]
    assert len(values) == len(SAMPLES)
    assert sum(values) == total()
    for name in {frame.name for sample in SAMPLES for frame in sample.frames}:
        assert printable(name) in text
    assert set(re.findall(r"thread\.id: Int\((\d+)\)", text)) == {"70", "71", "80"}


def test_a_collector_takes_an_empty_profile(collector: tuple[Post, Path], tmp_path: Path) -> None:
    # It answers that all is well, and does not trouble exporters with what has no samples.
    assert sent(collector, tmp_path, []) == ""


def test_a_collector_refuses_what_is_no_profile(collector: tuple[Post, Path]) -> None:
    assert collector[0](b"garbage") == 400
