# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubyunwind.errors import AttachError
from rubyunwind.process import identity
from rubyunwind.process.identity import (
    ProcessIdentity,
    check_attachable,
    parse_status,
    read_status,
    threads,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields() -> None:
    text = b"42 (a) R (b c) S 1 42 42 0 -1 4194560 " + b"0 " * 12 + b"98765 0 0\n"
    status = parse_status(42, text)
    assert (status.comm, status.state, status.start_time) == ("a) R (b c", "S", 98765)
    assert not status.kernel_thread


def test_a_stat_file_of_another_shape_is_refused() -> None:
    for text in (b"", b"42 (a", b"42 (a) S 1 2"):
        with pytest.raises(AttachError, match="not understood"):
            parse_status(42, text)


def test_a_process_is_alive_until_it_ends_also_as_a_zombie(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity.is_alive()
    assert identity.comm
    sleeper.kill()
    while read_status(sleeper.pid).state != "Z":
        time.sleep(0.001)
    assert not identity.is_alive()
    with pytest.raises(AttachError, match="zombie"):
        check_attachable(sleeper.pid)
    sleeper.wait()
    assert not identity.is_alive()
    assert identity.comm == ""
    assert threads(sleeper.pid) == []


def test_another_start_time_is_another_process() -> None:
    now = ProcessIdentity.of(os.getpid())
    assert now == check_attachable(os.getpid())
    assert not ProcessIdentity(now.pid, now.start_time - 1).is_alive()


@pytest.mark.parametrize("pid", [0, -1])
def test_a_pid_is_positive(pid: int) -> None:
    with pytest.raises(AttachError, match="positive"):
        check_attachable(pid)


def test_no_such_process_is_named(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(AttachError, match=f"process {sleeper.pid}: no such process"):
        check_attachable(sleeper.pid)


def test_a_threads_id_is_told_from_a_process() -> None:
    ready, done = threading.Event(), threading.Event()

    def run() -> None:
        ready.set()
        done.wait()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        assert thread.native_id in threads(os.getpid())
        with pytest.raises(AttachError, match=f"is a thread of process {os.getpid()}"):
            check_attachable(thread.native_id or 0)
    finally:
        done.set()
        thread.join()


def test_a_kernel_thread_runs_no_program() -> None:
    try:
        status = read_status(2)
    except AttachError:
        pytest.skip("no kernel threads are visible in this PID namespace")
    if not status.kernel_thread:
        pytest.skip("no kernel threads are visible in this PID namespace")
    with pytest.raises(AttachError, match="kernel thread"):
        check_attachable(2)


def test_missing_rights_are_told_with_what_would_help(sleeper: subprocess.Popen[bytes]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user to try it")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            check_attachable(sleeper.pid)
            message = "attached"
        except AttachError as error:
            message = str(error)
        os.write(writer, message.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    message = os.read(reader, 1000).decode()
    os.close(reader)
    assert "may not be read" in message
    assert "CAP_SYS_PTRACE" in message


def test_a_zombie_main_thread_is_no_end_while_other_threads_run() -> None:
    """So it is for a moment when a thread calls exec; the process then goes on under the same pid."""
    head, tail = b"42 (ruby) Z 1 42 42 0 -1 4194560 " + b"0 " * 10, b" 0 98765 0 0\n"
    assert parse_status(42, head + b"1" + tail).ended
    assert not parse_status(42, head + b"2" + tail).ended
    assert not parse_status(42, head.replace(b"Z", b"S") + b"1" + tail).ended


def test_an_exec_between_two_fields_of_the_status_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Path("/proc/self/stat").read_bytes()
    name, _, rest = running.rpartition(b") ")
    fields = rest.split()
    torn = name + b") " + b" ".join([b"Z", *fields[1:17], b"1", *fields[18:]])
    answers = [torn, running]
    monkeypatch.setattr(identity, "_stat", lambda _: answers.pop(0))
    assert not read_status(os.getpid()).ended
    answers += [torn, torn]
    assert read_status(os.getpid()).ended


def test_whether_proc_hides_is_asked_only_of_a_process_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most that are looked for in vain have just ended, and an agent meets many of them."""
    asked: list[bool] = []
    monkeypatch.setattr(identity, "_proc_hides", lambda: asked.append(True) or True)
    monkeypatch.setattr(identity, "_stat", lambda pid: Path(f"/proc/{pid}/no such file").read_bytes())
    with pytest.raises(AttachError, match="hidepid"):
        read_status(os.getpid())
    assert asked == [True]
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(AttachError) as caught:
        read_status(child.pid)
    assert "hidepid" not in str(caught.value)
    assert asked == [True]
