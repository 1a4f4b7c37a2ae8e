# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind top` on a terminal, over real Ruby: what is shown, what keys do, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .recorder import hear, process, ruby
from .screen import Screened
from .spinning import PATIENCE, RUBY, spinning

pytestmark = pytest.mark.usefixtures("bpf")

SPIN = "puts; $stdout.flush; def spin = (nil while true)\ndef caller_of_spin = spin\ncaller_of_spin"
SPIN_FOR = "def spin = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < {})\nspin"
TOP = ("top", "--interval", 0.2, "-r", 199)


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    with ruby(SPIN) as started:
        hear(started)
        yield started


@pytest.fixture
def top(target: subprocess.Popen[str]) -> Iterator[Screened]:
    with Screened(*TOP, "-p", target.pid) as screened:
        screened.wait_for_row("spin", 0)
        yield screened


# What it shows


def test_the_hottest_method_is_first_and_everything_adds_up(top: Screened) -> None:
    row = top.wait_for_row("spin", 0)
    assert float(row[0]) > 90
    assert float(row[1]) <= 100
    assert top.wait_for_row("caller_of_spin")[1] == "100.0"
    assert re.search(r"\d+ samples in 0:00:\d\d, now \d+\.\d/s; 0 lost, \d+ incomplete", top.text)
    assert "199 Hz, bpf" in top.text
    own = sum(float(row[0]) for row in top.rows)
    assert own == pytest.approx(100, abs=0.06 * len(top.rows))
    assert top.screen.display[-1].startswith("q quit")


def test_threads_are_told_apart_and_can_be_entered() -> None:
    with (
        spinning("two_spinning_threads.rb", threads=2) as program,
        Screened(*TOP, "-p", program.pid) as top,
    ):
        tids = [str(tid) for tid, _ in program.stacks]
        top.wait_for_row("first_spinner")
        top.type("v")
        for tid in tids:
            top.wait_for_row(tid)
        shares = {row[5]: float(row[1]) for row in top.rows}
        assert sum(shares.values()) == pytest.approx(100, abs=0.2)
        top.type("/" + tids[0] + "\r\x1b[B\r")
        top.wait_for(f"methods of thread {tids[0]}")
        text = top.text
        spinner = program.stacks[0][1][0][2].rpartition(" ")[2]  # a block's name has its class in it
        assert spinner in text
        assert sum(name in text for name in ("first_spinner", "second_spinner")) == 1
        top.type("\x1b")
        top.wait_for_row("second_spinner")
        top.wait_for_row("first_spinner")


# A path may hold anything, a name all that is no ASCII; a thread's name is its comm.
HOSTILE = r"""# encoding: utf-8
Thread.current.name = "\e[7mcomm\a"
path = "/\e[31mred\e]0;owned\a\u2066.rb"
eval("def spin\u202e名前e\u0301 = (puts \"up\"; $stdout.flush; nil while true)", nil, path, 7)
Thread.new { Thread.current.name = "\e]2;th\a"; spin\u202e名前e\u0301 }.join
"""


def test_hostile_names_are_shown_escaped(tmp_path: Path) -> None:
    script = tmp_path / "hostile.rb"
    script.write_text(HOSTILE.replace("\\u202e名", "\u202e名").replace("e\\u0301", "e\u0301"))
    with process(RUBY, "--disable-gems", str(script)) as started:
        hear(started)
        with Screened(*TOP, "-p", started.pid, columns=160) as top:
            top.wait_for("Object#spin\\u202e名")
            top.wait_for("/\\x1b[31mred\\x1b]0;owned\\x07\\u2066.rb:7")
            top.type("v")
            top.wait_for("\\x1b]2;th\\x07")
            for raw in (b"\x07", b"\x1b]", b"\x1b[31mred", "\u202e".encode(), "\u2066".encode()):
                assert raw not in top.raw
            assert top.screen.title == ""


def test_no_color_is_respected(target: subprocess.Popen[str]) -> None:
    sent = {}
    for value in ("", "1"):
        with Screened(*TOP, "-p", target.pid, env={"NO_COLOR": value}) as top:
            top.wait_for_row("spin", 0)
            sent[value] = top.raw
    coloured = re.compile(rb"\x1b\[(?:\d+;)*(?:3|4|9|10)[0-7]m")
    assert coloured.search(sent[""])
    assert not coloured.search(sent["1"])


def test_only_what_changed_is_sent_and_nothing_is_erased_before(top: Screened) -> None:
    before = len(top.raw)
    top.until(lambda: len(top.raw) > before + 2000, "it does not go on")
    assert b"\x1b[2J" not in top.raw[before:]
    assert b"\x1b[1;1H" not in top.raw[before:]  # the title stays


# Keys


def test_keys_change_the_table(top: Screened) -> None:
    assert "methods, by self now" in top.text
    top.type("t")
    top.wait_for("methods, by total now")
    top.type("a")
    top.wait_for("by total of all")
    top.type("n")
    top.wait_for("with native")
    top.type("n")
    top.until(lambda: "with native" not in top.text, "native frames are still on")
    top.type("?")
    top.wait_for("count anew")
    top.type("x")
    top.wait_for_row("caller_of_spin")
    top.type("v")
    top.wait_for("threads, by cpu")
    top.type("v")
    top.wait_for("processes, by cpu")
    top.type("v")
    top.wait_for("methods, by")


def test_native_frames_are_shown_when_asked_for(top: Screened) -> None:
    assert not [row for row in top.rows if "N" in row]
    top.type("n")
    top.until(lambda: [row for row in top.rows if "N" in row], "no native frame appears")


def test_a_filter_is_typed_and_cleared(top: Screened) -> None:
    top.type("/caller")
    top.wait_for("/caller_")
    top.until(lambda: [row[6] for row in top.rows] == ["Object#caller_of_spin"], "the filter does nothing")
    top.type("\r")
    top.wait_for("match 'caller'")
    top.type("\x1b")
    top.wait_for_row("spin", 0)


def test_a_pause_stands_still_and_counts_on(top: Screened) -> None:
    top.type(" ")
    top.wait_for("PAUSED")
    count = int(top.wait_for_row("spin", 0)[4])
    end = time.monotonic() + 1
    while time.monotonic() < end:
        top.read()
    assert int(top.wait_for_row("spin", 0)[4]) == count
    top.type(" ")
    top.until(lambda: "PAUSED" not in top.text, "it stays paused")
    # What came meanwhile is there at once.
    assert int(top.wait_for_row("spin", 0)[4]) >= count + 50


def test_reset_counts_anew(top: Screened) -> None:
    top.until(lambda: int(top.rows[0][4]) > 300, "it does not count")
    top.type("r")
    top.until(lambda: top.rows and int(top.rows[0][4]) < 150, "it does not count anew")
    assert int(top.screen.display[1].split()[0]) < 200


@pytest.mark.parametrize(("columns", "lines"), [(132, 43), (40, 10), (20, 5), (200, 60)])
def test_a_new_size_is_taken_up(top: Screened, columns: int, lines: int) -> None:
    top.resize(columns, lines)
    top.until(lambda: top.screen.display[-1].startswith("q quit"), "the last line is not at the bottom")
    if lines >= 10:
        top.wait_for_row("spin", 0)
    assert len([line for line in top.screen.display if "q quit" in line]) == 1
    top.type("q")
    assert top.wait() == 0
    assert top.as_before


# Leaving


def test_the_terminal_is_taken_while_it_runs(top: Screened) -> None:
    assert top.on_alternate_screen
    assert not top.as_before


@pytest.mark.parametrize(
    ("keys", "status"), [("q", 0), (b"\x03", 0), (b"\x1c", 131)], ids=["q", "Ctrl-C", "Ctrl-backslash"]
)
def test_keys_leave_the_terminal_as_it_was(top: Screened, keys: str | bytes, status: int) -> None:
    top.type(keys)
    assert top.wait() == status
    assert top.as_before
    assert re.search(r"rubyunwind: \d+ samples in .* whole", top.text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_signals_leave_the_terminal_as_it_was(top: Screened, number: signal.Signals) -> None:
    top.kill(number)
    assert top.wait() == (0 if number == signal.SIGINT else 128 + number)
    assert top.as_before


def test_two_signals_at_once_leave_the_terminal_as_it_was(top: Screened) -> None:
    top.kill(signal.SIGTERM)
    top.kill(signal.SIGINT)
    # By the second signal itself, should it come when Python has already put its handlers away.
    assert top.wait() in (0, 130, 143, -signal.SIGINT)
    assert top.as_before


def test_keys_that_came_too_late_are_not_left_for_the_shell(top: Screened) -> None:
    top.type("qrm -rf\r")
    top.wait()
    assert top.as_before
    assert "rm -rf" not in top.text


def test_the_targets_end_leaves_the_terminal_and_a_table(
    top: Screened, target: subprocess.Popen[str]
) -> None:
    target.kill()
    target.wait()
    assert top.wait() == 0
    assert top.as_before
    assert float(top.wait_for_row("spin", 0)[2]) > 90  # in what is left on the normal screen
    assert re.search(r"rubyunwind: \d+ samples in", top.text)


def test_after_the_duration_it_ends(target: subprocess.Popen[str]) -> None:
    with Screened(*TOP, "-d", 1, "-p", target.pid) as top:
        assert top.wait() == 0
        assert b"\x1b[?1049h" in top.raw
        assert top.as_before


# What a fault in the middle of it leaves.
BROKEN = """
from rubyunwind.cli.live import session
calls = []
def broken(*arguments):
    calls.append(1)
    if len(calls) > 3:
        raise RuntimeError("a fault of ours")
    return drawn(*arguments)
drawn, session.render = session.render, broken
from rubyunwind.cli.main import main
main()
"""


def test_an_exception_leaves_the_terminal_as_it_was(target: subprocess.Popen[str]) -> None:
    with Screened(*TOP, "-p", target.pid, program=("-c", BROKEN)) as top:
        assert top.wait() == 1
        assert b"\x1b[?1049h" in top.raw
        assert top.as_before
        assert "RuntimeError: a fault of ours" in top.text


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(top: Screened) -> None:
    for stops in (1, 2):
        top.type(b"\x1a")
        top.wait_for_stop(stops)
        top.until(lambda: top.as_before, "the terminal is not given back")
        top.foreground()
        top.until(lambda: top.on_alternate_screen, "the terminal is not taken again")
        top.wait_for_row("spin", 0)
    top.type("q")
    assert top.wait() == 0
    assert top.as_before


def test_in_the_background_it_leaves_the_terminal_alone(top: Screened) -> None:
    top.type(b"\x1a")
    top.wait_for_stop()
    top.until(lambda: top.as_before, "the terminal is not given back")
    top.background()
    top.wait_for_stop(2)  # it needs the terminal, so it stops again
    assert top.as_before
    top.kill(signal.SIGTERM)
    top.background()
    assert top.wait() == 143
    assert top.as_before


def test_a_terminal_that_goes_away_ends_it(top: Screened) -> None:
    top.hang_up()
    assert top.wait_unread() == 129


def test_a_terminal_that_takes_nothing_more_does_not_keep_it_from_ending(top: Screened) -> None:
    # Nobody reads from here on: the terminal's buffer fills up, at the latest by these keys.
    end = time.monotonic() + 3
    while time.monotonic() < end:
        top.type("n")
        time.sleep(0.01)
    top.kill(signal.SIGTERM)
    assert top.wait_unread() == 143


# Commands


def test_a_command_is_kept_off_the_terminal_and_heard_afterwards() -> None:
    script = f"puts 'heard ' * 2; $stderr.puts $stdin.read.inspect, $stdout.isatty; {SPIN}"
    with Screened(*TOP, "--", RUBY, "--disable-gems", "-e", script) as top:
        top.wait_for_row("spin", 0)
        assert b"heard heard" not in top.raw
        top.type("q")
        assert top.wait() == 130
        assert top.as_before
        for text in ("heard heard", '""', "false"):
            assert text in top.text
        assert "Interrupt" in top.text  # it was ended as by Ctrl-C, and says so


def test_a_commands_end_is_ours() -> None:
    with Screened(*TOP, "--", RUBY, "--disable-gems", "-e", f"{SPIN_FOR.format(0.7)}; exit 7") as top:
        assert top.wait() == 7
        assert top.as_before
        assert top.wait_for_row("spin")


def test_ctrl_z_stops_the_command_too() -> None:
    with Screened(*TOP, "--", RUBY, "--disable-gems", "-e", SPIN) as top:
        top.wait_for_row("spin", 0)
        top.type(b"\x1a")
        top.wait_for_stop()
        children = Path(f"/proc/{top.pid}/task/{top.pid}/children").read_text().split()
        states = [Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][0] for child in children]
        assert states == ["T"]
        top.foreground()
        top.until(lambda: top.on_alternate_screen, "the terminal is not taken again")
        top.type("q")
        assert top.wait() == 130
        assert top.as_before


def test_a_command_that_does_not_exist_leaves_the_terminal_alone() -> None:
    with Screened(*TOP, "--", "no-such-command") as top:
        assert top.wait() == 127
        assert b"\x1b" not in top.raw
        assert "cannot run no-such-command" in top.text


# Without a terminal


def run(*words: str | int, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "top", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )


def test_once_is_one_plain_table(target: subprocess.Popen[str]) -> None:
    done = run("--once", "-p", target.pid)
    assert done.returncode == 0
    title, totals, _, head, first, *_ = done.stdout.splitlines()
    assert title.startswith(f"rubyunwind top: pid {target.pid} (ruby ")
    assert totals.endswith("incomplete") or "incomplete (" in totals
    assert head.split() == ["self", "total", "self", "total", "samples", "method", "where"]
    assert first.split()[5:7] == ["R", "Object#spin"]
    assert float(first.split()[0]) > 90
    assert "\x1b" not in done.stdout + done.stderr


def test_n_plain_tables_of_their_own_interval(target: subprocess.Popen[str]) -> None:
    done = run("-n", 3, "--interval", 0.4, "-p", target.pid, "--rows", 1, "-r", 199)
    tables = done.stdout.split("\n\n")
    assert len(tables) == 3
    counts = [int(table.splitlines()[4].split()[4]) for table in tables]
    assert counts[0] < counts[1] < counts[2]
    assert re.search(r"\.\.\. and \d+ more rows", done.stdout)


def test_a_pipe_gets_plain_tables_until_the_target_ends() -> None:
    with ruby(f"puts; $stdout.flush; {SPIN_FOR.format(1)}") as target:
        hear(target)
        done = run("--interval", 0.2, "-p", target.pid)
    assert done.returncode == 0
    assert done.stdout.count("rubyunwind top:") >= 2
    # What came after the last whole interval is in the last table.
    last = done.stdout.split("\n\n")[-1]
    read = int(last.splitlines()[1].split()[0])
    own = sum(
        int(row.split()[4]) * float(row.split()[2]) / float(row.split()[3]) for row in last.splitlines()[4:]
    )
    assert own == pytest.approx(read, rel=0.05)


def test_a_reader_that_has_seen_enough_ends_it(target: subprocess.Popen[str]) -> None:
    top = subprocess.Popen(
        [sys.executable, "-m", "rubyunwind.cli.main", "top", "--interval", "0.2", "-p", str(target.pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert top.stdout is not None
    assert top.stderr is not None
    assert top.stdout.readline().startswith(b"rubyunwind top")
    top.stdout.close()
    assert top.wait(PATIENCE) == 0
    assert b"Traceback" not in top.stderr.read()
    top.stderr.close()


@pytest.mark.parametrize(
    ("env", "text"), [({"TERM": "dumb"}, "cannot move its cursor"), ({"TERM": ""}, "cannot move its cursor")]
)
def test_a_dumb_terminal_gets_plain_tables_and_is_told(
    target: subprocess.Popen[str], env: dict[str, str], text: str
) -> None:
    with Screened(*TOP, "-d", 1, "-p", target.pid, env=env) as top:
        assert top.wait() == 0
        assert b"\x1b" not in top.raw
        assert text.encode() in top.raw
        assert b"spin" in top.raw
        assert top.as_before


def test_a_full_disk_is_told(target: subprocess.Popen[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rubyunwind.cli.main", "top", "--once", "-p", str(target.pid)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1
    assert "cannot write to stdout: No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "one of them"),
        (("-p", 1, "--", "true"), "one of them"),
        (("--interval", 0, "-p", 1), "not in the range"),
        (("-n", 0, "-p", 1), "not in the range"),
        (("--sort", "name", "-p", 1), "is not one of"),
        (("--unwinder", "chain", "--backend", "user", "-p", 1), "--backend user has none"),
    ],
)
def test_words_that_make_no_sense_are_a_usage_error(words: tuple[str | int, ...], text: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert text in done.stderr


def test_from_user_space_it_works_alike(target: subprocess.Popen[str]) -> None:
    with Screened(*TOP, "--backend", "user", "-p", target.pid) as top:
        top.wait_for_row("spin", 0)
        assert "199 Hz, user" in top.text
        top.type("q")
        assert top.wait() == 0
        assert top.as_before


def test_it_leaves_no_file_behind(tmp_path: Path) -> None:
    with Screened(*TOP, "--", RUBY, "-e", SPIN, env={"TMPDIR": str(tmp_path)}) as top:
        top.wait_for_row("spin", 0)
        assert os.listdir(tmp_path) == []  # noqa: PTH208
        top.type("q")
        top.wait()
