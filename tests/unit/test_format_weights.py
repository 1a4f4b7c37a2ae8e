# SPDX-License-Identifier: Apache-2.0
"""Each format gives back every sample: its whole stack, weight and thread, and its time where it has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from format_readers import (
    Key,
    Shown,
    path_of,
    read_callgrind,
    read_firefox,
    read_otlp,
    read_pprof,
    read_speedscope,
    written,
)
from hypothesis import given, settings
from profile_strategies import mixed_profiles

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.profiler.samples import Samples

META = Meta("a title", "ruby a.rb", 1_700_000_000_000_000_000, 10.0, 99.0, ("ruby 3.1.2",))


def expected(
    samples: Iterable[Sample], shown: Callable[[Frame], Shown], *, with_pid: bool = True
) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for sample in samples:
        stack = tuple(map(shown, path_of(sample)))
        found[Key(sample.pid if with_pid else 0, sample.tid, sample.unit, stack)] += sample.weight
    return found


def by_unit(samples: Iterable[Sample]) -> dict[str, int]:
    sums = {"samples": 0, "ns": 0}
    for sample in samples:
        sums[sample.unit] += sample.weight
    return sums


def of_units(stacks: Counter[Key]) -> dict[str, int]:
    sums = {"samples": 0, "ns": 0}
    for key, weight in stacks.items():
        sums[key.unit] += weight
    return sums


def in_speedscope(frame: Frame) -> Shown:
    return Shown(frame.name, line=frame.line or None, module=frame.path or frame.module or f"[{frame.kind}]")


def in_pprof(frame: Frame) -> Shown:
    module = frame.module or f"[{frame.kind}]"
    return Shown(
        frame.name,
        path=frame.path or None,
        line=frame.line or None,
        module=module,
        address=frame.offset or None,
    )


def in_firefox(frame: Frame) -> Shown:
    return Shown(
        frame.name,
        frame.kind,
        frame.path or None,
        frame.line or None,
        frame.module or None,
        frame.offset,
    )


def in_otlp(frame: Frame) -> Shown:
    return Shown(
        frame.name or "???",
        frame.kind,
        frame.path or None,
        frame.line or None,
        frame.module or None,
        frame.offset or None,
    )


@given(mixed_profiles)
@settings(max_examples=100)
def test_speedscope_gives_back_every_stack(profile: list[Sample]) -> None:
    stacks, file = read_speedscope(written("speedscope", profile, meta=META))
    assert stacks == expected(profile, in_speedscope, with_pid=False)
    assert of_units(stacks) == by_unit(profile)
    threads = {(sample.pid, sample.tid, sample.unit, sample.container) for sample in profile}
    assert len(file["profiles"]) == max(1, len(threads))


@given(mixed_profiles)
@settings(max_examples=100)
def test_pprof_gives_back_every_stack(profile: list[Sample]) -> None:
    read = read_pprof(written("pprof", profile, meta=META))
    assert read.stacks == expected(profile, in_pprof)
    sums = by_unit(profile)
    assert read.values.get("samples", 0) == sums["samples"]
    assert read.values.get("off_cpu", 0) == sums["ns"]
    if "cpu" in read.values and sums["samples"] < 10**11:
        assert read.values["cpu"] == sums["samples"] * round(1e9 / 99)


@given(mixed_profiles)
@settings(max_examples=100)
def test_firefox_gives_back_every_stack_with_its_times(profile: list[Sample]) -> None:
    stacks, file = read_firefox(written("firefox", profile, meta=META))
    assert stacks == expected(profile, in_firefox)
    assert of_units(stacks) == by_unit(profile)
    start = file["meta"]["startTime"]
    times = sorted(
        start * 10**6 + round(time * 10**6)
        for thread in file["threads"]
        for time in thread["samples"]["time"]
    )
    assert times == sorted(sample.timestamp for sample in profile)


@given(mixed_profiles)
@settings(max_examples=100)
def test_otlp_gives_back_every_sample_with_its_time(profile: list[Sample]) -> None:
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    read = read_otlp(written("otlp", profile, meta=META))
    assert read.stacks == expected(profile, in_otlp)
    assert of_units(read.stacks) == by_unit(profile)
    assert sorted((key.tid, time, weight) for key, time, weight in read.observations) == sorted(
        (sample.tid, sample.timestamp, sample.weight) for sample in profile
    )
    containers: Counter[str | None] = Counter()
    for sample in profile:
        containers[sample.container] += sample.weight
    assert read.containers == dict(containers)


@given(mixed_profiles)
@settings(max_examples=100)
def test_callgrind_gives_back_what_each_line_cost_and_each_call(profile: list[Sample]) -> None:
    several = len({sample.pid for sample in profile}) > 1
    own: Counter[object] = Counter()
    calls: Counter[object] = Counter()

    def place(frame: Frame) -> tuple[str, str, str]:
        return (frame.module or f"[{frame.kind}]", frame.path or "???", frame.name or "???")

    comms: dict[int, str] = {}
    for sample in profile:
        if sample.pid not in comms or sample.pid == sample.tid:
            comms[sample.pid] = sample.comm
    for sample in profile:
        path = [(place(frame), frame.line or 0) for frame in path_of(sample)]
        if several:
            path.insert(0, (("[process]", "???", f"{comms[sample.pid]} ({sample.pid})"), 0))
        own[(sample.unit, *path[-1])] += sample.weight
        edges: dict[object, object] = {}
        for (caller, line), (callee, _) in pairwise(path):
            edges.setdefault((caller, callee), (sample.unit, caller, line, callee))
        for edge in edges.values():
            calls[edge] += sample.weight
    read = read_callgrind(written("callgrind", profile, meta=META))
    assert +read.own == own
    assert +read.calls == calls
    assert {unit: read.totals.get(unit, 0) for unit in ("samples", "ns")} == by_unit(profile)
    assert sum(read.own.values()) == sum(sample.weight for sample in profile)


def test_samples_in_columns_are_written_as_those_in_a_list() -> None:
    frames = (Frame("ruby", "a", path="/a.rb", line=3), Frame("native", "b", module="/b.so", offset=16))
    some = [
        Sample(1_700_000_000_000_000_000 + number, 1, 1 + number % 2, "ruby", frames[: 1 + number % 2])
        for number in range(20)
    ]
    for format_ in ("speedscope", "pprof", "callgrind", "firefox"):
        assert written(format_, Samples(some), meta=META) == written(format_, some, meta=META)
        assert written(format_, iter(some), meta=META) == written(format_, some, meta=META)
