# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record` as a command: what it says, writes and returns, above all when something is wrong."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import rubyunwind
from rubyunwind.bpf.spec import load_collection_spec

from .recorder import (
    Record,
    Recorder,
    hear,
    ids,
    labels,
    page_data,
    process,
    read_jsonl,
    ruby,
    say,
    until,
    weight,
)
from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")

RATE = ("-r", 299)
SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"
# Spins for 0.3 s of CPU time, then exits with 7.
SHORT = "def work = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 0.3)\nwork; exit 7"
COMMAND = ("--", RUBY, "--disable-gems", "-e", SHORT)


def files(folder: Path) -> set[str]:
    """Names of the files in the test's folder, without what the recorder printed."""
    return {path.name for path in folder.iterdir()} - {"stdout", "stderr"}


def refused(recorder: Recorder, folder: Path, *texts: str, status: int = 1) -> None:
    """It must end with `status`, say all the texts, and leave no file, of its own or of the command."""
    assert recorder.wait() == status, recorder.err
    for text in texts:
        assert text in recorder.err
    assert recorder.err.startswith(("rubyunwind: ", "Usage: "))
    assert files(folder) == set()


# What it writes


@pytest.mark.parametrize("format_", ["folded", "jsonl", "flamegraph"])
@pytest.mark.parametrize("output", ["-", "profile"])
def test_every_format_holds_every_sample(record: Record, tmp_path: Path, format_: str, output: str) -> None:
    recorder = record(*RATE, "-f", format_, "-o", output, *COMMAND)
    assert recorder.wait() == 7
    raw = recorder.out if output == "-" else (tmp_path / output).read_bytes()
    assert recorder.samples_read >= 30  # of 90
    if format_ == "flamegraph":
        data = page_data(raw)
        assert data["nodes"]["weight"][0] == data["totals"]["read"] == recorder.samples_read
        assert "work" in data["strings"]
    else:
        assert weight(raw, format_) == recorder.samples_read
        assert b"work" in raw
    assert "rubyunwind:" not in raw.decode()[:200]
    if output != "-":
        assert recorder.out == b""
        assert f"wrote profile ({format_})" in recorder.err


@pytest.mark.parametrize("suffix", [".folded", ".jsonl", ".html"])
def test_the_suffix_of_the_output_chooses_the_format(record: Record, tmp_path: Path, suffix: str) -> None:
    recorder = record(*RATE, "-o", f"profile{suffix}", *COMMAND)
    assert recorder.wait() == 7
    raw = (tmp_path / f"profile{suffix}").read_bytes()
    assert {".folded": b"_start", ".jsonl": b'{"ts"', ".html": b"<!DOC"}[suffix] in raw[:20]


def test_without_o_the_file_is_named_after_the_command(record: Record, tmp_path: Path) -> None:
    recorder = record("-f", "folded", "--", "true")
    assert recorder.wait() == 0
    (name,) = files(tmp_path)
    assert name.startswith("rubyunwind-true-")
    assert name.endswith(".folded")
    assert name in recorder.err


@pytest.mark.parametrize("format_", ["folded", "jsonl", "flamegraph"])
@pytest.mark.parametrize("command", [("true",), (RUBY, "-e", "1")], ids=["true", "ruby"])
def test_a_command_that_ends_at_once_leaves_valid_output(
    record: Record, tmp_path: Path, format_: str, command: tuple[str, ...]
) -> None:
    recorder = record(*RATE, "-f", format_, "-o", "profile", "--", *command)
    assert recorder.wait() == 0
    raw = (tmp_path / "profile").read_bytes()
    if format_ == "flamegraph":
        assert page_data(raw)["totals"]["read"] == recorder.samples_read
    else:
        assert weight(raw, format_) == recorder.samples_read


def test_an_old_output_is_replaced_as_a_whole(record: Record, tmp_path: Path) -> None:
    (tmp_path / "profile.folded").write_text("old 1\n" * 100_000)
    recorder = record(*RATE, "-o", "profile.folded", *COMMAND)
    assert recorder.wait() == 7
    assert weight((tmp_path / "profile.folded").read_bytes(), "folded") == recorder.samples_read


def test_v_says_more(record: Record) -> None:
    said = []
    for options in ((), ("-v",), ("-vv",)):
        recorder = record(*options, "-o", "profile.folded", "--", "true")
        assert recorder.wait() == 0
        said.append(recorder.err)
    quiet, verbose, debug = (text.count("\n") for text in said)
    assert quiet < verbose < debug
    assert "recording true at 99 Hz" in said[1]


# What a command returns, and what it is given


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
    ids=["7", "KILL", "TERM"],
)
def test_the_commands_exit_status_is_ours(record: Record, script: str, status: int) -> None:
    recorder = record("-o", "profile", "--", "sh", "-c", script)
    assert recorder.wait() == status


def test_a_command_that_does_not_exist_is_127(record: Record, tmp_path: Path) -> None:
    refused(record("-o", "profile", "--", "nosuch"), tmp_path, "cannot run nosuch: No such file", status=127)


def test_a_command_that_is_no_program_is_126(record: Record, tmp_path: Path) -> None:
    refused(
        record("-o", "p", "--", "/etc/passwd"), tmp_path, "cannot run /etc/passwd: Permission", status=126
    )


def test_the_command_inherits_no_descriptor_and_no_ignored_signal(record: Record) -> None:
    recorder = record("-o", "profile", "--", "sh", "-c", "ls /proc/self/fd; grep SigIgn /proc/self/status")
    assert recorder.wait() == 0
    *descriptors, ignored = recorder.out.decode().splitlines()
    assert descriptors == ["0", "1", "2", "3"]  # the last one is the folder that ls reads
    assert int(ignored.split()[1], 16) == 0


# Words that make no sense


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-p", "1", "--", "touch", "ran"), "one of them"),
        ((), "one of them"),
        (("-r", "0", "--", "touch", "ran"), "0 is not in the range"),
        (("-d", "0", "--", "touch", "ran"), "0.0 is not in the range"),
        (("-f", "nosuch", "--", "touch", "ran"), "'nosuch' is not one of"),
        (("-p", "ruby"), "not a valid integer"),
    ],
    ids=["pid-and-command", "neither", "rate-0", "duration-0", "format", "pid-is-a-word"],
)
def test_words_that_make_no_sense_are_a_usage_error(
    record: Record, tmp_path: Path, arguments: tuple[str, ...], text: str
) -> None:
    refused(record(*arguments), tmp_path, text, status=2)


def test_a_rate_above_the_kernels_limit_is_refused_before_the_command_runs(
    record: Record, tmp_path: Path
) -> None:
    refused(record("-r", 10_000_000, "-o", "profile", "--", "touch", "ran"), tmp_path, "max_sample_rate")


# Processes that cannot be recorded, or only in part


def test_no_such_process(record: Record, tmp_path: Path) -> None:
    with process("true") as ended:
        ended.wait()
    refused(record("-p", ended.pid), tmp_path, f"process {ended.pid}: no such process")


def test_a_kernel_thread(record: Record, tmp_path: Path) -> None:
    if not Path("/proc/2/exe").is_symlink() or Path("/proc/2/cmdline").read_bytes():
        pytest.skip("no kernel thread is visible in this PID namespace")
    refused(record("-p", 2), tmp_path, "is a kernel thread")


def test_a_zombie(record: Record, tmp_path: Path) -> None:
    with process("true") as ended:
        until(lambda: ") Z " in Path(f"/proc/{ended.pid}/stat").read_text(), "it does not end")
        refused(record("-p", ended.pid), tmp_path, "has ended", "zombie")


def test_one_process_of_several_that_is_not_there(record: Record, tmp_path: Path) -> None:
    with ruby(SPIN) as target, process("true") as ended:
        hear(target)
        ended.wait()
        refused(record("-p", target.pid, "-p", ended.pid), tmp_path, f"process {ended.pid}: no such process")
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
    script = """
        def burn = 30_000.times { |n| n.to_s }
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


# What is missing on the machine


def drop_bpf_capabilities() -> None:
    """Stay root, but without CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF. PR_CAPBSET_DROP of linux/prctl.h."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (21, 38, 39):
        if libc.prctl(24, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def test_without_rights_it_names_the_capabilities(record: Record, tmp_path: Path) -> None:
    recorder = record("-o", "profile", "--", "touch", "ran", preexec=drop_bpf_capabilities)
    refused(recorder, tmp_path, "CAP_BPF and CAP_PERFMON", "root")


def test_without_libbpf_it_names_what_was_tried(record: Record, tmp_path: Path) -> None:
    recorder = record("-o", "profile", "--", "touch", "ran", env={"RUBYUNWIND_LIBBPF": "/nonexistent"})
    refused(recorder, tmp_path, "no usable libbpf", "/nonexistent", "RUBYUNWIND_LIBBPF")


# Finds packages by path alone: an editable install would put its own finder first.
FROM_A_COPY = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
sys.meta_path[:] = [BuiltinImporter, FrozenImporter, PathFinder]
from rubyunwind.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda raw: raw[: len(raw) // 2], "install the package again"),
        (lambda raw: b"", "install"),
        (None, "not built"),
    ],
    ids=["cut", "empty", "missing"],
)
def test_a_damaged_object_is_named_before_the_command_runs(
    record: Record, tmp_path: Path, damage: Callable[[bytes], bytes] | None, text: str
) -> None:
    """The package is copied as links, all but its objects."""
    spec = load_collection_spec()
    site = tmp_path.with_name(f"{tmp_path.name}-site")
    copy = site / "rubyunwind"
    (copy / "objects").mkdir(parents=True)
    parts = {entry.name: entry for entry in Path(rubyunwind.__file__ or "").parent.iterdir()}
    for module in ("_native", "_libbpf"):
        built = find_spec(f"rubyunwind.{module}")
        assert built is not None
        path = Path(built.origin or "")
        parts[path.name] = path
    for name, entry in parts.items():
        if name != "objects":
            (copy / name).symlink_to(entry.resolve())
    if damage is not None:
        (copy / "objects" / spec.name).write_bytes(damage(spec.data))
    recorder = record(
        *("-o", "profile", "--", "touch", "ran"), env={"PYTHONPATH": str(site)}, program=("-c", FROM_A_COPY)
    )
    refused(recorder, tmp_path, spec.name, text)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("no/such/folder/profile", "No such file or directory"),
        (".", "Is a directory"),
        ("file/x", "Not a directory"),
    ],
    ids=["missing-folder", "folder", "inside-a-file"],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_command_runs(
    record: Record, tmp_path: Path, output: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    recorder = record("-o", output, "--", "touch", "ran")
    assert recorder.wait() == 1
    assert recorder.err == (
        f"rubyunwind: cannot write {output}: {reason}; nothing was recorded. Name another file with -o\n"
    )
    assert files(tmp_path) == {"file"}


def test_a_full_disk_is_told(record: Record) -> None:
    recorder = record(*RATE, "-f", "jsonl", "-o", "/dev/full", *COMMAND)
    assert recorder.wait() == 1
    assert "cannot write /dev/full: No space left on device" in recorder.err
