# SPDX-License-Identifier: Apache-2.0
"""A recording file is written while the recording goes on: it survives whatever happens to the recorder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rubyunwind.formats.jsonl_reader import read_jsonl
from rubyunwind.formats.recorded import Recorded
from rubyunwind.report.inputs import load

from .recorder import Record, until
from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")

SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"
SHORT = "def work = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 0.7)\nwork; exit 7"

SHORT_THEN_MARK = SHORT.replace("exit 7", "File.write('mark', '')")


def command(script: str) -> tuple[str, ...]:
    return ("--", RUBY, "--disable-gems", "-e", script)


def names(found: Recorded) -> set[str]:
    return {frame.name for stack in found.samples.stacks for frame in stack.frames}


@pytest.mark.parametrize("backend", ["bpf", "user"])
def test_it_holds_what_was_recorded(record: Record, tmp_path: Path, backend: str) -> None:
    recorder = record("-r", 199, "-o", "run.rubyunwind", *command(SHORT), backend=backend)
    assert recorder.wait() == 7
    assert "wrote run.rubyunwind (recording)" in recorder.err
    found = load(str(tmp_path / "run.rubyunwind"))
    assert found.notes == ()
    assert len(found.samples) == found.totals.read == recorder.samples_read >= 40
    assert "work" in {name.rpartition("#")[2] for name in names(found)}
    assert found.meta.backend == backend
    assert found.meta.rate == 199
    assert found.meta.duration > 0.5
    assert found.meta.command.startswith(RUBY)
    assert len(found.meta.runtimes) == 1


def test_it_holds_what_jsonl_would_hold(record: Record, tmp_path: Path) -> None:
    recorder = record("-r", 299, "-o", "run.rubyunwind", *command(SHORT))
    assert recorder.wait() == 7
    report = subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "report", "run.rubyunwind", "-f", "jsonl", "-o", "-"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (tmp_path / "again.jsonl").write_bytes(report.stdout)
    with (tmp_path / "again.jsonl").open("rb") as file:
        again = read_jsonl(file, "again")
    found = load(str(tmp_path / "run.rubyunwind"))

    def stacks(one: Recorded) -> Counter[object]:
        return Counter((s.timestamp, s.tid, s.frames, s.complete, s.weight) for s in one.samples)

    assert stacks(again) == stacks(found)
    assert again.totals.failed == tuple(
        pair for pair in found.totals.failed if pair[0] in dict(again.totals.failed)
    )


def test_it_survives_a_recorder_that_is_killed_up_to_the_last_second(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "run.rubyunwind"
    recorder = record("-r", 199, "-o", path, *command(SPIN))
    until(lambda: path.exists() and path.stat().st_size > 4000, "little is written while it goes on")
    killed = time.time_ns()
    recorder.process.send_signal(signal.SIGKILL)
    recorder.process.wait()
    found = load(str(path))
    assert len(found.notes) == 1
    assert "the recorder was killed or still records" in found.notes[0]
    assert len(found.samples) > 20
    assert killed - found.samples[-1].timestamp < 1_000_000_000
    assert found.totals.read == len(found.samples)
    assert "spin" in {name.rpartition("#")[2] for name in names(found)}
    recorder.end()  # the command, which goes on
    until(lambda: not recorder.left_behind(), "the command does not end")


def test_it_can_be_read_while_it_is_written(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "run.rubyunwind"
    recorder = record("-r", 199, "-o", path, *command(SPIN))
    until(lambda: path.exists() and path.stat().st_size > 1000, "nothing is written while it goes on")
    counts = []
    for _ in range(3):
        counts.append(len(load(str(path)).samples))
        time.sleep(1.2)
    assert counts == sorted(set(counts))  # more each time
    recorder.interrupt(group=True)
    recorder.wait()
    found = load(str(path))
    assert found.notes == ()
    assert len(found.samples) == recorder.samples_read > counts[-1]


def test_a_pipe_takes_it_to_a_report(record: Record, tmp_path: Path) -> None:
    recorder = record("-r", 199, "-f", "recording", "-o", "-", *command(SHORT))
    assert recorder.wait() == 7
    done = subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "report", "-", "-n", "0"],
        input=recorder.out,
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    assert f"samples: {recorder.samples_read} read" in done.stdout.decode()
    assert b"work" in done.stdout


def test_a_full_disk_ends_the_recording_in_words_but_not_the_command(record: Record) -> None:
    recorder = record("-o", "/dev/full", "-f", "recording", *command(SHORT_THEN_MARK))
    assert recorder.wait() == 1
    said = "rubyunwind: cannot write /dev/full: No space left on device; the recording ends here"
    assert said in recorder.err
    assert recorder.files == {"mark"}


def test_nothing_is_left_of_a_recording_that_did_not_begin(record: Record, tmp_path: Path) -> None:
    recorder = record("-o", "run.rubyunwind", "--", "/nowhere/at/all")
    assert recorder.wait() != 0
    assert recorder.files == set()


def test_a_file_that_was_there_is_replaced_by_a_shorter_one(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "run.rubyunwind"
    path.write_bytes(os.urandom(1 << 20))
    assert record("-r", 99, "-o", path, *command(SHORT)).wait() == 7
    assert load(str(path)).notes == ()
    assert path.stat().st_size < 1 << 19
