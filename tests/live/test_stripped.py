# SPDX-License-Identifier: Apache-2.0
"""Rubies whose files name nothing: what is found through their code gives stacks that are Ruby's own.

They are taken from $RUBYUNWIND_RUBIES (~/.cache/rubyunwind/rubies), which has a directory SERIES-VERSION for
the root of each; the programs run in it by chroot. A build that does name its symbols is held to the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from rubyunwind import Profiler, Sample, snapshot
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler.user_profiler import UserProfiler
from rubyunwind.ruby.detect import RubyRuntime, find_ruby

from .spinning import PATIENCE, PROGRAMS, Spinning, _wait_for_the_spin, gather, locations

RUBIES = Path(os.environ.get("RUBYUNWIND_RUBIES", "~/.cache/rubyunwind/rubies")).expanduser()
ROOTS = sorted(root for root in RUBIES.glob("*-*") if any(root.glob("usr/bin/ruby[0-9]*")))
CHROOT = shutil.which("chroot") or "/usr/sbin/chroot"

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
    pytest.mark.skipif(not ROOTS, reason="no other Ruby was fetched"),
]

RATE = 299
SAMPLES = 200
SHARE = 0.99


@pytest.fixture(params=ROOTS, ids=lambda root: root.name)
def root(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@contextmanager
def spinning(root: Path, name: str, *arguments: str, threads: int = 1) -> Iterator[Spinning]:
    """Run tests/ruby/NAME in a root until it spins."""
    folder = root / "tmp" / f"rubyunwind-{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    for program in PROGRAMS.glob("*.rb"):
        shutil.copy(program, folder)
    ruby = next(path for path in sorted(root.glob("usr/bin/ruby[0-9]*"))).name
    process = subprocess.Popen(
        [CHROOT, str(root), f"/usr/bin/{ruby}", "--disable-gems", f"/tmp/{folder.name}/{name}", *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    try:
        assert process.stdout is not None
        said = [json.loads(process.stdout.readline() or b"null") for _ in range(threads)]
        if None in said:
            pytest.skip(f"{name} is no program for Ruby {root.name}")
        for one in said:
            _wait_for_the_spin(process.pid, one["tid"] or process.pid)
        yield Spinning(
            process.pid,
            tuple((one["tid"] or 0, tuple((p, n, label) for p, n, label in one["frames"])) for one in said),
        )
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(folder)


def described(pid: int) -> RubyRuntime:
    image = LiveProcess(pid)
    try:
        found = find_ruby(pid, image.mappings(), image.memory, open_elf=image.open)
    finally:
        image.close()
    assert found is not None
    return found


def test_everything_is_found_without_a_search(root: Path) -> None:
    with spinning(root, "recursion.rb", "10") as program:
        ruby = described(program.pid)
    assert ruby.check.result == "good"
    assert len(ruby.interpreter_ranges) == 1
    assert ruby.proc_info.current_ctx_ptr
    assert ruby.identifier_table
    assert ruby.collector is not None
    assert ruby.collector.objspace == ruby.layout.vm_objspace
    assert (ruby.tls is not None) == (ruby.version_number >= 0x30000)
    assert not any("cannot be found" in note for note in ruby.notes)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("blocks_and_bmethods.rb", ()),
        ("names_with_odd_characters.rb", ()),
        ("fiber_in_enumerator.rb", ()),
        ("recursion.rb", ("1000",)),
        ("eval_with_file_and_line.rb", ()),
        ("method_of_several_hundred_lines.rb", ()),
        ("rescue_and_ensure.rb", ()),
        ("after_compaction.rb", ()),
        ("bounces.rb", ("200",)),
    ],
)
def test_stacks_are_rubys_own_and_whole(root: Path, name: str, arguments: tuple[str, ...]) -> None:
    with spinning(root, name, *arguments) as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    exact = [sample for sample in samples if locations(sample) == program.stack and sample.complete]
    assert len(exact) >= SHARE * len(samples)


def test_each_group_of_ruby_frames_has_its_loop_and_each_loop_its_group(root: Path) -> None:
    with spinning(root, "bounces.rb", "11") as program, Profiler([program.pid], rate=RATE) as profiler:
        samples = gather(profiler, SAMPLES)
    plain = [sample for sample in samples if locations(sample) == program.stack]
    assert len(plain) >= SHARE * len(samples)
    for sample in plain:
        root_first = [frame for frame in reversed(sample.frames) if frame.kind != "kernel"]
        runs = [(ours, list(run)) for ours, run in groupby(root_first, lambda f: f.kind in ("ruby", "cfunc"))]
        loops = [frame for frame in root_first if frame.name == "rb_vm_exec"]
        assert len(loops) == sum(ours for ours, _ in runs) >= 12
        for (_, native), (ours, _) in pairwise(runs):
            if ours:
                assert native[-1].name == "rb_vm_exec"


def test_each_thread_has_its_own_stack(root: Path) -> None:
    with spinning(root, "two_spinning_threads.rb", threads=2) as program:
        if not all(tid for tid, _ in program.stacks):
            pytest.skip("this Ruby does not tell the thread ids")
        with Profiler([program.pid], rate=RATE) as profiler:
            samples = gather(profiler, 2 * SAMPLES)
    for tid, stack in program.stacks:
        mine = [sample for sample in samples if sample.tid == tid]
        assert len([sample for sample in mine if locations(sample) == stack]) >= SHARE * len(mine) > 0


def test_from_user_space_stacks_are_rubys_own(root: Path) -> None:
    samples: list[Sample] = []
    with (
        spinning(root, "rescue_and_ensure.rb") as program,
        UserProfiler([program.pid], rate=RATE) as profiler,
    ):
        while len(samples) < SAMPLES:
            samples += profiler.poll()
    exact = [sample for sample in samples if locations(sample) == program.stack]
    assert len(exact) >= SHARE * len(samples)


def test_a_snapshot_and_a_core_have_the_whole_stack(root: Path, tmp_path: Path) -> None:
    gcore = shutil.which("gcore")
    with spinning(root, "blocks_and_bmethods.rb") as program:
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
