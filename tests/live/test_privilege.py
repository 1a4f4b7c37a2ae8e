# SPDX-License-Identifier: Apache-2.0
"""The recorder with few capabilities: six are enough, three of them can be done without."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from .recorder import Record
from .spinning import spinning

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may take capabilities away"),
]

SIX = ("bpf", "perfmon", "sys_ptrace", "dac_read_search", "checkpoint_restore", "syslog")
NOBODY = 65534  # a user that owns nothing
RECORD = ("-d", 1, "-r", 199, "-f", "folded", "-o", "profile")


def with_capabilities(*names: str, user: int = 0) -> Sequence[str]:
    """Return the command that runs another one with these capabilities and no others."""
    some = "".join(f",+{name}" for name in names)
    other = ("--reuid", str(user), "--regid", str(user), "--clear-groups", f"--ambient-caps=-all{some}")
    return (
        "setpriv",
        f"--bounding-set=-all{some}",
        f"--inh-caps=-all{some}",
        *(other if user else ()),
        "--",
    )


def test_any_user_with_six_capabilities_records_whole_stacks(record: Record, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with spinning("bounces.rb", "3") as program:
        recorder = record(*RECORD, "-p", program.pid, wrapper=with_capabilities(*SIX, user=NOBODY))
        assert recorder.wait() == 0, recorder.err
    assert recorder.samples_read >= 50
    assert f"{recorder.samples_read} whole" in recorder.err
    assert b"Object#" in (tmp_path / "profile").read_bytes()
    assert (tmp_path / "profile").stat().st_uid == NOBODY


@pytest.mark.parametrize("missing", ["dac_read_search", "checkpoint_restore", "syslog"])
def test_without_one_of_the_last_three_stacks_are_whole_all_the_same(
    record: Record, tmp_path: Path, missing: str
) -> None:
    some = with_capabilities(*(name for name in SIX if name != missing))
    with spinning("bounces.rb", "3") as program:
        recorder = record(*RECORD, "-p", program.pid, wrapper=some)
        assert recorder.wait() == 0, recorder.err
    assert recorder.samples_read >= 50
    assert f"{recorder.samples_read} whole" in recorder.err


@pytest.mark.parametrize("missing", ["bpf", "perfmon", "sys_ptrace"])
def test_without_one_of_the_first_three_it_ends_and_names_it(record: Record, missing: str) -> None:
    some = with_capabilities(*(name for name in SIX if name != missing))
    with spinning("bounces.rb", "3") as program:
        recorder = record(*RECORD, "-p", program.pid, wrapper=some)
        assert recorder.wait() != 0
    assert f"CAP_{missing.upper()}" in recorder.err
    assert not recorder.files
