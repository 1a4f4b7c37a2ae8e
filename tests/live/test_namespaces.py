# SPDX-License-Identifier: Apache-2.0
"""Targets, and profilers, in pid, mount and root namespaces of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rubyunwind import Profiler
from rubyunwind.bpf.features import CO_RE, LEGACY
from rubyunwind.errors import NotSupported
from rubyunwind.process.identity import read_status
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler import tracer as tracer_module
from rubyunwind.profiler.profiler import Profiler as ProfilerClass

from .recorder import Record, ids, labels, process, read_jsonl, until
from .spinning import RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299
# A pid namespace of its own, whose processes end with its first one, and that with `unshare`.
DEEPER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
SPIN = "def spin_here = (nil while true)\nspin_here"
NAMED = ["spin_here", "<main>"]
ENDS = """
    def spin_here = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 1.5)
    spin_here
    exit 3
"""


def rubies_below(pid: int) -> list[int]:
    """The Rubies among the descendants of a process, as this process sees them."""
    found = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().startswith("ruby"):
                    found.append(int(child))
            found += rubies_below(int(child))
    return found


@contextmanager
def ruby_below(*command: str) -> Iterator[int]:
    """Run a command that runs a Ruby below it; the Ruby's pid here."""
    with process(*command) as started:
        until(lambda: rubies_below(started.pid), "no Ruby is started")
        yield rubies_below(started.pid)[0]


def ids_in_its_namespaces(pid: int) -> list[int]:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
    return [int(number) for number in line.split()[1:]]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("everything", [False, True], ids=["pid", "all"])
def test_a_target_in_a_deeper_pid_namespace_has_the_pid_seen_from_here(depth: int, everything: bool) -> None:
    with ruby_below(*DEEPER * depth, RUBY, "--disable-gems", "-e", SPIN) as pid:
        assert len(ids_in_its_namespaces(pid)) == depth + 1
        until(lambda: read_status(pid).state == "R", "it does not spin")
        with Profiler([] if everything else [pid], all_processes=everything, rate=RATE) as profiler:
            samples: list[Any] = []
            until(
                lambda: samples.extend(s for s in gather(profiler, 1) if s.pid == pid) or len(samples) >= 80,
                "it is not sampled",
            )
    last = samples[-40:]
    assert {sample.tid for sample in last} == {pid}
    assert [sample.reason for sample in last if not sample.complete] == []
    assert {tuple(f.label for f in s.frames if f.kind == "ruby") for s in last} == {tuple(NAMED)}


def test_a_profiler_in_a_pid_namespace_sees_what_is_in_it_by_the_pids_there(
    record: Record, tmp_path: Path
) -> None:
    recorder = record(
        *("-r", RATE, "-o", "profile.jsonl", "--", RUBY, "--disable-gems", "-e", ENDS), wrapper=DEEPER
    )
    assert recorder.wait() == 3, recorder.err
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    (pid,) = ids(samples)
    assert pid < 50  # they are counted from 1 there
    last = samples[-200:-20]
    assert len(last) == 180
    assert [sample["reason"] for sample in last if not sample["complete"]] == []
    assert {tuple(labels(sample)[-2:]) for sample in last} == {tuple(NAMED)}
    assert {sample["tid"] for sample in last} == {pid}


@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_of_all_processes_it_sees_those_of_its_namespace_and_of_deeper_ones(
    record: Record, tmp_path: Path, unwinder: str
) -> None:
    inside = f"{RUBY} --disable-gems -e '{SPIN}'"
    deeper = f"{' '.join(DEEPER)} {RUBY} --disable-gems -e 'def deeper = (nil while true)\ndeeper'"
    arguments = f"-m rubyunwind.cli.main record -a -r {RATE} -d 4 -o all.jsonl --backend bpf"
    script = (
        f"{inside} & a=$!; {deeper} & b=$!; sleep 1; {sys.executable} {arguments} --unwinder {unwinder}; "
        "status=$?; kill $a $b; exit $status"
    )
    with process(RUBY, "--disable-gems", "-e", "def outside = (nil while true)\noutside"):
        done = subprocess.run(
            [*DEEPER, "sh", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
    assert done.returncode == 0, done.stderr
    samples = read_jsonl((tmp_path / "all.jsonl").read_bytes())
    assert max(ids(samples)) < 200
    found: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        for label in {"spin_here", "deeper", "outside"} & set(labels(sample)):
            found.setdefault(label, []).append(sample)
    assert set(found) == {"spin_here", "deeper"}
    for mine in found.values():
        assert len(ids(mine)) == 1
        assert len(mine) >= 40
        assert [sample["reason"] for sample in mine[15:] if not sample["complete"]] == []


# Two threads that sleep, and say for how long they were off the CPU meanwhile.
NAPS = """
    def now(clock) = Process.clock_gettime(clock, :nanosecond)
    def off_cpu
      began = now(Process::CLOCK_MONOTONIC) - now(Process::CLOCK_THREAD_CPUTIME_ID)
      yield
      now(Process::CLOCK_MONOTONIC) - now(Process::CLOCK_THREAD_CPUTIME_ID) - began
    end
    def long_nap = sleep(0.1)
    def short_nap = sleep(0.01)
    long = Thread.new { off_cpu { 15.times { long_nap } } }
    short = Thread.new { off_cpu { 100.times { short_nap } } }
    File.write("said", "#{long.value} #{short.value}")
"""


def test_threads_off_the_cpu_are_told_apart_in_a_pid_namespace(record: Record, tmp_path: Path) -> None:
    arguments = ("--off-cpu=only", "-o", "waits.jsonl", "--", RUBY, "--disable-gems", "-e", NAPS)
    recorder = record(*arguments, wrapper=DEEPER)
    assert recorder.wait() == 0, recorder.err
    samples = read_jsonl((tmp_path / "waits.jsonl").read_bytes())
    (pid,) = ids(samples)
    assert pid < 50
    assert {(sample["origin"], sample["unit"]) for sample in samples} == {("off-cpu", "ns")}
    tids = set()
    for label, said in zip(("long_nap", "short_nap"), (tmp_path / "said").read_text().split(), strict=True):
        mine = [sample for sample in samples if label in labels(sample)]
        (tid,) = {sample["tid"] for sample in mine}
        assert tid < 50
        tids.add(tid)
        total = sum(sample["weight"] for sample in mine)
        assert abs(total - int(said)) <= 0.05 * int(said), (total, said)
        assert [sample["reason"] for sample in mine if not sample["complete"]] == []
    assert len(tids) == 2


def test_children_are_followed_there_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    program = tmp_path / "inside.py"
    program.write_text(
        f"""
import os, subprocess, time
from rubyunwind import Profiler
script = "$stdin.gets; 4.times {{ fork {{ 5_000_000.times {{ 1 + 1 }} }}; Process.wait }}; $stdin.gets"
with subprocess.Popen([{RUBY!r}, "--disable-gems", "-e", script], stdin=subprocess.PIPE) as ruby:
    with Profiler([ruby.pid], rate=999) as profiler:
        ruby.stdin.write(b"begin\\n")
        ruby.stdin.flush()
        pids, end = {{0}}, time.monotonic() + 20
        while len(pids - {{0, ruby.pid}}) < 4 and time.monotonic() < end:
            pids |= {{sample.pid for sample in profiler.poll(0.05)}}
        ruby.communicate(b"end\\n")
        left = {{}}
        while profiler.running and time.monotonic() < end:
            profiler.poll(0.05)
        for name in ("followed_pids", "ruby_procs", "reported_pids"):
            left[name] = [int.from_bytes(key, "little") for key in profiler.collection.maps[name]]
        print(len(pids) >= 5, max(pids) < 100, left)
"""
    )
    done = subprocess.run(
        [*DEEPER, sys.executable, program], capture_output=True, text=True, check=False, timeout=90
    )
    left = {"followed_pids": [0], "ruby_procs": [], "reported_pids": []}
    assert done.stdout.strip() == f"True True {left}", done.stderr


def test_where_proc_shows_another_namespace_it_is_refused() -> None:
    code = "from rubyunwind import Profiler; Profiler().__enter__()"
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    assert "/proc does not show the pid namespace that we are in: we are process 1" in done.stderr
    assert "--mount-proc" in done.stderr


def test_the_legacy_programs_refuse_a_private_pid_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer_module, "pid_namespace", lambda: 4026532000)
    with pytest.raises(NotSupported, match="--pid=host"), ProfilerClass(flavour=LEGACY):
        pass
    with ProfilerClass(flavour=CO_RE):  # which sees no process of that namespace, as there is none
        pass


@pytest.mark.parametrize("way", ["mount namespace", "chroot"])
def test_files_that_are_not_to_be_seen_from_here_are_read(way: str, tmp_path: Path) -> None:
    """The Ruby, its program and its libraries lie on a file system that is mounted for the target only."""
    needed = subprocess.run(["ldd", RUBY], capture_output=True, text=True, check=True).stdout
    libraries = sorted({word for word in needed.split() if word.startswith("/")})
    root = tmp_path / "root"
    root.mkdir()
    program = tmp_path / "program.rb"
    program.write_text(SPIN)
    folders = " ".join(sorted({f"{root}{Path(library).parent}" for library in libraries}))
    copy = "".join(f"cp -L {library} {root}{library}; " for library in libraries)
    mount = (
        f"mount -t tmpfs none {root} && mkdir -p {folders} && {copy} cp {Path(RUBY).resolve()} {root}/ruby"
    )
    mount += f" && cp {program} {root}/program.rb"
    if way == "chroot":
        run = f"exec chroot {root} /ruby --disable-all /program.rb"
    else:
        library_path = f"LD_LIBRARY_PATH={root}{Path(libraries[0]).parent}"
        run = f"{library_path} exec {root}/ruby --disable-all {root}/program.rb"
    with process("unshare", "--mount", "sh", "-c", f"{mount} && {run}") as target:
        until(lambda: read_status(target.pid).comm == "ruby", "it does not begin")
        assert not (root / "ruby").exists()
        with Profiler([target.pid], rate=RATE) as profiler:
            samples = gather(profiler, 200)
    last = samples[-60:]
    assert [sample.reason for sample in last if not sample.complete] == []
    assert {tuple(f.label for f in s.frames if f.kind == "ruby") for s in last} == {tuple(NAMED)}
    modules = {frame.module or "" for sample in last for frame in sample.frames if frame.kind == "native"}
    assert any(module.endswith("/ruby") for module in modules)
    names = {frame.name for sample in last for frame in sample.frames if frame.kind == "native"}
    assert "_start" in names


CGROUPS = [Path(path) for path in ("/sys/fs/cgroup", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified")]


@pytest.fixture
def container_group() -> Iterator[Path]:
    """A control group named as docker names that of a container."""
    name = "docker-" + "0123456789abcdef" * 4 + ".scope"
    for base in CGROUPS:
        group = base / name
        with suppress(OSError):
            group.mkdir()
            if (group / "cgroup.procs").exists():
                break
            group.rmdir()
    else:
        pytest.skip("no control group can be made here")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "somebody is left in the group")
    group.rmdir()


@pytest.mark.one_of_several
def test_samples_say_which_container_they_are_of(container_group: Path) -> None:
    assert shutil.which("sh")
    enter = f"echo $$ > {container_group}/cgroup.procs && exec {RUBY} --disable-gems -e '{SPIN}'"
    with process("sh", "-c", enter) as inside, process(RUBY, "--disable-gems", "-e", SPIN) as outside:
        until(lambda: read_status(inside.pid).comm.startswith("ruby"), "it does not begin")
        with Profiler([inside.pid, outside.pid], rate=RATE) as profiler:
            samples = gather(profiler, 200)
            samples += profiler.stop()
    found = {(sample.pid, sample.container) for sample in samples}
    assert found == {(inside.pid, "0123456789abcdef" * 4), (outside.pid, None)}


def test_files_of_an_overlay_that_only_the_target_sees_are_read_by_a_deputy(tmp_path: Path) -> None:
    """Whoever may mount in his own namespace may have laid it over anything."""
    (tmp_path / "root").mkdir()
    (tmp_path / "upper").mkdir()
    run = f"exec chroot {tmp_path}/root {RUBY} --disable-all -e '{SPIN}'"
    # In memory, as an overlay is not laid over what it is in itself.
    script = f"mount -t tmpfs none {tmp_path}/upper && mkdir {tmp_path}/upper/u {tmp_path}/upper/w && "
    script += f"mount -t overlay none -o lowerdir=/,upperdir={tmp_path}/upper/u,workdir={tmp_path}/upper/w "
    script += f"{tmp_path}/root && {run}"
    with process("unshare", "--mount", "sh", "-c", script) as target:
        until(lambda: read_status(target.pid).comm.startswith("ruby"), "it does not begin")
        with LiveProcess(target.pid) as image:
            (code, *_) = [mapping for mapping in image.mappings() if mapping.executable and mapping.is_file]
            with image.open(code) as elf:
                assert elf.distant is not None
        with Profiler([target.pid], rate=RATE) as profiler:
            samples = gather(profiler, 200)
        assert profiler.stats.given_up == 0
    last = samples[-60:]
    assert [sample.reason for sample in last if not sample.complete] == []
    assert {tuple(f.label for f in s.frames if f.kind == "ruby") for s in last} == {tuple(NAMED)}
