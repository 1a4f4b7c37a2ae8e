# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind record` as a command: what it says, writes and returns, above all when something is wrong."""

from __future__ import annotations

import ctypes
import json
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import rubyunwind
from rubyunwind.bpf.spec import load_collection_spec

from .recorder import Record, page_data, refused, weight
from .spinning import RUBY

pytestmark = pytest.mark.usefixtures("bpf")

RATE = ("-r", 299)
SPIN = "puts; $stdout.flush; def spin = (nil while true)\nspin"
# Spins for 0.3 s of CPU time, then exits with 7.
SHORT = "def work = (nil while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 0.3)\nwork; exit 7"
COMMAND = ("--", RUBY, "--disable-gems", "-e", SHORT)


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
        assert weight(raw, format_) == data["totals"]["read"] == recorder.samples_read
        assert "Object#work" in data["strings"]
    else:
        assert weight(raw, format_) == recorder.samples_read
        assert b"Object#work" in raw
    assert "rubyunwind:" not in raw.decode()[:200]
    if output != "-":
        assert recorder.out == b""
        assert f"wrote profile ({format_})" in recorder.err


@pytest.mark.parametrize("suffix", [".folded", ".jsonl", ".html"])
def test_the_suffix_of_the_output_chooses_the_format(record: Record, tmp_path: Path, suffix: str) -> None:
    recorder = record(*RATE, "-o", f"profile{suffix}", *COMMAND)
    assert recorder.wait() == 7
    raw = (tmp_path / f"profile{suffix}").read_bytes()
    format_ = {".folded": "folded", ".jsonl": "jsonl", ".html": "flamegraph"}[suffix]
    assert f"({format_})" in recorder.err
    if format_ == "flamegraph":
        assert raw.startswith(b"<!DOCTYPE html>")
    else:
        assert weight(raw, format_) == recorder.samples_read


def test_without_o_the_file_is_named_after_the_command(record: Record, tmp_path: Path) -> None:
    recorder = record("-f", "folded", "--", "true")
    assert recorder.wait() == 0
    (name,) = recorder.files
    assert name.startswith("rubyunwind-true-")
    assert name.endswith(".folded")
    assert name in recorder.err


@pytest.mark.parametrize("format_", ["folded", "jsonl", "flamegraph"])
@pytest.mark.parametrize(
    "command",
    [("true",), (RUBY, "-e", "1"), (RUBY, "-e", "sleep 0.05"), ("sh", "-c", f"exec {RUBY} -e 1")],
    ids=["true", "ruby", "sleep", "exec"],
)
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
    refused(record("-o", "profile", "--", "nosuch"), "cannot run nosuch: No such file", status=127)


def test_a_command_that_is_no_program_is_126(record: Record, tmp_path: Path) -> None:
    refused(record("-o", "p", "--", "/etc/passwd"), "cannot run /etc/passwd: Permission", status=126)


def test_the_command_inherits_no_descriptor_and_no_ignored_signal(record: Record) -> None:
    recorder = record("-o", "profile", "--", "sh", "-c", "ls /proc/self/fd; grep SigIgn /proc/self/status")
    assert recorder.wait() == 0
    *descriptors, ignored = recorder.out.decode().splitlines()
    assert descriptors == ["0", "1", "2", "3"]  # the last one is the folder that ls reads
    # Python ignores these two; what else is ignored here (by nohup, say) is the caller's business.
    pythons = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    status = Path("/proc/self/status").read_text()
    ours = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert int(ignored.split()[1], 16) & ~(ours & ~pythons) == 0


# Words that make no sense


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-p", "1", "--", "touch", "ran"), "one of these"),
        ((), "one of these"),
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
    refused(record(*arguments), text, status=2)


def test_a_rate_above_the_kernels_limit_is_refused_before_the_command_runs(
    record: Record, tmp_path: Path
) -> None:
    refused(record("-r", 10_000_000, "-o", "profile", "--", "touch", "ran"), "max_sample_rate")


# What is missing on the machine


def drop_bpf_capabilities() -> None:
    """Stay root, but without CAP_SYS_ADMIN, CAP_PERFMON and CAP_BPF. PR_CAPBSET_DROP of linux/prctl.h."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (21, 38, 39):
        if libc.prctl(24, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def test_without_rights_it_names_the_capabilities(record: Record, tmp_path: Path) -> None:
    recorder = record("-o", "profile", "--", "touch", "ran", preexec=drop_bpf_capabilities)
    refused(recorder, "CAP_BPF and CAP_PERFMON", "root")


def test_without_libbpf_it_names_what_was_tried(record: Record, tmp_path: Path) -> None:
    recorder = record("-o", "profile", "--", "touch", "ran", env={"RUBYUNWIND_LIBBPF": "/nonexistent"})
    refused(recorder, "no usable libbpf", "/nonexistent", "RUBYUNWIND_LIBBPF")


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
    refused(recorder, spec.name, text)


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
    assert recorder.files == {"file"}


def test_a_full_disk_is_told(record: Record) -> None:
    recorder = record(*RATE, "-f", "jsonl", "-o", "/dev/full", *COMMAND)
    assert recorder.wait() == 1
    assert "cannot write /dev/full: No space left on device" in recorder.err


def test_the_unwinder_can_be_chosen(record: Record) -> None:
    script = "def down(n) = n.zero? ? (t = Time.now; nil while Time.now - t < 1) : down(n - 1)\ndown(300)"
    frames = {}
    for unwinder in ("walker", "chain"):
        words = (
            "--unwinder",
            unwinder,
            "-o",
            f"{unwinder}.jsonl",
            "--",
            RUBY,
            "--disable-gems",
            "-e",
            script,
        )
        recorder = record(*words)
        assert recorder.wait() == 0, recorder.err
        lines = (recorder.folder / f"{unwinder}.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        stacks = [[f for f in s.get("frames", ()) if f["kind"] != "kernel"] for s in samples]
        frames[unwinder] = max(map(len, stacks))
    assert frames["walker"] > 300
    assert frames["chain"] == 127


def test_an_unwinder_without_bpf_is_a_usage_error(record: Record) -> None:
    recorder = record("--unwinder", "chain", "-p", "1", backend="user")
    assert recorder.wait() == 2
    assert "--backend user has none" in recorder.err
