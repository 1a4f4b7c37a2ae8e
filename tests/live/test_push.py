# SPDX-License-Identifier: Apache-2.0
"""`record --push`: what is sampled arrives, whatever the receiver and the recorder go through meanwhile."""

from __future__ import annotations

import gzip
import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from receiver import Received, answer, drip, free_port, receiving
from rubyunwind import Exporter, Recording

from .recorder import Record, refused, ruby, until, weight
from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")
pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")

SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"
SHORT = "def work = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 2.5)\nwork; exit 7"
OFTEN = ("--push-every", "0.3")


def command(script: str) -> tuple[str, ...]:
    return ("--", RUBY, "--disable-gems", "-e", script)


def messages(requests: Iterable[Received]) -> list[Any]:
    from opentelemetry.proto.profiles.v1development.profiles_pb2 import ProfilesData

    return [ProfilesData.FromString(gzip.decompress(request.body)) for request in requests]


def leaves(requests: Iterable[Received]) -> Counter[str]:
    """Weights of OTLP requests by the name of the first Ruby frame, "" for none."""
    found: Counter[str] = Counter()
    for data in messages(requests):
        tables = data.dictionary
        ruby = set()
        for index, location in enumerate(tables.location_table):
            for at in location.attribute_indices:
                row = tables.attribute_table[at]
                key = tables.string_table[row.key_strindex]
                if key == "rubyunwind.frame.kind" and row.value.string_value == "ruby":
                    ruby.add(index)
        for resource in data.resource_profiles:
            for profile in resource.scope_profiles[0].profiles:
                for sample in profile.samples:
                    stack = tables.stack_table[sample.stack_index].location_indices
                    first = next((index for index in stack if index in ruby), None)
                    name = ""
                    if first is not None:
                        function = tables.location_table[first].lines[0].function_index
                        name = tables.string_table[tables.function_table[function].name_strindex]
                    found[name] += sum(sample.values)
    return found


def test_what_was_sampled_arrives(record: Record) -> None:
    with receiving() as receiver:
        recorder = record(
            "-r", 199, "--push", "--push-attribute", "team=a", *OFTEN, *command(SHORT),
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "shop"},
        )  # fmt: skip
        assert recorder.wait() == 7
    read = recorder.samples_read
    assert read >= 100  # of 500
    found = leaves(receiver.taken)
    assert found.total() == read
    assert found["Object#work"] > read / 2
    assert len(receiver.taken) >= 3
    assert f"pushed {read} samples in {len(receiver.taken)} requests" in recorder.err
    assert "not pushed" not in recorder.err
    assert recorder.files == set()
    for data in messages(receiver.taken):
        for resource in data.resource_profiles:
            attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            assert attributes["service.name"] == "shop"
            assert attributes["team"] == "a"


def test_a_file_is_written_as_well_if_it_is_asked_for(record: Record, tmp_path: Path) -> None:
    with receiving() as receiver:
        url = f"{receiver.url}/ingest"
        recorder = record("-r", 199, "--push", url, "-o", "out.jsonl", *OFTEN, *command(SHORT))
        assert recorder.wait() == 7
    assert weight((tmp_path / "out.jsonl").read_bytes(), "jsonl") == recorder.samples_read
    assert f"pushed {recorder.samples_read} samples" in recorder.err
    for request in receiver.taken:
        assert request.target.startswith("/ingest?name=rubyunwind%7Bhost.name%3D")
        assert b"Object#work" in gzip.decompress(request.body)


def test_a_receiver_that_comes_late_and_goes_in_between_gets_everything(
    record: Record, tmp_path: Path
) -> None:
    port = free_port()
    recorder = record(
        "-r", 199, "--push", f"http://127.0.0.1:{port}", "--spool", tmp_path / "spool", *OFTEN, *command(SPIN)
    )
    until(lambda: len([*(tmp_path / "spool").glob("*.otlp")]) >= 2, "nothing is spooled")
    with receiving(port=port) as first:
        until(lambda: len(first.taken) >= 2, "nothing arrives")
    with receiving([answer(503)], port=port) as second:
        until(lambda: len(second.taken) >= 2, "nothing arrives again")
        recorder.interrupt(group=False)
        recorder.wait()
    assert leaves(first.taken + second.taken).total() == recorder.samples_read
    assert "Connection refused" in recorder.err
    assert "it takes profiles again" in recorder.err
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["lock"]


def test_a_receiver_that_drips_does_not_hold_sampling_nor_the_end(record: Record, tmp_path: Path) -> None:
    with receiving(usually=drip) as receiver:
        recorder = record(
            "-r", 199, "--push", receiver.url, "--spool", tmp_path / "spool", *OFTEN, *command(SHORT)
        )
        assert recorder.wait() == 7
    read = recorder.samples_read
    assert read >= 100
    assert " 0 lost" in recorder.err
    assert f"{read} samples in " in recorder.err
    assert "wait in the spool" in recorder.err
    # All of it is there for the next one.
    with receiving() as receiver:
        again = record("--push", receiver.url, "--spool", tmp_path / "spool", *command("exit"))
        assert again.wait() == 0
        assert f"{read} samples of an earlier run wait in the spool" in again.err
    assert leaves(receiver.taken).total() == read + again.samples_read


def test_what_a_killed_recorder_has_spooled_is_sent_by_the_next(record: Record, tmp_path: Path) -> None:
    spool, nowhere = tmp_path / "spool", f"http://127.0.0.1:{free_port()}"
    recorder = record("-r", 199, "--push", nowhere, "--spool", spool, *OFTEN, *command(SPIN))
    until(lambda: len([*spool.glob("*.otlp")]) >= 3, "nothing is spooled")
    recorder.process.send_signal(signal.SIGKILL)
    recorder.process.wait()
    for pid in recorder.left_behind():
        os.kill(pid, signal.SIGKILL)
    with receiving() as receiver:
        again = record("--push", receiver.url, "--spool", spool, *command("exit"))
        assert again.wait() == 0
    assert leaves(receiver.taken)["Object#spin"] >= 20


def test_everything_that_runs_is_pushed_until_ctrl_c(record: Record) -> None:
    with receiving() as receiver, ruby("nil while true"):
        recorder = record("-a", "-r", 49, "--push", receiver.url, *OFTEN)
        until(lambda: len(receiver.taken) >= 3, "nothing arrives")
        recorder.interrupt(group=False)
        assert recorder.wait() == 0
    assert leaves(receiver.taken).total() == recorder.samples_read


def test_an_exporter_is_a_sink_of_a_recording() -> None:
    with receiving() as receiver:
        recording = Recording(command=[RUBY, "--disable-gems", "-e", SHORT], rate=199, backend="bpf")
        with Exporter(receiver.url, every=1e6) as exporter, recording:
            profile = recording.run(sinks=[exporter], keep=False)
            assert exporter.flush(30)
            assert exporter.stats.sent == profile.totals.read >= 100
        assert len(profile.samples) == 0
        assert leaves(receiver.taken).total() == profile.totals.read


def test_two_recordings_do_not_share_a_spool(record: Record, tmp_path: Path) -> None:
    with receiving() as receiver:
        options = ("--push", receiver.url, "--spool", tmp_path / "spool")
        first = record("-a", *options)
        until(lambda: (tmp_path / "spool" / "lock").exists(), "there is no lock")
        first.await_recording()
        second = record(*options, "--", "touch", tmp_path / "ran")
        assert second.wait() == 1
        assert f"process {first.process.pid} does" in second.err
        assert not (tmp_path / "ran").exists()
        first.interrupt(group=False)
        assert first.wait() == 0


def test_a_url_that_makes_no_sense_is_refused_before_the_command_runs(record: Record, tmp_path: Path) -> None:
    refused(
        record("--push", "host:4318", "--", "touch", tmp_path / "ran"), "the receiver's URL cannot be used"
    )
    refused(record("--push", "--", "touch", tmp_path / "ran"), "no receiver is named")
    refused(record("--spool", "x", "--", "touch", tmp_path / "ran"), "go with --push", status=2)
    refused(
        record("--push", "http://h", "--spool-size", "much", "--", "touch", tmp_path / "ran"),
        "--spool-size 'much'",
        status=2,
    )
