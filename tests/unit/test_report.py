# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report` as its users run it: tables, parts, other formats, and what is wrong with files."""

from __future__ import annotations

import gzip
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reports import COMPARE, MAIN, META, SAMPLES, SORT, STARTED, TOTALS, WORK, Report, sample

from rubyunwind.formats import FORMATS, write
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Totals
from rubyunwind.profiler.waits import LOCK


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.rubyunwind"
    write(path, "recording", SAMPLES, TOTALS, META)
    return path


# The table


def test_a_table_has_self_and_total_and_the_losses(recording: Path) -> None:
    report = Report(recording, "--native", "all")
    assert report.status == 0
    assert report.err == ""
    assert report.out.splitlines()[:3] == [
        "ruby app.rb, 99 Hz, 10.0 s, 2023-11-14 22:13:20 UTC",
        "samples: 5 read, 1 incomplete, 0 truncated, 3 lost",
        "incomplete or unsent, by reason: no unwind row 1",
    ]
    assert report.weights == {
        "qsort_r": (5, 5),
        "Work#run": (2, 8),  # once for a stack, however often it is on it
        "vfs_read": (1, 1),
        "<main>": (1, 9),
        "Array#sort_by": (0, 5),
        "[incomplete:": (1, 1),
    }
    assert "\033" not in report.out
    assert sum(own for own, _ in report.weights.values()) == sum(each.weight for each in SAMPLES)
    assert "  50.0%" in report.out  # of 10


def test_a_table_is_of_ruby_unless_native_frames_are_asked_for(recording: Path) -> None:
    report = Report(recording)
    assert report.weights == {
        "Array#sort_by": (5, 5),
        "Work#run": (3, 8),
        "<main>": (1, 9),
        "[incomplete:": (1, 1),
    }
    note = "native, kernel and JIT frames count for the Ruby code above them; --native all shows them"
    assert report.out.splitlines()[3] == note
    # Who asks for such frames gets them, and who asks for none knows.
    assert "qsort_r" in Report(recording, "--kind", "native").out
    assert note not in Report(recording, "--no-native").out
    assert note not in Report(recording, "--native", "all").out


def test_what_a_thread_waits_for_stays_without_native_frames(tmp_path: Path) -> None:
    path = tmp_path / "x.rubyunwind"
    schedule = Frame("kernel", "schedule")
    write(path, "recording", [sample(0, LOCK, schedule, COMPARE, WORK, unit="ns", weight=1_000_000_000)])
    assert "native     [waits for the GVL]" in Report(path).out
    assert "schedule" not in Report(path).out


def test_rows_are_limited_and_the_rest_is_counted(recording: Path) -> None:
    report = Report(recording, "-n", "2")
    assert list(report.weights) == ["Array#sort_by", "Work#run"]
    assert "... and 2 more methods; -n 0 shows all" in report.out
    assert len(Report(recording, "-n", "0").weights) == 4


def test_a_table_can_go_into_a_file(recording: Path, tmp_path: Path) -> None:
    report = Report(recording, "-f", "table", "-o", tmp_path / "t.txt")
    assert report.raw == b""
    assert "t.txt (table), 5 samples" in report.err
    assert (tmp_path / "t.txt").read_text() == Report(recording).out


def test_other_units_have_tables_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "x.rubyunwind"
    write(path, "recording", [sample(0, MAIN), sample(0, WORK, unit="ns", weight=1_500_000_000)])
    out = Report(path).out
    assert out.count("method\n") == 2
    assert "1.500s 100.0%" in out


def test_hostile_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.rubyunwind"
    evil = "\033]0;owned\7\u202e\r\n\x9b2J" + b"\xff".decode("utf-8", "surrogateescape")
    frames = (Frame("ruby", evil, evil, f"/{evil}", 1),)
    meta = Meta(command=evil, title=evil, runtimes=(evil,), notes=(evil,), backend=evil)
    write(
        path,
        "recording",
        [sample(0, *frames, complete=False, reason=evil)],
        Totals(failed=((evil, 1),)),
        meta,
    )
    for words in ((), ("--lines",), ("--lines", "*"), ("--method", "\033*")):
        report = Report(*words, path)
        assert report.status == 0
        for bad in "\033\7\u202e\r\x9b":
            assert bad not in report.out + report.err


def terminal_output(recording: Path, **env: str) -> str:
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    done = subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "report", str(recording)],
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**environment, "TERM": "xterm", **env},
        timeout=60,
        check=True,
    )
    os.close(slave)
    assert done.stderr == b""
    text = b""
    try:
        while more := os.read(master, 65536):
            text += more
    except OSError:  # the other end is closed
        pass
    os.close(master)
    return text.decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_and_lines_that_fit(recording: Path) -> None:
    shown = terminal_output(recording)
    assert "\033[31msamples: 5 read, 1 incomplete, 0 truncated, 3 lost\033[0m" in shown
    plain = re.sub(r"\033\[\d*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colour_where_none_is_wanted(recording: Path, env: dict[str, str]) -> None:
    assert "\033" not in terminal_output(recording, **env)


# Parts


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), [0, 1, 2, 3, 4]),
        (("--from", "1"), [1, 2, 3, 4]),
        (("--from", "1", "--to", "3"), [1, 2]),
        (("--from", "0.5", "--to", "2.5"), [1, 2]),
        (("--from", "22:13:22"), [2, 3, 4]),
        (("--to", "22:13:22.5"), [0, 1, 2]),
        (("--from", "22:13:22Z", "--to", "22:13:23Z"), [2]),
        (("--from", "2023-11-14T22:13:23"), [3, 4]),
        (("--from", "2023-11-14T23:13:23+01:00"), [3, 4]),
        (("--from", "2023-11-14T22:13:23Z"), [3, 4]),
        (("--to", "22:13:19"), [0, 1, 2, 3, 4]),  # of the next day
        (("--pid", "10"), [3]),
        (("-p", "10", "-p", "7"), [0, 1, 2, 3, 4]),
        (("--thread", "8"), [2]),
        (("--thread", "worker*"), [2]),
        (("--thread", "worker*", "--thread", "puma"), [2, 3]),
        (("--method", "Work#run"), [0, 1, 2]),
        (("--method", "*sort*"), [0]),
        (("--method", "/^qsort|read$/"), [0, 2]),
        (("--method", "work#run"), []),
        (("--method", "Work#run", "--thread", "8"), [2]),
        (("--kind", "native"), [0]),
        (("--kind", "kernel", "--kind", "ruby"), [1, 2, 3]),
    ],
)
def test_a_part_is_what_was_asked_for(recording: Path, words: tuple[str, ...], kept: list[int]) -> None:
    report = Report(*words, recording, "-f", "jsonl", "-o", "-")
    assert report.status == 0
    assert [each["ts"] for each in report.samples] == [SAMPLES[index].timestamp for index in kept]
    assert ("none are as they were asked for" in report.err) == (not kept)


def test_the_table_says_how_many_were_selected(recording: Path) -> None:
    report = Report(recording, "--pid", "10")
    assert "selected: 1 of 5 samples" in report.out
    assert report.weights == {"<main>": (1, 1)}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--native", "all"), ["qsort_r", "Array#sort_by", "Work#run", "<main>"]),
        (("--native", "outside-c"), ["Array#sort_by", "Work#run", "<main>"]),
        (("--no-native",), ["Array#sort_by", "Work#run", "<main>"]),
        (("--no-native", "--kind", "cfunc"), ["Array#sort_by", "Work#run", "<main>"]),
    ],
)
def test_native_frames_can_be_left_out(recording: Path, words: tuple[str, ...], names: list[str]) -> None:
    report = Report(*words, recording, "--to", "1", "-f", "jsonl", "-o", "-")
    assert [frame["name"] for frame in report.samples[0]["frames"]] == names


def test_native_frames_outside_c_functions_and_of_other_programs_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.rubyunwind"
    execute = Frame("native", "rb_vm_exec", module="/lib/libruby.so", offset=1)
    write(path, "recording", [sample(0, COMPARE, SORT, WORK, execute), sample(1, COMPARE, execute)])

    def names(*words: str) -> list[list[str]]:
        found = Report(*words, path, "-f", "jsonl", "-o", "-").samples
        return [[frame["name"] for frame in each["frames"]] for each in found]

    assert names("--native", "outside-c") == [
        ["Array#sort_by", "Work#run", "rb_vm_exec"],
        ["qsort_r", "rb_vm_exec"],
    ]
    assert names("--no-native") == [["Array#sort_by", "Work#run"], ["qsort_r", "rb_vm_exec"]]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--from", "soon"), "'soon' is no moment"),
        (("--from", "nan"), "'nan' is no number of seconds"),
        (("--to", "25:00"), "'25:00' is no time of the day"),
        (("--method", "/(/"), "/(/ is no regular expression"),
        (("--lines", "/(/"), "/(/ is no regular expression"),
        (("--thread", "/[/"), "/[/ is no regular expression"),
        (("-f", "svg"), "'svg' is not one of"),
        (("--diff",), "--diff compares two files"),
        (("--lines", "x", "-f", "folded"), "--lines gives a table only"),
        (("-", "-"), "stdin (-) can be read once only"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(recording: Path, words: tuple[str, ...], text: str) -> None:
    report = Report(*words, recording)
    assert report.status == 2
    assert text in report.err
    assert report.raw == b""


def test_a_report_on_nothing_is_a_usage_error() -> None:
    report = Report()
    assert report.status == 2
    assert "name a file to report on" in report.err


# Conversion


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_is_what_it_is_when_it_is_written_at_once(
    recording: Path, tmp_path: Path, format_: str
) -> None:
    if format_ == "otlp":
        pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    expected = tmp_path / "expected"
    write(expected, format_, SAMPLES, TOTALS, META)
    out = tmp_path / f"out{FORMATS[format_].suffix}"
    report = Report(recording, "-o", out)  # the format follows from the suffix
    assert f"out{FORMATS[format_].suffix} ({format_}), 5 samples" in report.err
    assert out.read_bytes() == expected.read_bytes()
    assert Report(recording, "-f", format_, "-o", "-").raw == expected.read_bytes()


def test_a_recording_can_be_made_of_jsonl_and_the_other_way_round(recording: Path, tmp_path: Path) -> None:
    first, second, third = tmp_path / "a.jsonl", tmp_path / "b.rubyunwind", tmp_path / "c.jsonl"
    Report(recording, "-o", first)
    report = Report(first, "-o", second)
    assert "a.jsonl is jsonl, which has no totals: what was lost is not known" in report.err
    Report(second, "-o", third)
    assert third.read_bytes() == first.read_bytes()


def test_without_a_name_the_file_is_called_after_the_recording(recording: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rubyunwind.cli.main", "report", str(recording), "-f", "folded"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    (made,) = tmp_path.glob("rubyunwind-run-*.folded")
    assert made.name in done.stderr.decode()


@pytest.mark.parametrize("name", ["run.rubyunwind", "run.jsonl"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("piped", [False, True])
def test_files_are_read_plain_and_packed_and_from_a_pipe(
    recording: Path, tmp_path: Path, name: str, packed: bool, piped: bool
) -> None:
    path = tmp_path / name
    if not path.exists():
        write(path, "jsonl", SAMPLES)
    if packed:
        path = path.with_name(name + ".gz")
        path.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    report = Report("-", stdin=path.read_bytes()) if piped else Report(path)
    assert report.weights == Report(recording).weights


def test_several_files_are_taken_as_one(recording: Path, tmp_path: Path) -> None:
    later = tmp_path / "b.rubyunwind"
    write(
        later,
        "recording",
        SAMPLES[:1],
        Totals(read=1, lost=2, failed=(("limit", 4), ("no unwind row", 1))),
        Meta(command="ruby b.rb", started=STARTED + 20 * 10**9, duration=5.0, rate=49.0),
    )
    report = Report(later, recording)
    assert report.out.splitlines()[:3] == [
        "ruby b.rb + ruby app.rb, 25.0 s, 2023-11-14 22:13:20 UTC",
        "samples: 6 read, 1 incomplete, 0 truncated, 5 lost",
        "incomplete or unsent, by reason: limit 4, no unwind row 2",
    ]
    assert report.weights["Array#sort_by"] == (10, 10)


# Bad files


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        (b"", "is empty: nothing was recorded, or nothing has been written yet"),
        (
            b"<!DOCTYPE html><html>",
            "no recording but an HTML or XML page; the page does not keep the samples",
        ),
        (b"PERFILE2" + bytes(100), "no recording but a file of perf"),
        (b"\x7fELF" + bytes(100), "an ELF file; for a core file see `rubyunwind snapshot --core`"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "compressed by zstd: run `zstd -d` on it first"),
        (
            b"a;b;c 12\n",
            "no recording: it begins with b'a;b;c 12'; a report reads what `record -f recording`",
        ),
        (b"\x8dRUBY", "ends inside its header, after 5 of 16 bytes"),
        (b'{"schema": "other"}\n', "is no jsonl of samples: line 1: it has no frames"),
        (gzip.compress(b"hello"), "no recording: it begins with b'hello'"),
        (b"\x1f\x8b\x08nonsense", "the compressed data is cut off; nothing of it can be read"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_words(tmp_path: Path, contents: bytes, text: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(contents)
    report = Report(path, "-o", tmp_path / "out.html")
    assert report.status == 1
    assert report.err.startswith("rubyunwind: ")
    assert text in report.err
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing", "No such file or directory"), ("", "Is a directory"), ("a\nb", "No such file")],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, path: str, reason: str) -> None:
    report = Report(tmp_path / path)
    assert report.status == 1
    assert reason in report.err
    assert report.err.count("\n") == 1


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_without_rights_is_named(recording: Path) -> None:
    recording.chmod(0)
    assert "Permission denied" in Report(recording).err


def test_a_half_written_recording_gives_what_is_whole(recording: Path) -> None:
    data = recording.read_bytes()
    recording.write_bytes(data[: data.index(b"DONE") + 7])
    report = Report(recording)
    assert report.status == 0
    assert "the file ends inside the head of a chunk" in report.err
    assert len(report.weights) == 4


def test_a_half_written_packed_file_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    write(tmp_path / "x.jsonl", "jsonl", [sample(i / 100, *[MAIN] * (i % 90)) for i in range(5000)])
    packed = gzip.compress((tmp_path / "x.jsonl").read_bytes())
    path.write_bytes(packed[: len(packed) // 2])
    report = Report(path)
    assert report.status == 0
    assert "the compressed data is cut off" in report.err
    assert "samples: " in report.out
    assert not report.out.startswith("samples: 0 ")


# Output that fails


@pytest.mark.parametrize("words", [("-f", "jsonl"), ("-f", "recording"), ("-f", "table"), ("--lines",)])
@pytest.mark.parametrize("to_stdout", [False, True])
def test_a_full_disk_is_said(recording: Path, words: tuple[str, ...], to_stdout: bool) -> None:
    if to_stdout:
        with Path("/dev/full").open("wb") as full:
            report = Report(recording, *words, "-o", "-", stdout=full.fileno())
    else:
        report = Report(recording, *words, "-o", "/dev/full")
    assert report.status == 1
    where = "to stdout" if to_stdout else "/dev/full"
    assert report.err == f"rubyunwind: cannot write {where}: No space left on device\n"


def test_an_output_that_cannot_be_opened_is_named(recording: Path, tmp_path: Path) -> None:
    report = Report(recording, "-o", tmp_path / "nowhere" / "x.html")
    assert report.status == 1
    assert "No such file or directory; nothing was written. Name another file with -o" in report.err


@pytest.mark.parametrize("words", [("-f", "jsonl", "-o", "-"), ("-n", "0")])
def test_a_reader_that_goes_early_is_no_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "x.rubyunwind"
    write(path, "recording", [sample(i, Frame("ruby", f"method_{i}" * 9)) for i in range(20_000)])
    process = subprocess.Popen(
        [sys.executable, "-m", "rubyunwind.cli.main", "report", str(path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0
    assert said == b""
