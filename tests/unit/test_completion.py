# SPDX-License-Identifier: Apache-2.0
"""Shells complete our command line: real ones, typed into where they show what they complete."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.cli.candidates import ruby_processes
from rubyunwind.formats import FORMATS

_PATIENCE = 30
FILE = "a, run.rubyunwind"
PROGRAM = "puts; $stdout.flush; sleep # of $(a) test*"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which the command is found by its name."""
    shim = tmp_path_factory.mktemp("bin") / "rubyunwind"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m rubyunwind.cli.main "$@"\n')
    shim.chmod(0o755)
    return f"{shim.parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def ruby() -> Iterator[int]:
    """A Ruby that sleeps. Its command line has what shells would take for their own."""
    if shutil.which("ruby") is None:
        pytest.skip("no ruby here")
    with subprocess.Popen(["ruby", "-e", PROGRAM], stdout=subprocess.PIPE) as it:
        assert it.stdout is not None
        it.stdout.readline()
        yield it.pid
        it.kill()


class Shell:
    """A shell on a terminal of its own."""

    def __init__(self, name: str, words: list[str], path: str) -> None:
        if shutil.which(name) is None:
            pytest.skip(f"no {name} here")
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            environment = {"PATH": path, "TERM": "dumb", "PS1": "", "HOME": "/nonexistent", "COLUMNS": "200"}
            for key in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG"):
                if key in os.environ:
                    environment[key] = os.environ[key]
            os.execvpe(name, [name, *words], environment)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, pattern: str) -> str:
        """Wait for a match in what was shown since the last one, and return all up to its end."""
        deadline = time.monotonic() + _PATIENCE
        while (found := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self._fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            self.seen += os.read(self._fd, 4096).decode("utf-8", "replace")
        seen, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return seen

    def close(self) -> None:
        os.close(self._fd)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)


@pytest.fixture
def bash(path: str) -> Iterator[Shell]:
    shell = Shell("bash", ["--norc", "--noprofile", "-i"], path)
    shell.type('bind "set page-completions off"; bind "set completion-query-items 0"\n')
    shell.type('eval "$(rubyunwind completion bash)"; echo rea""dy\n')
    shell.until("ready")
    yield shell
    shell.close()


def test_bash_completes_verbs_options_and_formats(bash: Shell) -> None:
    bash.type("rubyunwind rec\t")
    bash.until("rubyunwind record ")
    bash.type("-f spee\t")
    bash.until("-f speedscope ")
    bash.type("--off-cpu-pro\t")
    bash.until("--off-cpu-probability ")
    bash.type("\x15rubyunwind report -f \t\t")
    bash.until("(?s)" + "".join(f"(?=.*{name})" for name in ("table", *FORMATS)))


def test_bash_lists_rubies_with_their_command_lines_and_inserts_the_pid_alone(bash: Shell, ruby: int) -> None:
    with subprocess.Popen(["ruby", "-e", PROGRAM], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            # Meta-? lists at once; a first Tab would put in what all pids begin with.
            bash.type("rubyunwind record -p \x1b?")
            shown = (re.escape(f"{pid}  (ruby -e {PROGRAM})") for pid in (ruby, other.pid))
            bash.until("(?s)" + "".join(f"(?=.*{text})" for text in shown))  # in columns, with other Rubies
        finally:
            other.kill()
    bash.type(f"\x15rubyunwind snapshot -p {ruby}\t| cat -A #")
    bash.until(rf"rubyunwind snapshot -p {ruby} \| cat -A #")


def test_bash_completes_files_where_a_file_is_meant(bash: Shell, tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    for words in ("report", "report -o", "record -o", "snapshot --core"):
        bash.type(f"\x15rubyunwind {words} {tmp_path}/a\t")
        bash.until(r"a\\,\\ run\.rubyunwind")


def test_zsh_completes(path: str, ruby: int, tmp_path: Path) -> None:
    shell = Shell("zsh", ["-f", "-i"], path)
    try:
        shell.type("PS1=; autoload -U compinit; compinit -D -u; unsetopt list_beep; LISTMAX=1000\n")
        shell.type('eval "$(rubyunwind completion zsh)"; echo rea""dy\n')
        shell.until("ready\r\n")
        shell.type("rubyunwind rec\t")
        shell.until("rubyunwind record ")
        shell.type("-f spee\t")
        shell.until("speedscope")
        shell.type(f"-p {ruby}\t -d")
        shell.until(f"-p {ruby} [ \\x08]*-d")
        shell.type("\x15rubyunwind re\x04")  # kills the line; lists what may come
        shell.until("report +-- look into recordings, convert and compare them")
        shell.type("\x15rubyunwind record -p \x04")
        shell.until(rf"{ruby} +-- {re.escape(f'ruby -e {PROGRAM}')}")
        (tmp_path / FILE).touch()
        for words in ("report", "report -o", "record -o", "snapshot --core"):
            shell.type(f"\x15rubyunwind {words} {tmp_path}/a\t")
            shell.until(r"a,\\ run\.rubyunwind")
    finally:
        shell.close()


def test_fish_completes(path: str, ruby: int, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here")

    def completions(line: str) -> list[str]:
        script = f"rubyunwind completion fish | source; complete -C '{line}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", script],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        )
        return done.stdout.decode().splitlines()

    assert "record\tsample processes or a command into a file" in completions("rubyunwind re")
    assert "report\tlook into recordings, convert and compare them" in completions("rubyunwind re")
    assert completions("rubyunwind record -f spee") == ["speedscope"]
    assert f"{ruby}\truby -e {PROGRAM}" in completions("rubyunwind top -p ")
    (tmp_path / FILE).touch()
    for words in ("report", "report -o", "record -o", "snapshot --core"):
        assert completions(f"rubyunwind {words} {tmp_path}/a") == [f"{tmp_path}/{FILE}"]


def test_only_rubies_are_offered(ruby: int) -> None:
    found = ruby_processes()
    assert found[ruby] == f"ruby -e {PROGRAM}"
    assert os.getpid() not in found


def test_an_unknown_shell_is_refused_with_those_that_are_known() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "completion", "csh"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"'bash', 'zsh', 'fish'" in done.stderr
