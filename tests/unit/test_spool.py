# SPDX-License-Identifier: Apache-2.0
"""Requests in a directory: whole or not there, in order, ours alone."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rubyunwind import Exporter, Sample
from rubyunwind.errors import RubyUnwindError
from rubyunwind.push.bodies import Request
from rubyunwind.push.spool import Spool

LIMIT = 1 << 20


def request(number: int, size: int = 100) -> Request:
    return Request(number, f"name=n{number}", bytes([number]) * size)


def spool(path: Path | None, limit: int = LIMIT, format_: str = "pprof") -> Spool:
    return Spool(path, format_, limit)


def drained(one: Spool) -> list[Request]:
    found = []
    while (head := one.head()) is not None:
        found.append(head)
        one.pop()
    return found


def files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.name != "lock")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "spool"


def test_what_is_put_comes_out_in_order_also_of_the_next_one(path: Path) -> None:
    requests = [request(number) for number in range(1, 6)]
    first = spool(path)
    for each in requests[:3]:
        first.put(each)
    assert (len(first), first.size, first.samples) == (3, 300, 6)
    assert first.head() == requests[0]
    first.pop()
    first.close()
    second = spool(path)
    assert (len(second), second.samples) == (2, 5)
    for each in requests[3:]:
        second.put(each)
    assert drained(second) == requests[1:]
    assert (len(second), second.size, second.samples) == (0, 0, 0)
    assert files(path) == []
    second.close()
    assert not first.lost
    assert not second.lost


def test_the_directory_and_its_files_are_the_users_alone(path: Path) -> None:
    one = spool(path)
    one.put(request(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
    one.close()


def test_two_at_once_are_refused(path: Path) -> None:
    one = spool(path)
    with pytest.raises(
        RubyUnwindError, match=f"process {os.getpid()} does; name another directory, or end it"
    ):
        spool(path)
    one.close()
    spool(path).close()


def test_a_lock_goes_with_its_process(path: Path) -> None:
    code = (
        "import sys; from rubyunwind.push.spool import Spool\n"
        f"one = Spool({str(path)!r}, 'pprof', 1000); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(RubyUnwindError, match=f"process {holder.pid} does"):
        spool(path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    spool(path).close()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o720])
def test_a_directory_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    path.mkdir(parents=True)
    path.chmod(mode)
    with pytest.raises(
        RubyUnwindError, match=rf"others may write there \(owner {os.geteuid()}, mode {mode:o}"
    ):
        spool(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    os.chown(path, 65534, 65534)
    with pytest.raises(RubyUnwindError, match=r"others may write there \(owner 65534"):
        spool(path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(RubyUnwindError, match=r"cannot spool in .*; name another directory"):
            spool(bad)


def test_a_lock_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    path.mkdir(mode=0o700, parents=True)
    (path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RubyUnwindError, match="cannot spool"):
        spool(path)
    assert not (tmp_path / "precious").exists()


def test_a_half_written_file_is_removed_and_unknown_ones_are_left_alone(path: Path, tmp_path: Path) -> None:
    one = spool(path)
    one.put(request(1))
    one.close()
    (path / ".0000000000000002.pprof.part").write_bytes(b"half")
    left = ["notes.txt", "0000000000000003.pprof.bak", "3.pprof", "000000000000000x.pprof", ".part"]
    for name in left:
        (path / name).write_text("mine")
    (path / "0000000000000004.pprof").mkdir()
    (path / "0000000000000005.pprof").symlink_to(tmp_path / "precious")
    os.mkfifo(path / "0000000000000006.pprof")
    (tmp_path / "precious").write_text("precious")
    two = spool(path)
    assert drained(two) == [request(1)]
    two.put(request(9))
    assert drained(two) == [request(9)]
    two.close()
    special = [f"000000000000000{number}.pprof" for number in (4, 5, 6)]
    assert files(path) == sorted([*left, *special])
    assert (tmp_path / "precious").read_text() == "precious"
    assert not two.lost


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:20], lambda data: data[:-1], lambda data: data + b"x",
     lambda data: data[:40] + b"\xff" + data[41:], lambda data: b"x" * len(data)],
    ids=["empty", "header only", "short", "long", "a byte changed", "not ours"],
)  # fmt: skip
def test_a_damaged_file_is_dropped_and_those_behind_it_go(path: Path, damage: object) -> None:
    one = spool(path)
    for number in (1, 2, 3):
        one.put(request(number))
    one.close()
    second = path / files(path)[1]
    second.write_bytes(damage(second.read_bytes()))  # type: ignore[operator]
    two = spool(path)
    assert drained(two) == [request(1), request(3)]
    assert list(two.lost) == ["damaged in the spool"]
    assert files(path) == []
    two.close()


def test_a_file_that_was_removed_by_hand_is_counted(path: Path) -> None:
    one = spool(path)
    for number in (1, 2):
        one.put(request(number))
    (path / files(path)[0]).unlink()
    assert drained(one) == [request(2)]
    assert one.lost == {"damaged in the spool": 1}
    one.close()


@pytest.mark.parametrize("in_memory", [False, True])
def test_the_oldest_make_room(path: Path, in_memory: bool) -> None:
    one = spool(None if in_memory else path, limit=350)
    for number in range(1, 7):
        one.put(request(number))
        assert one.size <= 350
    assert one.lost == {"the spool was full, the oldest made room": 1 + 2 + 3}
    one.put(request(7, size=351))
    assert one.lost["larger than the whole spool"] == 7
    assert drained(one) == [request(number) for number in (4, 5, 6)]
    one.close()


def test_a_smaller_limit_holds_from_the_start(path: Path) -> None:
    one = spool(path)
    for number in range(1, 7):
        one.put(request(number))
    one.close()
    two = spool(path, limit=400)
    assert two.lost["the spool was full, the oldest made room"] > 0
    assert sum(each.stat().st_size for each in path.iterdir() if each.name != "lock") <= 400
    assert drained(two)[-1] == request(6)
    two.close()


def test_requests_of_another_format_are_left_there(path: Path) -> None:
    one = spool(path, format_="otlp")
    one.put(request(1))
    one.close()
    with Exporter("http://127.0.0.1:1/ingest", spool=path) as exporter:
        assert exporter.notes == ("1 requests in the spool are of another format; they are left there",)
        assert exporter.stats.waiting == 0
    two = spool(path, format_="otlp")
    assert drained(two) == [request(1)]
    two.close()


def test_what_the_disk_does_not_take_waits_in_memory_and_is_told(path: Path) -> None:
    one = spool(path)
    one.put(request(1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
        one.put(request(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, previous)
    assert one.trouble == "File too large"
    assert one.unwritten == 1
    assert len(files(path)) == 1
    assert len(one) == 2
    one.put(request(3))
    assert one.trouble == ""
    assert drained(one) == [request(number) for number in (1, 2, 3)]
    one.close()


def test_a_full_disk_is_told_apart_from_a_receiver_that_is_down(path: Path) -> None:
    with Exporter("http://127.0.0.1:1/ingest", spool=path, every=1e6) as exporter:
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
        exporter.add([Sample(1, 2, 3, "ruby", ())])
        exporter.flush(0)
        exporter.poll()
        stats = exporter.stats
        assert (stats.trouble, stats.spool_trouble) == ("Connection refused", "No such file or directory")
        assert (stats.unspooled, stats.waiting) == (1, 1)
    assert exporter.stats.lost == (("not sent before the end", 1),)


def test_what_waits_in_memory_only_is_lost_when_it_is_closed(path: Path) -> None:
    one = spool(path)
    one.put(request(1))
    one.put(request(2))
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    one.put(request(3))
    assert one.trouble == "No such file or directory"
    one.close()
    assert one.lost == {"not sent before the end": 3}


def test_nothing_secret_is_in_a_file(path: Path) -> None:
    with Exporter("http://user:secret@127.0.0.1:1/ingest?key=secret", spool=path) as exporter:
        exporter.add([Sample(1, 2, 3, "ruby", ())])
        exporter.flush(0)
        [name] = files(path)
        data = (path / name).read_bytes()
    assert b"secret" not in data
    assert b"127.0.0.1" not in data
    assert b"name=rubyunwind" in data


def test_its_lock_is_an_flock(path: Path) -> None:
    """So that `flock DIR/lock` can be used by scripts that look after the directory."""
    one = spool(path)
    with (path / "lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    one.close()
