# SPDX-License-Identifier: Apache-2.0
"""/proc that hides other users' processes: whoever has the rights records all the same, others are told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .recorder import hear, process, read_jsonl
from .spinning import RUBY
from .test_privilege import NOBODY, SIX, with_capabilities

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount /proc anew"),
]

SPIN = "def spin_here = (nil while true)\nputs; $stdout.flush; spin_here"
COUNT = "nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 0.7"
HIDDEN = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")


def record_hidden(
    tmp_path: Path, wrapper: tuple[str, ...], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a mount namespace whose /proc has hidepid=2."""
    tmp_path.chmod(0o777)
    command = [
        sys.executable,
        "-m",
        "rubyunwind.cli.main",
        "record",
        "-o",
        "profile.jsonl",
        "-d",
        "3",
        "-r",
        "199",
        *arguments,
    ]
    return subprocess.run(
        [*HIDDEN, *wrapper, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )


@pytest.mark.parametrize("who", ["root", "six capabilities"])
@pytest.mark.parametrize("what", ["-p", "-a"])
def test_with_the_rights_nothing_is_hidden(tmp_path: Path, who: str, what: str) -> None:
    wrapper = () if who == "root" else tuple(with_capabilities(*SIX, user=NOBODY))
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        chosen = (what, str(target.pid)) if what == "-p" else (what,)
        done = record_hidden(tmp_path, wrapper, "--backend", "bpf", *chosen)
    assert done.returncode == 0, done.stderr
    samples = [s for s in read_jsonl((tmp_path / "profile.jsonl").read_bytes()) if s["pid"] == target.pid]
    whole = [s for s in samples if s["complete"] and any(f.get("label") == "spin_here" for f in s["frames"])]
    assert len(whole) > 20


def test_without_them_it_says_that_proc_hides_it(tmp_path: Path) -> None:
    wrapper = tuple(with_capabilities("dac_read_search", user=NOBODY))
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        done = record_hidden(tmp_path, wrapper, "--backend", "user", "-p", str(target.pid))
    assert done.returncode == 1
    assert "no such process" in done.stderr
    assert "/proc is mounted with hidepid" in done.stderr
    assert "CAP_SYS_PTRACE" in done.stderr
    assert not (tmp_path / "profile.jsonl").exists()


def test_a_user_records_a_command_of_his_own_all_the_same(tmp_path: Path) -> None:
    # Python may lie below /root.
    wrapper = tuple(with_capabilities("dac_read_search", user=NOBODY))
    done = record_hidden(tmp_path, wrapper, "--backend", "user", "--", RUBY, "--disable-gems", "-e", COUNT)
    assert done.returncode == 0, done.stderr
    assert read_jsonl((tmp_path / "profile.jsonl").read_bytes()), done.stderr
