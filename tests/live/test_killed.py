# SPDX-License-Identifier: Apache-2.0
"""Whoever is killed: nothing of a recorder stays in the kernel, and of a target nothing in the recorder."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import sys
from pathlib import Path

import pytest

from rubyunwind import Profiler

from .recorder import Record, hear, process, until
from .spinning import RUBY, gather

pytestmark = pytest.mark.usefixtures("bpf")

PINS = Path("/sys/fs/bpf")
SPIN = "def spin_here = (nil while true)\nputs; $stdout.flush; spin_here"
# System call numbers of bpf(2); commands of enum bpf_cmd that take an id: program, map, link.
SYSCALL = {"x86_64": 321, "aarch64": 280}
GET_BY_ID = {"prog_id": 13, "map_id": 14, "link_id": 30}


def in_kernel(kind: str, number: int) -> bool:
    """Whether there is a program, map or link of that id."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(struct.pack("<I", number), 128)
    fd = int(libc.syscall(SYSCALL[os.uname().machine], GET_BY_ID[kind], attributes, 128))
    if fd >= 0:
        os.close(fd)
        return True
    assert ctypes.get_errno() == errno.ENOENT, os.strerror(ctypes.get_errno())
    return False


def owned(pid: int) -> set[tuple[str, int]]:
    """Kinds and ids of the programs, maps and links that a process has descriptors of."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = info.read_text()
        except FileNotFoundError:  # a file that it read and closed in the meantime
            continue
        said = re.findall(r"^(prog_id|map_id|link_id):\s*(\d+)$", text, re.MULTILINE)
        found |= {(kind, int(number)) for kind, number in said}
    return found


def pins() -> set[Path]:
    return set(PINS.rglob("*")) if PINS.is_dir() else set()


@pytest.mark.parametrize("what", ["-p", "-a"])
def test_of_a_recorder_that_is_killed_nothing_stays_in_the_kernel(record: Record, what: str) -> None:
    before = pins()
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        recorder = record(what, *([target.pid] if what == "-p" else []), "--off-cpu", "-o", "x.rubyunwind")
        recorder.await_recording()
        # What it had for a moment only is gone already.
        ours = {one for one in owned(recorder.process.pid) if in_kernel(*one)}
        assert {kind for kind, _ in ours} >= {"prog_id", "map_id"}
        recorder.process.kill()
        recorder.process.wait()
        until(
            lambda: not [one for one in ours if in_kernel(*one)],
            "programs, maps or links of a recorder that was killed are left",
        )
        assert target.poll() is None  # it runs on
    assert pins() == before


def test_of_an_agent_that_is_killed_nothing_stays_in_the_kernel() -> None:
    code = (
        "from rubyunwind import Profiler; p = Profiler(all_processes=True).__enter__(); "
        "print('ready', flush=True); [p.poll(1) for _ in iter(int, 1)]"
    )
    before = pins()
    with process(sys.executable, "-c", code) as agent:
        assert hear(agent) == "ready"
        ours = owned(agent.pid)
        assert {kind for kind, _ in ours} >= {"prog_id", "map_id"}
        agent.kill()
        agent.wait()
        until(lambda: not [one for one in ours if in_kernel(*one)], "something is left in the kernel")
    assert pins() == before


@pytest.mark.parametrize("everything", [False, True], ids=["pid", "all"])
def test_of_a_target_that_is_killed_nothing_is_left(everything: bool) -> None:
    with process(RUBY, "--disable-gems", script=SPIN) as target:
        hear(target)
        with Profiler([] if everything else [target.pid], all_processes=everything, rate=299) as profiler:
            samples = gather(profiler, 1)
            until(
                lambda: samples.extend(profiler.poll(0.05)) or any(s.pid == target.pid for s in samples),
                "it is not sampled",
            )
            target.kill()
            target.wait()
            maps = profiler.collection.maps

            def entries() -> list[str]:
                profiler.poll(0.05)
                little, big = target.pid.to_bytes(4, "little"), target.pid.to_bytes(4, "big")
                names = ("followed_pids", "ruby_procs", "ruby_vms", "ruby_tls", "reported_pids", "pid_events")
                left = [name for name in names if little in maps[name]]
                by_address = ("pid_page_to_mapping_info", "pid_mappings")
                return left + [name for name in by_address if any(key[4:8] == big for key in maps[name])]

            until(lambda: not entries(), "entries of it are left")
            assert not [link for link in descriptors() if f"/proc/{target.pid}/" in link]
            assert profiler.running == everything


def descriptors() -> list[str]:
    """What this process's descriptors refer to."""
    folder = Path("/proc/self/fd")
    return [str(entry.readlink()) for entry in folder.iterdir() if entry.is_symlink()]
