# SPDX-License-Identifier: Apache-2.0
"""How `rubyunwind record` ends: something is killed, Ctrl-C, SIGTERM, a reader that goes away."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .recorder import Record, hear, labels, read_jsonl, ruby, until, weight
from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")

RATE = ("-r", 299)
SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"


def command_of(folder: Path) -> int:
    """Wait until the command has written its pid into the folder."""
    path = folder / "pid"
    until(lambda: path.exists() and path.read_text(), "the command does not start")
    return int(path.read_text())


def burn(pid: int, seconds: float) -> None:
    """Wait until a process has used so much CPU time from now on."""

    def used() -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    goal = used() + seconds * os.sysconf("SC_CLK_TCK")
    until(lambda: used() >= goal, f"process {pid} does not use its CPU time")


def test_a_target_that_is_killed_ends_the_recording_which_is_written(record: Record, tmp_path: Path) -> None:
    with ruby(SPIN) as target:
        hear(target)
        recorder = record(*RATE, "-o", "profile.jsonl", "-p", target.pid)
        recorder.await_recording()
        burn(target.pid, 0.3)
        target.kill()
        assert recorder.wait() == 0
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert len(samples) == recorder.samples_read >= 20
    assert sum("spin" in labels(sample) for sample in samples) >= 0.9 * len(samples)


def test_a_command_that_is_killed_gives_its_signal_and_is_written(record: Record, tmp_path: Path) -> None:
    script = "def spin = (nil while true)\nFile.write('pid', $$.to_s); spin"
    recorder = record(*RATE, "-o", "profile.jsonl", "--", RUBY, "--disable-gems", "-e", script)
    burn(command_of(tmp_path), 0.3)
    os.kill(command_of(tmp_path), signal.SIGKILL)
    assert recorder.wait() == 137
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert len(samples) == recorder.samples_read >= 20
    assert sum("spin" in labels(sample) for sample in samples) >= 0.8 * len(samples)


@pytest.mark.parametrize("group", [True, False], ids=["terminal", "recorder-only"])
def test_ctrl_c_ends_a_command_and_writes_what_was_gathered(
    record: Record, tmp_path: Path, group: bool
) -> None:
    script = "def spin = (nil while true)\nFile.write('pid', $$.to_s); spin"
    recorder = record(*RATE, "-o", "profile.folded", "--", RUBY, "--disable-gems", "-e", script)
    burn(command_of(tmp_path), 0.3)
    recorder.interrupt(group=group)
    assert recorder.wait() == 130
    assert weight((tmp_path / "profile.folded").read_bytes(), "folded") == recorder.samples_read >= 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_ends_the_recording_of_a_process_which_goes_on(
    record: Record, tmp_path: Path, number: signal.Signals
) -> None:
    with ruby(SPIN) as target:
        hear(target)
        recorder = record(*RATE, "-o", "profile.folded", "-p", target.pid)
        recorder.await_recording()
        burn(target.pid, 0.3)
        os.kill(recorder.process.pid, number)
        assert recorder.wait() == 0
        assert target.poll() is None
    assert weight((tmp_path / "profile.folded").read_bytes(), "folded") == recorder.samples_read >= 20


def test_a_second_ctrl_c_quits_though_the_command_ignores_it(record: Record, tmp_path: Path) -> None:
    script = "trap('INT', 'IGNORE'); File.write('pid', $$.to_s); sleep"
    recorder = record("-o", "profile.folded", "--", RUBY, "--disable-gems", "-e", script)
    command_of(tmp_path)
    recorder.interrupt(group=True)
    until(lambda: "wrote profile.folded" in recorder.err, "the first Ctrl-C does not end the recording")
    assert recorder.process.poll() is None
    recorder.interrupt(group=True)
    assert recorder.process.wait(2) == 130
    until(lambda: not recorder.left_behind(), "the command goes on")


def test_a_command_that_ignores_ctrl_c_is_ended_after_a_while(record: Record, tmp_path: Path) -> None:
    script = "trap('INT', 'IGNORE'); File.write('pid', $$.to_s); sleep"
    recorder = record("-o", "profile.folded", "--", RUBY, "--disable-gems", "-e", script)
    command_of(tmp_path)
    recorder.interrupt(group=True)
    assert recorder.wait() == 143


def test_after_the_duration_the_command_goes_on_and_is_waited_for(record: Record, tmp_path: Path) -> None:
    script = "File.write('pid', $$.to_s); sleep 0.05 until File.exist?('go'); exit 5"
    recorder = record("-d", 0.1, "-o", "profile.folded", "--", RUBY, "--disable-gems", "-e", script)
    command_of(tmp_path)
    until(lambda: "the command still runs" in recorder.err, "the recording does not end")
    assert (tmp_path / "profile.folded").exists()
    (tmp_path / "go").touch()
    assert recorder.wait() == 5


def test_a_reader_that_has_seen_enough_is_no_error(record: Record, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    recorder = record(*RATE, "-f", "flamegraph", "-o", "pipe", "--", "sh", "-c", "exit 7")
    until(lambda: f"{tmp_path}/pipe" in recorder.links(), "the recorder does not open its output")
    os.close(reader)
    assert recorder.wait() == 7
    assert "Broken pipe" not in recorder.err


def test_ctrl_c_before_the_recording_began_leaves_nothing(record: Record) -> None:
    recorder = record("-o", "profile.folded", "--", "sleep", "60")
    until(lambda: "anon_inode:bpf-map" in recorder.links(), "the recorder loads nothing")
    recorder.interrupt(group=True)
    # Should it have begun just then, the command is ended as at any other time.
    assert recorder.wait() == 130, recorder.err
    if "before the recording began" in recorder.err:
        assert recorder.files == set()
