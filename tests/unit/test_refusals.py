# SPDX-License-Identifier: Apache-2.0
"""Why tracing was refused: every message names the cause and what to do."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rubyunwind.process import refusals
from rubyunwind.process.refusals import Circumstances, explain

OURS = Circumstances(pid=7, comm="ruby", owner=1000, user=1000, capable=False)


@pytest.mark.parametrize(
    ("facts", "cause", "advice"),
    [
        (replace(OURS, tracer=9, tracer_name="strace"), "process 9 (strace) traces it", "end that one first"),
        (replace(OURS, tracer=9), "process 9 traces it already", "end that one first"),
        (replace(OURS, yama=1), "kernel.yama.ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0"),
        (replace(OURS, yama=2), "kernel.yama.ptrace_scope is 2", "sysctl kernel.yama.ptrace_scope=0"),
        (replace(OURS, yama=3), "kernel.yama.ptrace_scope is 3", "until the next boot"),
        (replace(OURS, yama=3, capable=True), "kernel.yama.ptrace_scope is 3", "until the next boot"),
        (replace(OURS, owner=0), "it belongs to uid 0, we run as uid 1000", "run as root"),
        (replace(OURS, owner=0, yama=1), "it belongs to uid 0", "run as root"),
        (replace(OURS, yama=1, capable=True, user=0), "although we have CAP_SYS_PTRACE", "SYS_PTRACE"),
        (replace(OURS, yama=0), "made itself undumpable", "CAP_SYS_PTRACE"),
        (OURS, "made itself undumpable", "CAP_SYS_PTRACE"),
    ],
)
def test_the_cause_and_the_remedy_are_named(facts: Circumstances, cause: str, advice: str) -> None:
    text = explain(facts)
    assert text.startswith("process 7 (ruby): it cannot be stopped: ")
    assert cause in text
    assert advice in text


def test_circumstances_are_read_from_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(refusals, "YAMA", tmp_path / "ptrace_scope")
    assert Circumstances.of(os.getpid()).yama is None
    (tmp_path / "ptrace_scope").write_text("2\n")
    found = Circumstances.of(os.getpid())
    assert (found.pid, found.owner, found.user, found.yama) == (os.getpid(), os.getuid(), os.geteuid(), 2)
