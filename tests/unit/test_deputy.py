# SPDX-License-Identifier: Apache-2.0
"""A deputy reads files for us, and is given up when it does not answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.errors import AttachError, GivenUp
from rubyunwind.process import deputy as module
from rubyunwind.process.deputy import Deputies
from rubyunwind.process.mappings import read_mappings


@pytest.fixture
def deputies() -> Iterator[Deputies]:
    """Deputies of the test's own, of which nothing is left at its end."""
    before = descriptors()
    found = Deputies()
    yield found
    end = time.monotonic() + 10
    while children() and time.monotonic() < end:
        found.reap()
        time.sleep(0.02)
    assert not children()
    assert descriptors() == before


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def children() -> list[int]:
    found = []
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if not command or b"deputy_program" in command:
            found.append(int(child))
    return found


def test_a_file_is_read_as_it_is_and_the_deputy_ends_with_it(deputies: Deputies, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    file = deputies.open_path(str(path))
    status = path.stat()
    assert file.size == len(data)
    assert file.stamp == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    assert file.read(0, len(data)) == data
    assert file.read(299_990, 100) == data[-10:]
    assert len(children()) == 1
    file.close()
    file.close()
    assert not children()


def test_a_mapped_file_is_found_by_its_mapping(deputies: Deputies) -> None:
    mapping = next(one for one in read_mappings(os.getpid()) if one.executable and one.is_file)
    file = deputies.open(os.getpid(), mapping)
    assert file.read(0, 4) == b"\x7fELF"
    file.close()


def test_what_goes_wrong_has_its_reason(deputies: Deputies, tmp_path: Path) -> None:
    with pytest.raises(GivenUp, match="No such file"):
        deputies.open_path(str(tmp_path / "none"))
    with pytest.raises(GivenUp, match="is no regular file"):
        deputies.open_path(str(tmp_path))
    mapping = next(one for one in read_mappings(os.getpid()) if one.is_file)
    with pytest.raises(AttachError, match="it has ended"):
        deputies.open(1 << 22, mapping)


def test_a_source_is_read_whole_and_never_one_that_is_too_large(deputies: Deputies, tmp_path: Path) -> None:
    path = tmp_path / "a.rb"
    path.write_bytes(b"x\n" * 200_000)
    text, size, changed = deputies.read_source(str(path), 1 << 20)
    assert (text, size, changed) == (path.read_bytes(), 400_000, path.stat().st_mtime_ns)
    assert deputies.read_source(str(path), 399_999)[:2] == (b"", 400_000)


def test_one_that_does_not_answer_is_given_up_and_another_one_goes_on(
    deputies: Deputies, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    file = deputies.open_path(str(path))
    (silent,) = children()
    os.kill(silent, signal.SIGSTOP)
    with pytest.raises(GivenUp, match="does not answer"):
        file.read(0, 4)
    assert "does not answer" in file.trouble
    end = time.monotonic() + 10
    while silent in children() and time.monotonic() < end:
        deputies.reap()
    assert file.read(0, 4) == b"data"  # it has ended, so its file system may be asked again
    file.close()


def test_all_waiting_together_is_bounded(
    deputies: Deputies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    monkeypatch.setattr(module, "_SHARE", 0.0)
    file = deputies.open_path(str(path))
    reasons: list[str] = []
    end = time.monotonic() + 30
    while not any("take too long" in reason for reason in reasons):
        try:
            file.read(0, 4)  # by one that is started for it, if need be
        except GivenUp as error:
            reasons.append(str(error))
        for child in children():
            os.kill(child, signal.SIGSTOP)
        assert time.monotonic() < end
        time.sleep(0.01)  # one that was killed takes a moment
    file.close()


def test_no_more_than_some_are_given_up(deputies: Deputies) -> None:
    class Unkillable:
        returncode = None

        def poll(self) -> None:
            return None

    deputies._silent = {-100 - n: Unkillable() for n in range(module._MOST_LOST)}  # type: ignore[misc]
    with pytest.raises(GivenUp, match="8 file systems do not answer"):
        deputies.open_path("/dev/null")
    deputies._silent = {}


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "", None])
def test_a_program_that_embeds_python_is_not_run_for_it(
    deputies: Deputies, executable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    python = str(Path(module.sys.executable).resolve())
    monkeypatch.setattr(module.sys, "executable", executable)
    monkeypatch.setattr(module.shutil, "which", lambda name: python if name == "python3" else None)
    file = deputies.open_path(str(tmp_path / "file"))
    assert file.read(0, 4) == b"data"
    file.close()
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(GivenUp, match="no Python was found"):
        deputies.open_path(str(tmp_path / "file"))


def test_a_child_of_ours_has_a_deputy_of_its_own(deputies: Deputies, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    file = deputies.open_path(str(path))
    child = os.fork()
    if not child:
        try:
            other = deputies.open_path(str(path))
            good = other.read(0, 4) == b"data"
            other.close()
            file.close()  # our parent's goes on
            os._exit(0 if good and not children() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read(0, 4) == b"data"
    file.close()
