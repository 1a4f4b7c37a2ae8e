# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report --lines`: the source as it was, with the weight of each line; paths do no harm."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from reports import Report

from rubyunwind.cli.live.cells import cells
from rubyunwind.formats import write
from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Sample
from rubyunwind.report import sources
from rubyunwind.report.sources import source_of

NOW = 1_700_000_000
SOURCE = "".join(f"line {n}\n" for n in range(1, 41))

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def frame(path: Path | str, line: int | None, name: str = "Work#run", kind: str = "ruby") -> Frame:
    return Frame(kind, name, name, str(path), line)  # type: ignore[arg-type]


def stack(*frames: Frame, weight: int = 1) -> Sample:
    return Sample(NOW * 10**9, 1, 1, "ruby", frames, weight=weight)


def recorded(tmp_path: Path, *samples: Sample) -> Path:
    path = tmp_path / "run.rubyunwind"
    write(path, "recording", samples, meta=Meta(started=NOW * 10**9))
    return path


def shown(report: Report) -> dict[int, tuple[str, str, str]]:
    return shown_in(report.out)


def shown_in(text: str) -> dict[int, tuple[str, str, str]]:
    """Self, total and text of the lines."""
    found = re.findall(r"^([ \d.%]{6}) ([ \d.%]{6}) .{4} +(\d+)(?:  (.*))?$", text, re.MULTILINE)
    return {int(line): (own.strip(), total.strip(), text) for own, total, line, text in found}


def methods(report: Report) -> list[tuple[str, str, str]]:
    """Self, total and name of the methods, as they stand above their lines."""
    found = re.findall(r"^([ \d.%]{6}) ([ \d.%]{6}) {13}(\S.*)$", report.out, re.MULTILINE)
    return [(own.strip(), total.strip(), name) for own, total, name in found]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "work.rb"
    path.write_text(SOURCE)
    os.utime(path, (NOW - 100, NOW - 100))
    return path


def test_each_line_has_its_own_weight_and_that_of_what_it_calls(tmp_path: Path, program: Path) -> None:
    main = frame(program, 30, "<main>")
    path = recorded(
        tmp_path,
        stack(frame(program, 5), main, weight=6),
        # In a C function and below it time is the line's own; and a line that calls itself is met once.
        stack(Frame("native", "memcpy"), frame(program, 7, "Array#sort", "cfunc"), frame(program, 7), main),
        stack(frame(program, 5), frame(program, 7), frame(program, 7), main, weight=3),
    )
    report = Report(path, "--lines")
    assert f"\n{program}\nself 100.0%, total 100.0% of 10 samples\n" in report.out
    assert "\nsource: as it is on disk, not written to since\n" in report.out
    lines = shown(report)
    assert lines[5] == ("90.0%", "90.0%", "line 5")
    assert lines[7] == ("10.0%", "40.0%", "line 7")
    assert lines[30] == ("", "100.0%", "line 30")
    assert sorted(lines) == [3, 4, 5, 6, 7, 8, 9, 28, 29, 30, 31, 32]
    assert lines[8] == ("", "", "line 8")


def test_of_one_method_only_its_lines_have_weight(tmp_path: Path, program: Path) -> None:
    path = recorded(tmp_path, stack(frame(program, 5), frame(program, 30, "<main>")))
    for words in (("--lines", "Work#run"), ("--lines", "/rk#/"), ("--lines=Work*",)):
        lines = shown(Report(*words, path))
        assert {line: one for line, one in lines.items() if one[1]} == {5: ("100.0%", "100.0%", "line 5")}
    assert "no Ruby method matches 'Other'" in Report(path, "--lines", "Other").out


def test_a_method_has_its_blocks_and_clauses_below_its_name(tmp_path: Path, program: Path) -> None:
    main = frame(program, 30, "<main>")
    path = recorded(
        tmp_path,
        stack(frame(program, 6, "block (2 levels) in Work#run"), frame(program, 5), main, weight=2),
        stack(frame(program, 9, "rescue in block in Work#run"), main),
        stack(frame(program, 20, "Work#other"), main),
    )
    report = Report("--lines", path)
    assert methods(report) == [
        ("75.0%", "75.0%", "Work#run"),
        ("25.0%", "25.0%", "Work#other"),
        ("", "100.0%", "<main>"),
    ]
    one = Report("--lines", "Work#run", path)
    assert methods(one) == [("75.0%", "75.0%", "Work#run")]
    assert {line: each[:2] for line, each in shown(one).items() if each[1]} == {
        5: ("", "50.0%"),
        6: ("50.0%", "50.0%"),
        9: ("25.0%", "25.0%"),
    }
    assert [line for line, each in shown(Report("--lines", "rescue in*", path)).items() if each[1]] == [9]


def test_what_is_between_two_methods_is_the_second_ones(tmp_path: Path, program: Path) -> None:
    path = recorded(tmp_path, stack(frame(program, 10, "a")), stack(frame(program, 13, "b")))
    text = Report("--lines", path).out
    found = re.findall(r"(?:line (\d+)|.* {13}(\w))$", text[text.index(" 50.0%") :], re.MULTILINE)
    assert [line or name for line, name in found] == ["a", "8", "9", "10", "b", "11", "12", "13", "14", "15"]


def test_of_a_long_method_there_are_its_hot_regions_only(tmp_path: Path) -> None:
    path = tmp_path / "long.rb"
    path.write_text("def long\n" + "".join(f"  step {n}\n" for n in range(2, 300)) + "end\n")
    os.utime(path, (NOW - 100, NOW - 100))
    samples = [
        stack(frame(path, line, "long"), weight=weight) for line, weight in ((50, 8), (56, 1), (200, 1))
    ]
    report = Report("--lines", recorded(tmp_path, *samples))
    # The line between 52 and 54 is there: it takes as much room to say that it is not.
    assert sorted(shown(report)) == [*range(48, 59), *range(198, 203)]
    assert report.out.count("  ...\n") == 1


def test_lines_that_call_what_is_hot_are_among_few(tmp_path: Path, program: Path) -> None:
    others = [stack(frame(program, line)) for line in range(1, 21)]
    path = recorded(tmp_path, stack(frame("(eval)", 1), frame(program, 39), weight=10), *others)
    assert 39 in shown(Report(path, "--lines", "-n", "2"))


def test_the_heat_of_a_line_is_a_bar(tmp_path: Path, program: Path) -> None:
    weights = {3: 50, 10: 20, 17: 10, 24: 1, 31: 0}
    path = recorded(
        tmp_path,
        *(stack(frame(program, line), weight=weight) for line, weight in weights.items() if weight),
        stack(frame("(eval)", 1), frame(program, 31), weight=19),
    )
    found = re.findall(r"^[ \d.%]{13} (.{4}) +(\d+)  ", Report(path, "--lines").out, re.MULTILINE)
    bars = {int(line): bar.strip() for bar, line in found}
    assert {line: bars[line] for line in weights} == {3: "████", 10: "████", 17: "██", 24: "▎", 31: ""}


def test_lines_of_one_file(tmp_path: Path, program: Path) -> None:
    other = "/srv/app/lib/other.rb"
    main = frame("/srv/app/main.rb", 1, "<main>")
    path = recorded(tmp_path, stack(frame(program, 5), main), stack(frame(other, 7, "Other#go"), main))

    def files(*words: str) -> list[str]:
        return re.findall(r"^(/.*)$", Report("--lines", *words, path).out, re.MULTILINE)

    for pattern in (
        "other.rb",
        "lib/other.rb",
        "./lib/other.rb",
        "lib/*.rb",
        other,
        "/other/",
        "/srv/*/other.rb",
    ):
        assert files("--file", pattern) == [other]
    assert files("--file", "other.rb", "--file", "main.rb") == [other, "/srv/app/main.rb"]
    assert files("ther.rb", "--file", "other.rb") == []
    assert files("*go", "--file", "*.rb") == [other]
    assert files("--file", "ther.rb") == []
    assert (
        "no Ruby code is of a file that matches 'ther.rb'" in Report("--lines", "--file", "ther.rb", path).out
    )
    said = Report("--lines", "go", "--file", "other.rb", path).out
    assert "no Ruby method matches 'go' in 'other.rb': a name is matched as a whole, '*go*' by a part" in said
    alone = Report("--file", "other.rb", path)
    assert alone.status == 2
    assert "--file says of which files --lines is" in alone.err


def test_several_recordings_behind_lines_are_all_files(tmp_path: Path, program: Path) -> None:
    path = recorded(tmp_path, stack(frame(program, 5)))
    assert "100.0% of 2 samples" in Report("--lines", path, path).out


def terminal_text(*words: str | Path, columns: int, **env: str) -> str:
    """What the command prints on a terminal."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        report = Report(*words, stdout=follower, TERM="xterm", **env)
        assert report.status == 0
    finally:
        os.close(follower)
    found = b""
    try:
        while piece := os.read(leader, 65536):
            found += piece
    except OSError:  # EIO: all has been read
        pass
    os.close(leader)
    return found.decode().replace("\r\n", "\n")


def test_on_a_terminal_numbers_are_coloured_and_nothing_is_wider(tmp_path: Path) -> None:
    path = tmp_path / ("long/" * 20) / "work.rb"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"漢字 = {n} * {'x' * 90}\n" for n in range(1, 41)))
    os.utime(path, (NOW - 100, NOW - 100))
    hot = recorded(tmp_path, stack(frame(path, 5), weight=19), stack(frame(path, 20)))
    text = terminal_text("--lines", hot, columns=80)
    assert "\n\033[31m 95.0%  95.0% ████      5  \033[0m漢字 = 5 * xx" in text
    assert "\n\033[33m  5.0%   5.0% █        20  \033[0m漢字 = 20 * xx" in text
    assert f"\n\033[2m{4:25}  漢字 = 4 * xx" in text
    plain = re.sub(r"\033\[\d*m", "", text)
    assert plain == terminal_text("--lines", hot, columns=80, NO_COLOR="1")
    assert max(map(cells, plain.splitlines())) == 80
    # The end of a path and the numbers are what counts.
    assert "/long/work.rb\nself 100.0%, total" in plain
    assert shown_in(plain)[5][:2] == ("95.0%", "95.0%")
    for columns in (1, 10, 25, 30):
        narrow = terminal_text("--lines", hot, columns=columns, NO_COLOR="1")
        assert max(map(cells, narrow.splitlines()[3:])) <= columns


@pytest.mark.parametrize(
    ("encoding", "comment"),
    [
        ("latin-1", "# encoding: iso-8859-1"),
        ("euc-jp", "#!/usr/bin/ruby\n# -*- coding: EUC-JP -*-"),
        ("cp932", "# coding = Windows-31J"),
        ("utf-8", "\ufeff# frozen_string_literal: true"),
    ],
)
def test_source_is_read_as_its_magic_comment_says(tmp_path: Path, encoding: str, comment: str) -> None:
    word = "café" if encoding == "latin-1" else "漢字"
    path = tmp_path / "work.rb"
    path.write_bytes(f"{comment}\nputs '{word}'\n".encode(encoding))
    found = source_of(str(path), 0)
    assert found.lines == (*comment.removeprefix("\ufeff").split("\n"), f"puts '{word}'")


@pytest.mark.parametrize(
    "name", ["", "no-such-thing", "unicode_escape", "rot13", "idna", "utf-16", "cp1", "\udcff"]
)
def test_source_of_an_encoding_that_is_none_is_utf_8_with_escapes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "work.rb"
    path.write_bytes(f"# coding: {name}\n".encode("utf-8", "surrogateescape") + b"\xe9 = '\\n\xc3\xa9'\n")
    os.utime(path, (NOW - 100, NOW - 100))
    lines = shown(Report("--lines", recorded(tmp_path, stack(frame(path, 2)))))
    assert lines[2] == ("100.0%", "100.0%", r"\xe9 = '\né'")


def test_the_word_behind_lines_may_be_the_file(tmp_path: Path, program: Path) -> None:
    path = recorded(tmp_path, stack(frame(program, 5)))
    assert Report("--lines", path).out == Report(path, "--lines").out != ""


def test_few_rows_are_the_hottest_lines(tmp_path: Path, program: Path) -> None:
    path = recorded(tmp_path, *(stack(frame(program, line), weight=line) for line in range(1, 41)))
    report = Report(path, "--lines", "-n", "1")
    assert sorted(shown(report)) == [38, 39, 40]
    assert "... and 39 more lines, self 95.1%; -n 0 shows all" in report.out


def test_lines_that_the_file_does_not_have_are_named(tmp_path: Path, program: Path) -> None:
    report = Report(recorded(tmp_path, stack(frame(program, 99))), "--lines")
    assert "lines beyond the 40 of this file: it is not the one that ran" in report.out
    assert shown(report) == {99: ("100.0%", "100.0%", "")}


def test_a_file_that_was_written_to_since_is_shown_with_a_word(tmp_path: Path, program: Path) -> None:
    os.utime(program, (NOW + 100, NOW + 100))
    report = Report(recorded(tmp_path, stack(frame(program, 5))), "--lines")
    assert "WRITTEN TO SINCE the recording, and git does not have it as it was" in report.out
    assert shown(report)[5] == ("100.0%", "100.0%", "line 5")


def test_a_file_that_is_gone_still_has_its_hot_lines(tmp_path: Path) -> None:
    report = Report(recorded(tmp_path, stack(frame(tmp_path / "gone.rb", 5))), "--lines")
    assert report.status == 0
    assert "cannot be read: No such file or directory" in report.out
    assert shown(report) == {5: ("100.0%", "100.0%", "")}


def test_more_files_than_are_shown_are_counted(tmp_path: Path) -> None:
    path = recorded(tmp_path, *(stack(frame(f"(eval {n})", 1)) for n in range(7)))
    report = Report(path, "--lines")
    assert report.out.count("code that is in no file") == 5
    assert "... and 2 more files" in report.out


def test_a_recording_without_lines_says_so(tmp_path: Path) -> None:
    report = Report(recorded(tmp_path, stack(Frame("native", "main"))), "--lines")
    assert "no sample has a line of Ruby" in report.out


# Git


def git(folder: Path, *words: str, when: int = NOW) -> str:
    who = {
        f"GIT_{role}_{what}": value
        for role in ("AUTHOR", "COMMITTER")
        for what, value in (("NAME", "a"), ("EMAIL", "a@example.org"), ("DATE", f"@{when} +0000"))
    }
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-c", "commit.gpgSign=false", *words],
        cwd=folder,
        env={**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with lib/work.rb as of before the recording, and another version of later."""
    folder = tmp_path / "repository"
    (folder / "lib").mkdir(parents=True)
    git(folder, "init", "-q")
    for text, when in ((SOURCE, NOW - 50), ("later\n" + SOURCE, NOW + 50)):
        (folder / "lib/work.rb").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "a", when=when)
    return folder


@needs_git
def test_what_has_changed_since_comes_from_git(tmp_path: Path, repository: Path) -> None:
    path = repository / "lib/work.rb"
    report = Report(recorded(tmp_path, stack(frame(path, 5))), "--lines")
    first = git(repository, "rev-list", "HEAD").split()[1]
    assert f"from git at that time ({first[:12]}); it has changed on disk since" in report.out
    assert shown(report)[5] == ("100.0%", "100.0%", "line 5")


@needs_git
@pytest.mark.parametrize("folder_too", [False, True])
def test_what_is_not_on_disk_any_more_comes_from_git(repository: Path, folder_too: bool) -> None:
    path = repository / "lib/work.rb"
    path.unlink()
    if folder_too:
        path.parent.rmdir()
    found = source_of(str(path), NOW * 10**9)
    assert found.lines == tuple(SOURCE.splitlines())
    assert "it is not on disk any more" in found.note


@needs_git
def test_what_was_only_checked_out_again_is_as_it_was(repository: Path) -> None:
    path = repository / "lib/work.rb"
    path.write_text(SOURCE)
    found = source_of(str(path), NOW * 10**9)
    assert "as it is on disk, and in git at that time" in found.note


@needs_git
def test_what_git_has_only_since_then_is_as_on_disk_with_a_word(repository: Path) -> None:
    found = source_of(str(repository / "lib/work.rb"), (NOW - 100) * 10**9)
    assert "WRITTEN TO SINCE" in found.note
    assert "git has no commit of it from before the recording" in found.note
    assert found.lines is not None
    assert found.lines[0] == "later"


@needs_git
def test_a_repository_can_have_nothing_run(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    program.chmod(0o755)
    (repository / ".gitattributes").write_text("*.rb diff=evil filter=evil\n")
    for key in (
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshCommand",
        "diff.external",
        "diff.evil.textconv",
        "filter.evil.smudge",
        "filter.evil.process",
        "gpg.program",
        "credential.helper",
        "pager.rev-list",
        "alias.rev-list",
        "alias.cat-file",
    ):
        git(repository, "config", key, str(program))
    git(repository, "config", "log.showSignature", "true")
    hooks = repository / ".git/hooks"
    for hook in ("post-checkout", "pre-auto-gc", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(program, hooks / hook)
    found = source_of(str(repository / "lib/work.rb"), NOW * 10**9)
    assert found.lines == tuple(SOURCE.splitlines())
    assert not mark.exists()


@needs_git
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_left_alone(repository: Path) -> None:
    for each in (repository, repository / ".git"):
        os.chown(each, 65534, 65534)
    found = source_of(str(repository / "lib/work.rb"), NOW * 10**9)
    assert "belongs to another user; see safe.directory" in found.note


def test_without_git_there_is_the_disk(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = source_of(str(program), (NOW - 200) * 10**9)
    assert (
        "WRITTEN TO SINCE the recording, and git does not have it as it was (git is not installed)"
        in found.note
    )


def test_a_git_that_does_not_answer_is_given_up(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rubyunwind.report import git as git_module

    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "_PATIENCE", 0.2)
    assert "git did not answer in" in source_of(str(program), (NOW - 200) * 10**9).note


# Hostile paths


@pytest.mark.parametrize(
    ("path", "note"),
    [
        ("/dev/zero", "is no regular file, and not read"),
        ("/dev/tty", "is no regular file"),
        ("/", "is no regular file"),
        ("/nowhere/at/all.rb", "cannot be read: No such file or directory"),
        ("a\0b", "no path that a file can have"),
        ("", "code that is in no file"),
        ("(eval at /a.rb:3)", "code that is in no file"),
        ("<internal:kernel>", "code that is in no file"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("\udcff\ud800", "no path that a file can have"),
    ],
)
def test_what_is_no_file_of_source_is_not_read(path: str, note: str) -> None:
    found = source_of(path, NOW * 10**9)
    assert found.lines is None
    assert note in found.note or (path == "/dev/tty" and "cannot be read" in found.note)


def test_a_pipe_does_not_hold_us_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.rb")
    assert "is no regular file" in source_of(str(tmp_path / "pipe.rb"), NOW * 10**9).note


def test_a_link_to_itself_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "link.rb"
    link.symlink_to(link)
    assert "cannot be read: Too many levels" in source_of(str(link), NOW * 10**9).note


def test_a_file_of_any_size_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "huge.rb").open("wb") as file:
        file.truncate(1 << 40)
    assert f"has {1 << 40} bytes, too many for source" in source_of(str(tmp_path / "huge.rb"), 1).note
    monkeypatch.setattr(sources, "_LARGEST", 3)
    (tmp_path / "a.rb").write_text("1234")
    assert "has 4 bytes, too many" in source_of(str(tmp_path / "a.rb"), 1).note


@pytest.mark.parametrize("path", ["/proc/kmsg", "/proc/self/mem", "/proc/self/maps"])
def test_files_that_the_kernel_makes_up_are_read_as_the_empty_ones_they_claim_to_be(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    found = source_of(path, NOW * 10**9)
    assert not found.lines


def test_text_of_a_file_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "evil.rb"
    path.write_bytes(b"\033]0;x\a \xff \xe2\x80\xae\r\nsecond\tline\n")
    os.utime(path, (NOW, NOW - 1))
    report = Report(recorded(tmp_path, stack(frame(path, 1))), "--lines")
    for bad in "\033\a\r\u202e":
        assert bad not in report.out
    assert shown(report)[2][2] == "second  line"
