# SPDX-License-Identifier: Apache-2.0
"""Every command in docs/report.md does what it is there for, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/report.md"
README = PAGE.parents[1] / "README.md"

APP = """\
class Object
  def inner(n) = n.times { |i| Math.sqrt(i) }
end
inner(1000) while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 0.6
"""

pytestmark = pytest.mark.usefixtures("bpf")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.rb").write_text(APP)
    shim = tmp_path / "bin/rubyunwind"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m rubyunwind.cli.main "$@"\n')
    shim.chmod(0o755)
    return tmp_path


def run(folder: Path, command: str) -> str:
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = done.stderr.decode()
    assert done.returncode == 0, f"{command}: {said}"
    assert "Traceback" not in said
    return done.stdout.decode()


def test_every_command_of_the_page_runs(folder: Path) -> None:
    if not PAGE.exists():
        pytest.skip(f"no source tree here: {PAGE} does not exist")
    commands = re.findall(r"^    (\S.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) >= 20
    for command in commands:
        out = run(folder, command)
        if command.startswith("rubyunwind report") and " -o " not in command:
            assert "samples: " in out, command
        if "--lines" in command:
            assert "def inner(n) = n.times { |i| Math.sqrt(i) }" in out
    assert (folder / "run.html").read_text().lower().startswith("<!doctype html>")
    assert "block in " in (folder / "run.txt").read_text()


def test_the_reports_of_the_readme_run(folder: Path) -> None:
    if not README.exists():
        pytest.skip(f"no source tree here: {README} does not exist")
    lines = re.findall(r"^    (rubyunwind re\w+ .*run\.rubyunwind.*)$", README.read_text(), re.MULTILINE)
    commands = [line.partition("  #")[0].partition(" # ")[0] for line in lines]
    assert len(commands) >= 4
    for command in commands:
        run(folder, command)
    for name in ("before", "after"):
        run(folder, f"rubyunwind record -o {name}.rubyunwind -- ruby app.rb")
    assert "rubyunwind report --diff before.rubyunwind after.rubyunwind" in README.read_text()
    assert "percentage points" in run(folder, "rubyunwind report --diff before.rubyunwind after.rubyunwind")
