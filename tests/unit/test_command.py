# SPDX-License-Identifier: Apache-2.0
"""A command that waits for its start: when it runs, as whom, and what its end says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rubyunwind.profiler.command import Command, CommandError


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks


def run(*words: str) -> int:
    command = Command(words)
    command.start()
    return command.wait()


def test_it_runs_only_after_its_start(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    command = Command(["sh", "-c", f"echo ran > {mark}"])
    # It is there, and waits in a read: nothing but `start` ends that.
    assert Path(f"/proc/{command.pid}").exists()
    assert command.poll() is None
    assert not mark.exists()
    command.start()
    assert command.wait() == 0
    assert mark.read_text() == "ran\n"


@pytest.mark.parametrize("status", [0, 1, 77, 255])
def test_its_exit_status_is_passed_on(status: int) -> None:
    assert run("sh", "-c", f"exit {status}") == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_a_signal_is_128_and_its_number(number: signal.Signals) -> None:
    assert run("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$") == 128 + number


def test_the_status_is_kept_once_it_was_reaped() -> None:
    command = Command(["sh", "-c", "exit 3"])
    command.start()
    assert command.wait() == 3
    assert command.poll() == command.wait() == command.exit_status == 3


@pytest.mark.parametrize(
    ("word", "status", "text"),
    [
        ("no-such-command-anywhere", 127, "No such file or directory; it is in no directory of PATH"),
        ("/no/such/file", 127, "cannot run /no/such/file: No such file or directory"),
        ("/etc/passwd", 126, "Permission denied"),
        ("/", 126, "Permission denied"),
    ],
)
def test_what_cannot_run_is_an_error_with_a_shells_status(word: str, status: int, text: str) -> None:
    before = descriptors()
    command = Command([word])
    with pytest.raises(CommandError, match=text) as caught:
        command.start()
    assert caught.value.exit_status == status
    assert descriptors() == before
    with pytest.raises(ChildProcessError):  # it was reaped
        os.waitpid(command.pid, os.WNOHANG)


def test_a_word_with_a_zero_byte_is_an_error_too() -> None:
    with pytest.raises(CommandError, match="Invalid argument"):
        Command(["echo", "a\0b"]).start()


def test_no_words_are_no_command() -> None:
    with pytest.raises(ValueError, match="at least one word"):
        Command([])


def test_one_that_is_given_up_never_ran_and_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    mark = tmp_path / "mark"
    command = Command(["touch", str(mark)])
    command.close()
    command.close()
    assert not mark.exists()
    assert descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(command.pid, os.WNOHANG)
    with pytest.raises(RuntimeError, match="started or given up before"):
        command.start()


def test_giving_up_one_does_not_wait_for_another_that_holds_its_pipe() -> None:
    first = Command(["true"])
    second = Command(["true"])  # forked later: it has copies of the first one's descriptors
    first.close()
    second.start()
    assert second.wait() == 0


def test_closing_one_that_runs_lets_it_run() -> None:
    command = Command(["sh", "-c", "read line"])
    command.start()
    command.close()
    assert command.poll() is None or command.exit_status is not None  # stdin may be at its end
    command.wait()


def test_starting_twice_is_refused() -> None:
    command = Command(["true"])
    command.start()
    with pytest.raises(RuntimeError, match="started or given up before"):
        command.start()
    assert command.wait() == 0


def test_one_that_was_killed_while_it_waited_says_so() -> None:
    command = Command(["true"])
    os.kill(command.pid, signal.SIGKILL)
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    command.start()
    assert command.wait() == 128 + signal.SIGKILL


def test_it_inherits_no_descriptor_of_ours() -> None:
    # Only the three standard ones, and the one that ls reads the folder with.
    code = (
        "import sys\n"
        "from rubyunwind.profiler.command import Command\n"
        "keep = open('/dev/null')\n"
        "command = Command(['ls', '/proc/self/fd'])\n"
        "command.start()\n"
        "sys.exit(command.wait())\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    assert out.stdout.split() == ["0", "1", "2", "3"]


def test_what_python_ignores_the_command_does_not() -> None:
    code = (
        "from rubyunwind.profiler.command import Command\n"
        "command = Command(['grep', 'SigIgn', '/proc/self/status'])\n"
        "command.start(); command.wait()\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ignored = int(out.stdout.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1)
    assert not ignored & (1 << signal.SIGXFSZ - 1)


DROP = """
import os, sys
os.environ.update(SUDO_UID="65534", SUDO_GID="65534", **{extra})
from rubyunwind.profiler.command import Command
command = Command(["sh", "-c", "id -u; id -g; id -G; echo $HOME; echo $USER"])
command.start()
print(end="", flush=True)
sys.exit(command.wait())
"""


def dropped(**extra: str) -> list[str]:
    code = DROP.replace("{extra}", repr(extra))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.splitlines()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@needs_root
def test_under_sudo_it_runs_as_who_called_sudo() -> None:
    uid, gid, groups, home, user = dropped(SUDO_USER="nobody", USER="root", HOME="/root")
    assert (uid, gid, user) == ("65534", "65534", "nobody")
    assert "0" not in groups.split()
    assert home != "/root"


@needs_root
def test_under_sudo_an_environment_that_was_kept_stays() -> None:
    assert dropped(SUDO_USER="nobody", USER="somebody", HOME="/home/x")[3:] == ["/home/x", "somebody"]


@needs_root
def test_without_a_name_roots_groups_are_dropped_all_the_same() -> None:
    assert dropped(SUDO_USER="")[:3] == ["65534", "65534", "65534"]


@needs_root
def test_without_sudo_it_runs_as_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert run("sh", "-c", "test $(id -u) = 0") == 0
    monkeypatch.setenv("SUDO_UID", "0")
    monkeypatch.setenv("SUDO_GID", "0")
    assert run("sh", "-c", "test $(id -u) = 0") == 0
