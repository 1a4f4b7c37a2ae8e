# SPDX-License-Identifier: Apache-2.0
"""Pushing to receivers that are up, down, slow, full, and gone in between: nothing goes without a count."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from format_readers import read_otlp, read_pprof

from receiver import PATIENCE, Received, answer, cut_off, drip, free_port, hang_up, receiving
from rubyunwind import Endpoint, Exporter, Sample, Totals
from rubyunwind.bpf.lifetime import LifetimeError
from rubyunwind.errors import RubyUnwindError
from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame
from rubyunwind.push import bodies
from rubyunwind.push import exporter as exporter_module
from rubyunwind.push.backoff import Backoff

STARTED = 1_700_000_000_000_000_000
META = Meta("ruby app.rb", "ruby app.rb", STARTED, 0.0, 99.0, ("ruby 3.1.2",))
FORMATS = ["pprof", "otlp"]


pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")


def samples(names: Iterable[str], start: int = STARTED) -> list[Sample]:
    return [
        Sample(start + number, 7, 8 + number % 2, "ruby", (Frame("ruby", name, path="/a.rb", line=1),))
        for number, name in enumerate(names)
    ]


def batch(number: int) -> list[Sample]:
    """Ten samples, told apart from those of other batches by their name."""
    return samples([f"batch{number}"] * 10, STARTED + number * 1_000_000_000)


def pushing(url: str, format_: str = "pprof", **options: Any) -> Exporter:
    """An Exporter that waits for nothing between its attempts."""
    timeout = options.pop("timeout", PATIENCE)
    headers = options.pop("headers", ())
    options.setdefault("backoff", Backoff(first=0.001, most=0.001, most_asked=0.001))
    endpoint = Endpoint.of(url, format=format_, timeout=timeout, headers=headers)
    return Exporter(endpoint, every=1e6, **options)


def close_batch(exporter: Exporter) -> None:
    """Close the batch that grows, and send nothing."""
    exporter._close_batch()


def arrived(requests: Iterable[Received], format_: str = "pprof") -> Counter[str]:
    """Weights by the name of the leaf."""
    found: Counter[str] = Counter()
    for request in requests:
        stacks = read_otlp(request.plain).stacks if format_ == "otlp" else read_pprof(request.body).stacks
        for key, weight in stacks.items():
            found[key.stack[-1].name] += weight
    return found


def accounted(exporter: Exporter) -> bool:
    stats = exporter.stats
    return stats.taken + stats.resumed == stats.sent + stats.waiting + sum(count for _, count in stats.lost)


# ---- what is sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
def test_what_arrives_weighs_what_was_added(format_: str) -> None:
    with receiving() as receiver, pushing(receiver.url, format_) as exporter:
        for number in range(3):
            exporter.add(batch(number))
            assert exporter.flush(PATIENCE)
        stats = exporter.stats
    assert arrived(receiver.taken, format_) == {"batch0": 10, "batch1": 10, "batch2": 10}
    assert (stats.taken, stats.sent, stats.requests, stats.waiting, stats.lost) == (30, 30, 3, 0, ())
    assert stats.sent_bytes == sum(len(request.body) for request in receiver.taken)


def test_otlp_is_an_export_request_of_its_resource() -> None:
    with receiving() as receiver:
        endpoint = Endpoint.of(
            receiver.url, headers=[("Authorization", "Bearer s3cret")], attributes=[("service.name", "shop")]
        )
        with Exporter(endpoint) as exporter:
            exporter.update(Totals(read=10, lost=3, failed=(("limit", 2),)), META)
            exporter.add(batch(0))
            assert exporter.flush(PATIENCE)
            exporter.update(Totals(read=20, lost=4, failed=(("limit", 2),)), META)
            exporter.add(batch(1))
            assert exporter.flush(PATIENCE)
    first, second = receiver.taken
    assert first.target == "/v1development/profiles"
    assert first.headers["content-type"] == "application/x-protobuf"
    assert first.headers["content-encoding"] == "gzip"
    assert first.headers["authorization"] == "Bearer s3cret"
    assert first.headers["host"] == f"127.0.0.1:{receiver.port}"
    data = read_otlp(first.plain).data
    [resource] = data.resource_profiles
    attributes = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert attributes == {"service.name": "shop", "host.name": socket.gethostname()}

    def told(request: Received) -> dict[str, int]:
        data = read_otlp(request.plain).data
        [profile] = data.resource_profiles[0].scope_profiles[0].profiles
        rows = [data.dictionary.attribute_table[index] for index in profile.attribute_indices]
        return {data.dictionary.string_table[row.key_strindex]: row.value.int_value for row in rows}

    # Of its own time only: the sum over requests is what was counted.
    head = "rubyunwind.samples."
    assert told(first) == {
        f"{head}read": 10,
        f"{head}lost": 3,
        f"{head}truncated": 0,
        f"{head}failed.limit": 2,
    }
    assert told(second) == {f"{head}read": 10, f"{head}lost": 1, f"{head}truncated": 0}
    ids = {
        read_otlp(request.plain).data.resource_profiles[0].scope_profiles[0].profiles[0].profile_id
        for request in receiver.taken
    }
    assert len(ids) == 2
    assert {len(each) for each in ids} == {16}


def test_pprof_has_what_ingest_asks_for() -> None:
    with receiving() as receiver:
        endpoint = Endpoint.of(
            f"{receiver.url}/ingest?tenant=1", attributes=[("service.name", "my shop"), ("host.name", "a,b}")]
        )
        with Exporter(endpoint, meta=META) as exporter:
            exporter.add(batch(0))
            assert exporter.flush(PATIENCE)
    [request] = receiver.taken
    parts = urlsplit(request.target)
    assert parts.path == "/ingest"
    assert parse_qs(parts.query) == {
        "tenant": ["1"],
        "name": ["my_shop{host.name=a_b_}"],
        "from": ["1700000000"],
        "until": ["1700000001"],
        "format": ["pprof"],
        "spyName": ["rubyunwind"],
        "sampleRate": ["99"],
    }
    assert request.headers["content-type"] == "application/octet-stream"
    assert "content-encoding" not in request.headers
    assert read_pprof(request.body).time == STARTED


def test_the_time_of_day_is_the_samples_own() -> None:
    """Also where the clock was set meanwhile: nothing else says when a batch was."""
    with receiving() as receiver, pushing(receiver.url, "otlp", meta=META) as exporter:
        exporter.add(samples(["early"], 5_000_000_000))
        assert exporter.flush(PATIENCE)
    [profile] = read_otlp(receiver.taken[0].plain).data.resource_profiles[0].scope_profiles[0].profiles
    assert profile.time_unix_nano == 5_000_000_000
    assert profile.duration_nano < PATIENCE * 1_000_000_000


def test_a_batch_too_large_for_a_request_is_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies._MOST_BYTES, "pprof", 1500)
    many = samples([f"name{number}" for number in range(100)])
    with receiving() as receiver, pushing(receiver.url) as exporter:
        exporter.add(many)
        assert exporter.flush(PATIENCE)
        assert exporter.stats.sent == 100
    assert len(receiver.taken) > 3
    assert arrived(receiver.taken) == {f"name{number}": 1 for number in range(100)}


def test_a_sample_too_large_for_a_request_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bodies._MOST_BYTES, "pprof", 1500)
    with receiving() as receiver, pushing(receiver.url) as exporter:
        exporter.add(samples(["x" * 2000, "small"]))
        assert exporter.flush(PATIENCE)
        assert exporter.stats.lost == (("too large for a request", 1),)
        assert accounted(exporter)
    assert arrived(receiver.taken) == {"small": 1}


def test_nothing_is_sent_of_no_samples() -> None:
    with receiving() as receiver, pushing(receiver.url) as exporter:
        exporter.add([])
        assert exporter.flush(PATIENCE)
    assert receiver.seen == []


def test_a_batch_is_closed_when_it_is_due_or_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        with Exporter(receiver.url + "/ingest", every=1e6) as exporter:
            exporter.add(batch(0))
            assert exporter.poll() == pytest.approx(1.0)
            assert receiver.seen == []
            monkeypatch.setattr(exporter_module, "_BATCH", 15)
            exporter.add(batch(0))
            exporter.poll()
            assert arrived(receiver.taken) == {"batch0": 20}
        with Exporter(receiver.url + "/ingest", every=0.001) as exporter:
            exporter.add(batch(1))
            time.sleep(0.002)
            exporter.poll()
        assert arrived(receiver.taken) == {"batch0": 20, "batch1": 10}


def test_what_nobody_polls_for_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module, "_MOST_PENDING", 15)
    with receiving() as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        exporter.add(batch(1))
        assert exporter.stats.lost == (("poll was not called in time", 10),)
        assert accounted(exporter)
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10}


def test_what_cannot_be_encoded_is_counted_and_the_next_batch_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver, pushing(receiver.url) as exporter:
        exporter.add([Sample(STARTED, 7, 7, "ruby", (Frame("ruby", "a", line=1 << 70),))])
        assert exporter.flush(PATIENCE)
        assert exporter.stats.lost == (("could not be encoded", 1),)
        assert "OverflowError" in exporter.stats.trouble
        exporter.add(batch(1))
        assert exporter.flush(PATIENCE)
        assert exporter.stats.trouble == ""
        assert accounted(exporter)
    assert arrived(receiver.taken) == {"batch1": 10}


# ---- what is tried again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_receiver_that_is_busy_gets_it_again_and_in_order(format_: str, status: int) -> None:
    with receiving([answer(status)] * 3) as receiver, pushing(receiver.url, format_) as exporter:
        for number in range(2):
            exporter.add(batch(number))
            close_batch(exporter)
        assert exporter.flush(PATIENCE)
        assert exporter.stats.retries == 3
        assert accounted(exporter)
    assert [len(arrived([request], format_)) for request in receiver.taken] == [1, 1]
    assert [*arrived(receiver.taken, format_)] == ["batch0", "batch1"]
    assert receiver.seen[0].body == receiver.seen[3].body


@pytest.mark.parametrize(("format_", "status"), [
    ("otlp", 400), ("otlp", 401), ("otlp", 404), ("otlp", 408), ("otlp", 413), ("otlp", 500), ("otlp", 307),
    ("pprof", 400), ("pprof", 413), ("pprof", 422), ("pprof", 301),
])  # fmt: skip
def test_what_is_refused_for_good_is_counted_and_not_tried_again(format_: str, status: int) -> None:
    with (
        receiving([answer(status, b"because of this")]) as receiver,
        pushing(receiver.url, format_) as exporter,
    ):
        for number in range(2):
            exporter.add(batch(number))
            close_batch(exporter)
        exporter.poll()
        stats = exporter.stats
        assert stats.lost == ((f"refused by the receiver: {status}", 10),)
        assert f"it answered {status}" in stats.trouble
        assert "because of this" in stats.trouble
        assert ("redirections are not followed" in stats.trouble) == (status < 400)
        # The next one waits: a receiver that refuses all for a while does not get the whole spool to drop.
        assert stats.waiting == 10
        assert exporter.flush(PATIENCE)
        assert accounted(exporter)
    assert arrived(receiver.taken, format_) == {"batch1": 10}
    assert len(receiver.seen) == 2


@pytest.mark.parametrize("status", [408, 500, 599])
def test_pprof_is_tried_again_where_pyroscope_may_recover(status: int) -> None:
    with receiving([answer(status)]) as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10}


def test_a_receiver_that_hangs_up_gets_it_again() -> None:
    with receiving([hang_up, hang_up]) as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        exporter.flush(0)
        exporter.poll()
        assert exporter.stats.trouble == "it closed the connection without an answer"
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10}
    assert len(receiver.seen) == 3


def test_an_answer_cut_off_in_its_body_is_one() -> None:
    """It has said that it took the request: to send that again would count it twice."""
    with receiving([cut_off]) as receiver, pushing(receiver.url, "otlp") as exporter:
        exporter.add(batch(0))
        assert exporter.flush(PATIENCE)
        assert exporter.stats.sent == 10
    assert len(receiver.seen) == 1


@pytest.mark.parametrize(
    "nonsense", [b"SSH-2.0-OpenSSH_9.2\r\n", b"\0\xff" * 50_000, b"HTTP/1.1 99999 x\r\n\r\n"]
)
def test_what_is_no_http_is_a_failure(nonsense: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client, suppress(ConnectionError):
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pushing(f"http://127.0.0.1:{server.getsockname()[1]}") as exporter:
            exporter.add(batch(0))
            close_batch(exporter)
            exporter.poll()
            assert "its answer is no HTTP" in exporter.stats.trouble
            assert exporter.stats.waiting == 10
        thread.join(PATIENCE)


def test_a_receiver_that_answers_a_byte_at_a_time_holds_nobody() -> None:
    with receiving(usually=drip) as receiver, pushing(receiver.url, timeout=0.3) as exporter:
        exporter.add(batch(0))
        close_batch(exporter)
        began = time.monotonic()
        exporter.poll()
        assert exporter.stats.trouble == "no answer within 0.3 s"
        assert time.monotonic() - began < PATIENCE  # it would drip for half an hour
        assert exporter.stats.waiting == 10


def test_a_receiver_that_does_not_read_holds_nobody() -> None:
    noise = [Sample(STARTED, 7, 7, "ruby", (Frame("ruby", os.urandom(500_000).hex()),)) for _ in range(3)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with pushing(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.3) as exporter:
            exporter.add(noise)
            close_batch(exporter)
            exporter.poll()
            assert exporter.stats.trouble == "no answer within 0.3 s"


def test_an_early_refusal_is_read_though_the_body_was_not_taken() -> None:
    noise = [Sample(STARTED, 7, 7, "ruby", (Frame("ruby", os.urandom(1_000_000).hex()),))]
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pushing(f"http://127.0.0.1:{server.getsockname()[1]}") as exporter:
            exporter.add(noise)
            assert exporter.flush(PATIENCE)
            assert exporter.stats.lost == (("refused by the receiver: 413", 1),)
        thread.join(PATIENCE)


def test_another_thread_can_cut_a_request_off() -> None:
    waiting = threading.Event()

    def wait(handler: Any) -> None:
        waiting.set()
        drip(handler)

    with receiving(usually=wait) as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        close_batch(exporter)
        thread = threading.Thread(target=exporter.poll)
        thread.start()
        assert waiting.wait(PATIENCE)
        while thread.is_alive():
            exporter.abort()
            thread.join(0.01)
        assert exporter.stats.waiting == 10
        assert exporter.stats.retries == 1
        assert exporter.stats.trouble == "it was cut off"
        exporter.add(batch(1))  # and it goes on
        receiver.usually = answer(200)
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken[-2:]) == {"batch0": 10, "batch1": 10}


# ---- a receiver that is down -------------------------------------------------------------------------------


@pytest.mark.parametrize("spooled", [False, True], ids=["in memory", "spooled"])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_receiver_that_was_down_gets_everything_in_order(
    tmp_path: Path, format_: str, spooled: bool
) -> None:
    port = free_port()
    spool = tmp_path / "spool" if spooled else None
    with pushing(f"http://127.0.0.1:{port}", format_, spool=spool) as exporter:
        for number in range(4):
            exporter.add(batch(number))
            exporter.flush(0)
            exporter.poll()
        assert exporter.stats.trouble == "Connection refused"
        assert exporter.stats.waiting == 40
        assert exporter.stats.waiting_requests == 4
        with receiving(port=port) as receiver:
            assert exporter.flush(PATIENCE)
            # And goes away, and is back.
        exporter.add(batch(4))
        exporter.flush(0)
        exporter.poll()
        assert exporter.stats.waiting == 10
        with receiving(port=port) as again:
            assert exporter.flush(PATIENCE)
        assert accounted(exporter)
        assert exporter.stats.lost == ()
    assert [*arrived(receiver.taken, format_).items()] == [(f"batch{number}", 10) for number in range(4)]
    assert arrived(again.taken, format_) == {"batch4": 10}


@pytest.mark.parametrize("spooled", [False, True], ids=["in memory", "spooled"])
def test_where_the_spool_is_full_the_oldest_makes_room_and_is_counted(tmp_path: Path, spooled: bool) -> None:
    port = free_port()
    [request], _ = bodies.requests_of("pprof", _columns(batch(0)), Totals(read=10), META, {})
    limit = 3 * len(request.body) + 100
    spool = tmp_path / "spool" if spooled else None
    with pushing(f"http://127.0.0.1:{port}", spool=spool, spool_size=limit, meta=META) as exporter:
        for number in range(8):
            exporter.add(batch(number))
            close_batch(exporter)
            assert exporter.stats.waiting_bytes <= limit
        stats = exporter.stats
        kept = stats.waiting_requests
        assert 2 <= kept <= 3
        assert stats.lost == (("the spool was full, the oldest made room", 10 * (8 - kept)),)
        assert accounted(exporter)
        with receiving(port=port) as receiver:
            assert exporter.flush(PATIENCE)
    assert [*arrived(receiver.taken)] == [f"batch{number}" for number in range(8 - kept, 8)]


def _columns(some: list[Sample]) -> Any:
    from rubyunwind.profiler.samples import Samples

    return Samples(some)


def test_without_a_spool_what_was_not_sent_is_lost_at_the_end_and_counted() -> None:
    with pushing(f"http://127.0.0.1:{free_port()}") as exporter:
        exporter.add(batch(0))
        exporter.flush(0)
        exporter.add(batch(1))
    assert exporter.stats.lost == (("not sent before the end", 20),)
    assert exporter.stats.waiting == 0
    assert accounted(exporter)


def test_the_next_one_sends_what_the_last_one_left(tmp_path: Path) -> None:
    port = free_port()
    url, spool = f"http://127.0.0.1:{port}", tmp_path / "spool"
    with pushing(url, spool=spool) as exporter:
        exporter.add(batch(0))
        exporter.flush(0)
        exporter.add(batch(1))  # the batch that grows is kept, too
    assert exporter.stats.waiting == 20
    assert exporter.stats.lost == ()
    with receiving(port=port) as receiver, pushing(url, spool=spool) as second:
        assert second.stats.resumed == second.stats.waiting == 20
        assert any("20 samples of an earlier run" in note for note in second.notes)
        second.add(batch(2))
        assert second.flush(PATIENCE)
        assert second.stats.sent == 30
        assert accounted(second)
    assert [*arrived(receiver.taken)] == ["batch0", "batch1", "batch2"]
    assert [path.name for path in spool.iterdir()] == ["lock"]


def test_after_kill_nine_the_next_one_sends_every_batch_that_was_closed(tmp_path: Path) -> None:
    port, spool = free_port(), tmp_path / "spool"
    code = (
        "import os, signal, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_exporter import *\n"
        f"exporter = pushing('http://127.0.0.1:{port}', spool={str(spool)!r})\n"
        "for number in range(3): exporter.add(batch(number)); exporter.flush(0)\n"
        "exporter.add(batch(3))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, *map(str, Path(__file__).parents[:2])], check=False)
    assert killed.returncode == -9
    with receiving(port=port) as receiver, pushing(f"http://127.0.0.1:{port}", spool=spool) as exporter:
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10, "batch1": 10, "batch2": 10}


# ---- pace --------------------------------------------------------------------------------------------------


class Noted(Backoff):
    """Notes what receivers ask for, and waits until the end of the test."""

    def __init__(self) -> None:
        super().__init__(first=1e6, most=1e6, most_asked=1e6)
        self.asked: list[float | None] = []

    def failed(self, asked: float | None = None) -> None:
        self.asked.append(asked)
        super().failed(asked)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("7", 7.0),
        ("Fri, 01 Jan 2100 00:00:07 GMT", 7.0),
        ("Thu, 31 Dec 2099 23:00:00 GMT", 0.0),
        ("999999999999", 999999999.0),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("nan", None),
        ("Fri, 99 Jan 2100 00:00:07 GMT", None),
    ],
)
def test_a_receiver_says_how_long_to_wait(text: str, asked: float | None) -> None:
    """A moment is held against the receiver's own clock; ours may be off by decades."""

    def busy(handler: Any) -> None:
        handler.date_time_string = lambda: "Fri, 01 Jan 2100 00:00:00 GMT"
        answer(503, Retry_After=text)(handler)

    noted = Noted()
    with receiving([busy]) as receiver, pushing(receiver.url, backoff=noted) as exporter:
        exporter.add(batch(0))
        close_batch(exporter)
        exporter.poll()
        assert noted.asked == [asked]
        if asked != 0:
            exporter.poll(PATIENCE)
            assert len(receiver.seen) == 1  # nothing is sent meanwhile, and nobody is held


@pytest.mark.parametrize(("asked", "low", "high"), [(0, 0, 0), (7, 7, 7.7), (299, 299, 329), (1e9, 300, 330)])
def test_what_is_asked_for_is_waited_for_within_limits(
    monkeypatch: pytest.MonkeyPatch, asked: float, low: float, high: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    backoff = Backoff()
    backoff.failed(asked)
    assert low <= backoff.left <= high


def test_the_wait_doubles_up_to_its_limit_and_success_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff = Backoff()
    assert backoff.left == 0
    waits = []
    for _ in range(100):
        backoff.failed()
        waits.append(backoff.left)
    for number, wait in enumerate(waits):
        most = min(60.0, 2.0**number)
        assert most / 2 <= wait <= most
    assert len(set(waits)) > 90
    backoff.succeeded()
    assert backoff.left == 0


def test_the_time_of_day_may_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving([answer(503), answer(503)]) as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        close_batch(exporter)
        exporter.poll()
        for moment in (0.0, 4e9):
            monkeypatch.setattr(time, "time", lambda moment=moment: moment)
            monkeypatch.setattr(time, "time_ns", lambda moment=moment: int(moment * 1e9))
            exporter.add(batch(1))
            assert exporter.flush(PATIENCE)
        assert accounted(exporter)
    assert arrived(receiver.taken) == {"batch0": 10, "batch1": 20}


def test_one_poll_sends_one_request_unless_it_is_given_time() -> None:
    with receiving() as receiver, pushing(receiver.url) as exporter:
        for number in range(4):
            exporter.add(batch(number))
            close_batch(exporter)
        exporter.poll(0)
        assert len(receiver.taken) == 1
        exporter.poll(PATIENCE)
        assert len(receiver.taken) == 4


# ---- what a receiver says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rejected", "message", "trouble"),
    [
        (1, "too old", "it took a request without 1 of its profiles: too old"),
        (1, "too\n\033[31mold", "it took a request without 1 of its profiles: too [31mold"),
        (2, "", "it took a request without 2 of its profiles: no reason given"),
        (0, "a warning", ""),
        (-1, "odd", ""),
    ],
)
def test_profiles_that_a_receiver_leaves_out_are_counted_and_not_sent_again(
    rejected: int, message: str, trouble: str
) -> None:
    from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service

    said = service.ExportProfilesServiceResponse()
    said.partial_success.rejected_profiles = rejected
    said.partial_success.error_message = message
    partly = answer(200, said.SerializeToString())
    with receiving([partly]) as receiver, pushing(receiver.url, "otlp") as exporter:
        exporter.add(batch(0))
        assert exporter.flush(PATIENCE)
        assert exporter.stats.rejected == max(rejected, 0)
        assert exporter.stats.trouble == trouble
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("body", [b"\xff" * 1000, b"x" * 1_000_000, b"\x0a\x05\x0a\x03\x08"])
def test_an_answer_that_makes_no_sense_is_one_all_the_same(body: bytes) -> None:
    with receiving([answer(200, body)]) as receiver, pushing(receiver.url, "otlp") as exporter:
        for number in range(2):
            exporter.add(batch(number))
            close_batch(exporter)
        assert exporter.flush(PATIENCE)
        assert exporter.stats.sent == 20
    assert len(receiver.seen) == 2


def test_no_secret_is_in_what_is_said() -> None:
    secret = "t0p-s3cret"
    echo = answer(401, f"\x1b[31mno such token:\n Bearer {secret}, {'x' * 5000}".encode())
    with receiving([echo]) as receiver:
        url = f"http://me:pa55w0rd@127.0.0.1:{receiver.port}/x/ingest?key=k3y"
        with pushing(url, headers=[("X-Token", f"Bearer {secret}")]) as exporter:
            exporter.add(batch(0))
            exporter.flush(0)
            exporter.poll()
            said = exporter.stats.trouble
            assert "401" in said
            assert "no such token" in said
            assert len(said) < 300
            assert said.isprintable()
            for text in (said, repr(exporter.endpoint), str(exporter.endpoint), repr(exporter.stats)):
                for word in (secret, "pa55w0rd", "k3y", "bWU6"):
                    assert word not in text
    assert receiver.seen[0].headers["authorization"] == "Basic bWU6cGE1NXcwcmQ="
    assert receiver.seen[0].target.startswith("/x/ingest?key=k3y&name=")


# ---- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, crt = folder / "key.pem", folder / "crt.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", crt],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    return key, crt


def test_tls_is_verified(certificate: tuple[Path, Path]) -> None:
    key, crt = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    with receiving(tls=context) as receiver:
        url = f"https://localhost:{receiver.port}"
        for host, trusted, trouble in (
            ("localhost", None, "its certificate is not trusted: self-signed certificate"),
            ("127.0.0.1", crt, "its certificate is not trusted: IP address mismatch"),
        ):
            endpoint = Endpoint.of(
                url.replace("localhost", host), format="pprof", certificate=trusted and str(trusted)
            )
            with Exporter(endpoint) as exporter:
                exporter.add(batch(0))
                exporter.flush(0)
                exporter.poll()
                assert trouble in exporter.stats.trouble
        assert receiver.seen == []
        endpoint = Endpoint.of(url, format="pprof", certificate=str(crt))
        with Exporter(endpoint) as exporter:
            for number in range(3):
                exporter.add(batch(number))
                close_batch(exporter)
            assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10, "batch1": 10, "batch2": 10}


def test_a_tls_receiver_that_drips_holds_nobody(certificate: tuple[Path, Path]) -> None:
    key, crt = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    with receiving(usually=drip, tls=context) as receiver:
        endpoint = Endpoint.of(
            f"https://localhost:{receiver.port}", format="pprof", certificate=str(crt), timeout=1
        )
        with Exporter(endpoint) as exporter:
            exporter.add(batch(0))
            close_batch(exporter)
            exporter.poll()
            assert exporter.stats.trouble == "no answer within 1 s"


def test_files_of_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path in (bad, tmp_path / "none.pem"):
        with pytest.raises(RubyUnwindError, match=rf"cannot use the certificates in .*{path.name}"):
            Exporter(Endpoint.of("https://localhost", format="pprof", certificate=str(path)))


# ---- its life ----------------------------------------------------------------------------------------------


def test_it_is_of_no_use_once_closed_but_keeps_its_counts() -> None:
    with receiving() as receiver:
        with pushing(receiver.url) as exporter:
            exporter.add(batch(0))
            assert exporter.flush(PATIENCE)
        exporter.close()
        assert exporter.stats.sent == 10
        for use in (lambda: exporter.add([]), exporter.poll, lambda: exporter.flush(0)):
            with pytest.raises(LifetimeError, match="closed"):
                use()


def descriptors_in(folder: Path) -> int:
    """How many descriptors of this process are of a folder or of what is in it."""
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a link may be gone before Path looks
        with suppress(OSError):
            found += str(Path("/proc/self/fd", name).readlink()).startswith(str(folder))
    return found


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    with receiving() as receiver, pushing(receiver.url, spool=tmp_path / "spool") as exporter:
        exporter.add(batch(0))
        child = os.fork()
        if not child:
            try:
                exporter.poll()
            except LifetimeError:
                exporter.close()
                os._exit(7 if descriptors_in(tmp_path / "spool") == 0 else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10}


def test_it_has_no_thread_and_leaves_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks

    with receiving() as receiver:
        receiver.usually = answer(200, Connection="close")
        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            with pushing(receiver.url, spool=tmp_path / "spool") as exporter:
                assert threading.active_count() <= threads
                exporter.add(batch(0))
                assert exporter.flush(PATIENCE)
        end = time.monotonic() + PATIENCE
        while descriptors() > before and time.monotonic() < end:
            time.sleep(0.01)  # the receiver's own
        assert descriptors() == before


def test_adding_goes_on_while_a_request_is_under_way() -> None:
    waiting, go_on = threading.Event(), threading.Event()

    def slow(handler: Any) -> None:
        waiting.set()
        assert go_on.wait(PATIENCE)
        answer(200)(handler)

    with receiving([slow]) as receiver, pushing(receiver.url) as exporter:
        exporter.add(batch(0))
        close_batch(exporter)
        thread = threading.Thread(target=exporter.poll)
        thread.start()
        assert waiting.wait(PATIENCE)
        exporter.add(batch(1))
        assert exporter.stats.taken == exporter.stats.waiting == 20
        go_on.set()
        thread.join(PATIENCE)
        assert exporter.flush(PATIENCE)
    assert arrived(receiver.taken) == {"batch0": 10, "batch1": 10}


def test_an_event_loop_polls_in_an_executor() -> None:
    async def main(exporter: Exporter) -> None:
        polling = True

        async def poll() -> None:
            while polling:
                await asyncio.sleep(min(0.01, await asyncio.to_thread(exporter.poll)))

        task = asyncio.create_task(poll())
        for number in range(5):
            exporter.add(batch(number))
            await asyncio.sleep(0.02)
        polling = False
        await task
        assert await asyncio.to_thread(exporter.flush, PATIENCE)

    with receiving() as receiver:
        with Exporter(f"{receiver.url}/ingest", every=0.01) as exporter:
            asyncio.run(main(exporter))
        assert arrived(receiver.taken) == {f"batch{number}": 10 for number in range(5)}


@pytest.mark.parametrize("options", [{"every": 0}, {"spool_size": 0}])
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Exporter("http://127.0.0.1:1/ingest", **options)
