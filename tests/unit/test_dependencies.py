# SPDX-License-Identifier: Apache-2.0
"""Which files a command maps first: held against what a process that runs it has really mapped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.elf.dependencies import command_files
from rubyunwind.process.mappings import read_mappings


def mapped_by(words: list[str]) -> set[str]:
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.readline()  # past the loader
        found = {m.path for m in read_mappings(process.pid) if m.is_file and m.executable}
        process.kill()
    return found


def test_program_loader_and_libraries_are_those_that_are_mapped() -> None:
    files = {str(path) for path in command_files(["cat"])}
    assert files == mapped_by(["cat"])


def test_scripts_lead_to_their_interpreter(tmp_path: Path) -> None:
    cat = shutil.which("cat")
    assert cat is not None
    for line in (f"#!{cat}", "#!/usr/bin/env cat", "#!/usr/bin/env -S LANG=C cat -u"):
        script = tmp_path / "script"
        script.write_text(line + "\n")
        script.chmod(0o755)
        assert command_files([str(script)]) == command_files(["cat"])


def test_a_script_that_names_itself_ends(tmp_path: Path) -> None:
    script = tmp_path / "loop"
    script.write_text(f"#!{script}\n")
    script.chmod(0o755)
    assert command_files([str(script)]) == []


@pytest.mark.parametrize("words", [[], [""], ["no-such-command-anywhere"], ["/etc"]])
def test_what_cannot_be_run_has_no_files(words: list[str]) -> None:
    assert command_files(words) == []


@given(st.binary(max_size=300))
def test_any_file_is_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-program"
    path.write_bytes(content)
    path.chmod(0o755)
    assert all(isinstance(found, Path) for found in command_files([str(path)]))
