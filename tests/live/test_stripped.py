# SPDX-License-Identifier: Apache-2.0
"""Rubies whose files name nothing: what is found through their code, for all that reads a process or a core.

Debian's 3.3 and 3.4 are such builds; 2.7 and 3.1, which name their symbols, are held to the same. Stacks by
BPF are in test_rubies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rubyunwind import Sample, snapshot
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler.user_profiler import UserProfiler
from rubyunwind.ruby.detect import RubyRuntime, find_ruby

from .spinning import PATIENCE, Ruby, locations, spinning

pytestmark = pytest.mark.one_of_several

RATE = 299
SAMPLES = 200


def described(pid: int) -> RubyRuntime:
    image = LiveProcess(pid)
    try:
        found = find_ruby(pid, image.mappings(), image.memory, open_elf=image.open)
    finally:
        image.close()
    assert found is not None
    return found


def test_everything_is_found_without_a_search(ruby: Ruby) -> None:
    with spinning("recursion.rb", "10", ruby=ruby) as program:
        found = described(program.pid)
    assert found.check.result == "good"
    assert len(found.interpreter_ranges) == 1
    assert found.proc_info.current_ctx_ptr
    assert found.identifier_table
    assert found.collector is not None
    assert found.collector.objspace == found.layout.vm_objspace
    assert (found.tls is not None) == (found.version_number >= 0x30000)
    assert not any("cannot be found" in note for note in found.notes)


def test_from_user_space_stacks_are_rubys_own(ruby: Ruby) -> None:
    samples: list[Sample] = []
    with (
        spinning("rescue_and_ensure.rb", ruby=ruby) as program,
        UserProfiler([program.pid], rate=RATE) as profiler,
    ):
        while len(samples) < SAMPLES:
            samples += profiler.poll()
    exact = [sample for sample in samples if locations(sample) == program.stack]
    assert len(exact) == len(samples)


def test_a_snapshot_and_a_core_have_the_whole_stack(ruby: Ruby, tmp_path: Path) -> None:
    gcore = shutil.which("gcore")
    with spinning("blocks_and_bmethods.rb", ruby=ruby) as program:
        (thread,) = [one for one in snapshot(program.pid) if one.tid == program.pid]
        assert locations(thread) == program.stack  # type: ignore[arg-type]
        if gcore is None:
            return
        Path(f"/proc/{program.pid}/coredump_filter").write_text("0x37", encoding="ascii")
        subprocess.run(
            [gcore, "-o", str(tmp_path / "core"), str(program.pid)], check=True, capture_output=True
        )
    (core,) = tmp_path.glob("core.*")
    line = [sys.executable, "-m", "rubyunwind.cli.main", "snapshot", "--json", "--core", str(core)]
    said = subprocess.run(line, capture_output=True, text=True, timeout=2 * PATIENCE, check=True).stdout
    core.unlink()
    (shown,) = [one for one in json.loads(said)["threads"] if one["tid"] == program.pid]
    frames = tuple(
        (f["path"], f["line"], f["label"]) for f in shown["frames"] if f["kind"] in ("ruby", "cfunc")
    )
    assert frames == program.stack
