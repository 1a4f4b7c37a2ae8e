# SPDX-License-Identifier: Apache-2.0
"""The terminal that a live table is on, in a pseudo-terminal; and where a command writes meanwhile."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from rubyunwind.cli.live import command_output
from rubyunwind.cli.live.command_output import CommandOutput
from rubyunwind.cli.live.screen import Line, Size
from rubyunwind.cli.live.terminal import Terminal
from rubyunwind.cli.live.watch import since
from rubyunwind.profiler.sample import Totals

SIZE = Size(20, 3)
LINES = [Line("title", "title"), Line("a row", "ruby"), Line("foot")]


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def sent(master: int) -> bytes:
    found = b""
    while select.select([master], [], [], 0.05)[0]:
        found += os.read(master, 65536)
    return found


def test_it_is_given_back_as_it_was(pair: tuple[int, int]) -> None:
    master, slave = pair
    before = termios.tcgetattr(slave)
    with Terminal(slave, slave, colours=True) as terminal:
        assert terminal.taken
        during = termios.tcgetattr(slave)
        assert not during[3] & (termios.ICANON | termios.ECHO)
        assert during[3] & termios.ISIG
        os.write(master, b"k\r\x13")
        assert terminal.read() == b"k\r\x13"  # neither Enter nor Ctrl-S is the terminal's own
        terminal.give_back()
        assert termios.tcgetattr(slave) == before
        terminal.take()
    assert termios.tcgetattr(slave) == before
    out = sent(master)
    assert out.startswith(b"\x1b[?1049h")
    assert out.endswith(b"\x1b[?1049l")
    assert out.count(b"\x1b[?1049h") == out.count(b"\x1b[?1049l") == 2
    assert os.get_blocking(slave)  # the shell's description is not touched


def test_only_lines_that_changed_are_sent(pair: tuple[int, int]) -> None:
    master, slave = pair
    with Terminal(slave, slave, colours=True) as terminal:
        assert terminal.draw(LINES, SIZE)
        first = sent(master)
        for text in (b"title", b"a row", b"foot"):
            assert text in first
        assert terminal.draw(LINES, SIZE)
        assert sent(master) == b""
        assert terminal.draw([LINES[0], Line("other", "cfunc"), LINES[2]], SIZE)
        assert sent(master) == b"\x1b[2;1H\x1b[33mother\x1b[0m\x1b[K"
        # A full line: what would erase behind it would erase its last cell.
        assert terminal.draw([Line("x" * 20), Line("other", "cfunc"), LINES[2]], SIZE)
        assert sent(master) == b"\x1b[1;1H" + b"x" * 20
        terminal.redraw()
        assert terminal.draw(LINES, SIZE)
        assert b"foot" in sent(master)


def test_without_colours_there_are_none(pair: tuple[int, int]) -> None:
    master, slave = pair
    with Terminal(slave, slave, colours=False) as terminal:
        terminal.draw([Line("t", "title"), Line("r", "ruby"), Line("s", "selected")], SIZE)
    out = sent(master)
    assert b"\x1b[1mt\x1b[0m" in out
    assert b";1Hr\x1b[K" in out
    assert b"\x1b[7ms\x1b[0m" in out


def test_a_terminal_that_takes_nothing_more_is_not_waited_for(pair: tuple[int, int]) -> None:
    _, slave = pair
    before = termios.tcgetattr(slave)
    with Terminal(slave, slave, colours=True) as terminal:
        drawn = [terminal.draw([Line(f"{number:20}")] * 3, SIZE) for number in range(2000)]
        assert not drawn[-1]
    assert terminal.lost
    assert termios.tcgetattr(slave) == before


def test_a_terminal_that_is_gone_is_no_error() -> None:
    master, slave = pty.openpty()
    with Terminal(slave, slave, colours=True) as terminal:
        os.close(master)
        assert terminal.read() == b""
        terminal.draw(LINES, SIZE)
        assert terminal.lost
    os.close(slave)


def test_a_size_of_nothing_is_80_by_24(pair: tuple[int, int]) -> None:
    _, slave = pair
    assert Terminal(slave, slave, colours=True).size == Size(80, 24)


def test_an_exception_gives_it_back(pair: tuple[int, int]) -> None:
    _, slave = pair
    before = termios.tcgetattr(slave)
    with pytest.raises(ZeroDivisionError), Terminal(slave, slave, colours=True):
        raise ZeroDivisionError
    assert termios.tcgetattr(slave) == before


def test_what_a_command_writes_is_kept() -> None:
    with CommandOutput() as output:
        subprocess.run(["sh", "-c", "echo out; echo err >&2"], stdout=output.fd, stderr=output.fd, check=True)
        output.trim()
        assert output.end == (b"out\nerr\n", 0)


def test_of_much_that_a_command_writes_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_output, "_LARGEST", 1000)
    monkeypatch.setattr(command_output, "_SHOWN", 100)
    total = b""
    with CommandOutput() as output:
        for number in range(300):
            line = b"line %d\n" % number
            os.write(output.fd, line)
            total += line
            if number % 7 == 0:
                output.trim()
            text, left = output.end
            assert text == total[left:]
            assert 80 <= len(text) <= 100 or not left
            assert os.fstat(output.fd).st_size <= 1000 + 7 * 9
        assert text.startswith(b"line ")


def test_totals_since_a_reset() -> None:
    before = Totals(10, 1, 2, (("limit", 2), ("unmapped pc", 3)))
    now = Totals(30, 1, 3, (("unmapped pc", 9), ("limit", 2), ("torn read", 7)))
    assert since(before, now) == Totals(20, 0, 1, (("torn read", 7), ("unmapped pc", 6)))
    assert since(now, now) == Totals()


STANDARD_STREAMS = """
import os, sys
from rubyunwind.profiler.command import Command
output = os.memfd_create("output")
command = Command(["sh", "-c", "readlink /proc/self/fd/0; cat; echo error >&2; echo out"], output=output)
command.start()
assert command.wait() == 0
sys.stdout.write(repr(os.pread(output, 1000, 0)))
"""


def test_a_command_is_kept_off_a_terminal_and_nothing_else(pair: tuple[int, int]) -> None:
    master, slave = pair

    def run(**streams: int) -> str:
        words = [sys.executable, "-c", STANDARD_STREAMS]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, **streams).stdout

    # stdout is a pipe: what goes there still does.
    assert run(stdin=slave, stderr=slave) == "/dev/null\nout\nb'error\\n'"
    assert run(stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == "/dev/null\nout\nb''"
    assert sent(master) == b""
