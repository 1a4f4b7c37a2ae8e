# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record -p`: processes that cannot be recorded, or only in part, and several of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .recorder import Record, hear, ids, labels, process, read_jsonl, refused, ruby, say, until

pytestmark = pytest.mark.usefixtures("bpf")

RATE = ("-r", 299)
SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"


def test_no_such_process(record: Record, tmp_path: Path) -> None:
    with process("true") as ended:
        ended.wait()
    refused(record("-p", ended.pid), f"process {ended.pid}: no such process")


def test_a_kernel_thread(record: Record, tmp_path: Path) -> None:
    if not Path("/proc/2/exe").is_symlink() or Path("/proc/2/cmdline").read_bytes():
        pytest.skip("no kernel thread is visible in this PID namespace")
    refused(record("-p", 2), "is a kernel thread")


def test_a_zombie(record: Record, tmp_path: Path) -> None:
    with process("true") as ended:
        until(lambda: ") Z " in Path(f"/proc/{ended.pid}/stat").read_text(), "it does not end")
        refused(record("-p", ended.pid), "has ended", "zombie")


def test_one_process_of_several_that_is_not_there(record: Record, tmp_path: Path) -> None:
    with ruby(SPIN) as target, process("true") as ended:
        hear(target)
        ended.wait()
        refused(record("-p", target.pid, "-p", ended.pid), f"process {ended.pid}: no such process")
        assert target.poll() is None


def test_several_processes_are_told_apart(record: Record, tmp_path: Path) -> None:
    with ruby(SPIN) as first, ruby(SPIN.replace("spin", "turn")) as second:
        hear(first), hear(second)
        recorder = record(*RATE, "-d", 0.5, "-o", "profile.jsonl", "-p", first.pid, "-p", second.pid)
        assert recorder.wait() == 0
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert ids(samples) == {first.pid, second.pid}
    for pid, own, other in ((first.pid, "spin", "turn"), (second.pid, "turn", "spin")):
        mine = [labels(sample) for sample in samples if sample["pid"] == pid]
        assert sum(own in found for found in mine) >= 0.9 * len(mine)
        assert not [found for found in mine if other in found]


def test_a_process_without_ruby_is_said_to_be_one_and_has_native_stacks(
    record: Record, tmp_path: Path
) -> None:
    with process(sys.executable, "-c", "print(flush=True)\nwhile True: pass") as target:
        target.stdout.readline()  # type: ignore[union-attr]
        recorder = record(*RATE, "-d", 0.5, "-o", "profile.jsonl", "-p", target.pid)
        assert recorder.wait() == 0
    assert f"pid {target.pid}: no Ruby was found in it; native frames only" in recorder.err
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert len(samples) == recorder.samples_read >= 30
    assert {frame["kind"] for sample in samples for frame in sample["frames"]} <= {"native", "kernel"}
    assert sum(sample["complete"] for sample in samples) >= 0.95 * len(samples)
    roots = Counter(sample["frames"][-1]["name"] for sample in samples if sample["complete"])
    assert set(roots) == {"_start"}


@pytest.mark.parametrize("version", ["1.8.7", "9.9.9"])
def test_an_unsupported_ruby_is_named_and_has_native_stacks(
    record: Record, tmp_path: Path, version: str
) -> None:
    source, program = tmp_path / "odd.c", tmp_path / "odd"
    source.write_text(
        f'const char ruby_version[] = "{version}"; volatile int turns;\n'
        "void spin(void) { for (;;) turns++; }\nint main(void) { spin(); }\n"
    )
    subprocess.run(["gcc", "-O0", "-rdynamic", "-o", program, source], check=True)
    with process(str(program)) as target:
        recorder = record(*RATE, "-d", 0.5, "-o", "profile.jsonl", "-p", target.pid)
        assert recorder.wait() == 0
    assert f"pid {target.pid}: Ruby {version} has no known layout" in recorder.err
    assert "native frames only" in recorder.err
    assert "nearest" in recorder.err
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    whole = [[frame["name"] for frame in sample["frames"]] for sample in samples if sample["complete"]]
    assert len(whole) >= 30
    assert all(names[-1] == "_start" and "main" in names for names in whole)


def test_a_process_that_sleeps_gives_an_empty_profile_and_the_reason(record: Record, tmp_path: Path) -> None:
    with process("cat") as target:
        say(target)
        target.stdout.readline()  # type: ignore[union-attr]
        recorder = record("-d", 0.3, "-o", "profile.jsonl", "-p", target.pid)
        assert recorder.wait() == 0
    assert recorder.samples_read == 0
    assert "no samples: the processes used no CPU time" in recorder.err
    assert (tmp_path / "profile.jsonl").read_bytes() == b""


@pytest.mark.parametrize(("option", "followed"), [((), False), (("-s",), True)], ids=["alone", "-s"])
def test_what_a_process_forks_is_recorded_with_s_only(
    record: Record, tmp_path: Path, option: tuple[str, ...], followed: bool
) -> None:
    # Long against the time between samples: the kernel's inherited events are unfair to shorter lives.
    script = """
        def burn = 200_000.times { |n| n.to_s }
        def child = burn
        def parent = burn
        puts; $stdout.flush
        loop { parent; Process.wait(fork { child; exit! }) }
    """
    with ruby(script) as target:
        hear(target)
        recorder = record(*RATE, *option, "-d", 0.8, "-o", "profile.jsonl", "-p", target.pid)
        assert recorder.wait() == 0
    samples = read_jsonl((tmp_path / "profile.jsonl").read_bytes())
    assert [s for s in samples if s["pid"] == target.pid and "parent" in labels(s)]
    if not followed:
        assert ids(samples) == {target.pid}
        return
    others = [labels(sample) for sample in samples if sample["pid"] != target.pid]
    assert sum("child" in found for found in others) >= len(others) / 2
    assert not [found for found in others if "parent" in found]
