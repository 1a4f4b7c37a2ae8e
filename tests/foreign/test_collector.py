# SPDX-License-Identifier: Apache-2.0
"""Profiles taken and printed by a Collector of OpenTelemetry: collector/, which `make foreign` builds."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foreign.made import META, SAMPLES, TOTALS, total
from foreign.running import Collector
from receiver import free_port
from rubyunwind.formats import write
from rubyunwind.formats.names import printable
from rubyunwind.profiler.sample import Sample

Post = Callable[[bytes], int]


@pytest.fixture
def collector(tool: Callable[[str], str], tmp_path: Path) -> Iterator[tuple[Post, Collector]]:
    """A Collector that runs, and what posts to it and gives the status."""
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    running = Collector(tool("collector"), tmp_path, free_port())

    def post(body: bytes) -> int:
        request = urllib.request.Request(
            f"{running.url}/v1development/profiles",
            data=body,
            headers={"Content-Type": "application/x-protobuf"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        running.start()
        yield post, running
    finally:
        running.stop()


def sent(collector: tuple[Post, Collector], folder: Path, samples: list[Sample]) -> str:
    """Post a profile, whose file is the request as it is, and return what the Collector prints of it."""
    post, running = collector
    path = folder / "profile.otlp"
    write(path, "otlp", samples, TOTALS, META)
    before = len(running.printed)
    assert post(path.read_bytes()) == 200
    return running.printed[before:]


def test_a_collector_takes_every_sample(collector: tuple[Post, Collector], tmp_path: Path) -> None:
    text = sent(collector, tmp_path, SAMPLES)
    values = [int(number) for row in re.findall(r"Values: \[([\d ]+)\]", text) for number in row.split()]
    assert len(values) == len(SAMPLES)
    assert sum(values) == total()
    for name in {frame.name for sample in SAMPLES for frame in sample.frames}:
        assert printable(name) in text
    assert set(re.findall(r"thread\.id: Int\((\d+)\)", text)) == {"70", "71", "80"}


def test_a_collector_takes_an_empty_profile(collector: tuple[Post, Collector], tmp_path: Path) -> None:
    # It answers that all is well, and does not trouble exporters with what has no samples.
    assert sent(collector, tmp_path, []) == ""


def test_a_collector_refuses_what_is_no_profile(collector: tuple[Post, Collector]) -> None:
    assert collector[0](b"garbage") == 400
