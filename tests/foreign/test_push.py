# SPDX-License-Identifier: Apache-2.0
"""What is pushed: to a Collector that is stopped, killed and started again, and as Pyroscope reads it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote_plus, urlsplit

import pytest

from foreign.made import HOSTILE, META
from foreign.running import CONFIGURATION, Collector, shown_weights
from receiver import PATIENCE, free_port, receiving
from rubyunwind import Endpoint, Exporter, Sample
from rubyunwind.profiler.sample import Frame
from rubyunwind.push.backoff import Backoff

DOCS = Path(__file__).parents[2] / "docs" / "shipping.md"
STARTED = 1_700_000_000_000_000_000
Started = Callable[..., Collector]


@pytest.fixture
def collector(tool: Callable[[str], str], tmp_path: Path) -> Iterator[Started]:
    """Start a Collector."""
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    started: list[Collector] = []

    def start(configuration: str = CONFIGURATION) -> Collector:
        started.append(Collector(tool("collector"), tmp_path, free_port(), configuration))
        started[-1].start()
        return started[-1]

    yield start
    for each in started:
        each.stop()


def batch(number: int) -> list[Sample]:
    frames = (Frame("ruby", f"batch{number}", path="/a.rb", line=1),)
    return [Sample(STARTED + at, 7, 7, "ruby", frames) for at in range(10)]


def exporter(url: str, spool: Path | None = None) -> Exporter:
    endpoint = Endpoint.of(url, attributes=[("service.name", "shop")])
    return Exporter(endpoint, spool=spool, every=1e6, meta=META, backoff=Backoff(first=0.05, most=0.5))


def push(one: Exporter, *numbers: int) -> None:
    for number in numbers:
        one.add(batch(number))
        one.flush(0)
        one.poll()


def test_a_collector_that_is_started_again_has_each_batch_once(collector: Started, tmp_path: Path) -> None:
    running = collector()
    with exporter(running.url, tmp_path / "spool") as one:
        push(one, 0, 1)
        running.stop()
        push(one, 2, 3)
        assert one.stats.waiting == 20
        running.start()
        push(one, 4)
        assert one.flush(PATIENCE)
        running.stop(kill=True)
        push(one, 5)
    assert one.stats.waiting == 10
    running.start()
    with exporter(running.url, tmp_path / "spool") as two:
        push(two, 6)
        assert two.flush(PATIENCE)
        assert two.stats.sent == 20
    assert shown_weights(running.printed) == {f"batch{number}": 10 for number in range(7)}
    assert "service.name: Str(shop)" in running.printed
    assert one.stats.lost == two.stats.lost == ()


def test_a_collector_that_is_killed_in_between_has_each_batch_at_least_once(
    collector: Started, tmp_path: Path
) -> None:
    running = collector()
    stopped = threading.Event()
    with exporter(running.url, tmp_path / "spool") as one:

        def poll() -> None:
            while not stopped.is_set():
                one.poll(0.1)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            for number in range(60):
                one.add(batch(number))
                one.flush(0)
                if number % 20 == 10:
                    running.stop(kill=True)
                    running.start()
        finally:
            stopped.set()
            thread.join(PATIENCE)
        assert one.flush(PATIENCE)
        assert one.stats.sent == 600
    weights = shown_weights(running.printed)
    assert set(weights) == {f"batch{number}" for number in range(60)}
    # A request that it had printed, but not answered, when it was killed is sent again: whole.
    assert set(weights.values()) <= {10, 20}
    assert weights.total() <= 600 + 10 * 3


def test_a_collector_refuses_what_is_larger_than_it_takes_and_that_is_counted(collector: Started) -> None:
    small = CONFIGURATION.replace('4318"', '4318", max_request_body_size: 300')
    running = collector(small)
    with exporter(running.url) as one:
        push(one, 0)
        [(reason, count)] = one.stats.lost
        assert re.fullmatch(r"refused by the receiver: 4\d\d", reason)
        assert count == 10
        assert "too large" in one.stats.trouble
        assert one.stats.retries == 0


def test_a_collector_takes_the_configuration_of_the_docs(collector: Started) -> None:
    [configuration] = re.findall(r"```yaml\n(receivers:.*?)```", DOCS.read_text(), re.DOTALL)
    running = collector(configuration)
    with exporter(running.url) as one:
        push(one, 0)
        assert one.stats.sent == 10
    assert shown_weights(running.printed) == {"batch0": 10}


def test_pyroscope_reads_the_name_of_a_request(tool: Callable[[str], str], run: Callable[..., str]) -> None:
    """Its own parser: the application, and the labels that were given, without what would end them."""
    program = tool("pyroscope-labels")
    attributes = [("service.name", "my shop"), ("team", "a=1,b}c{"), ("bad key", "x"), ("empty", "")]
    attributes += [(f"hostile{number}", name) for number, name in enumerate(HOSTILE)]
    with receiving() as receiver:
        endpoint = Endpoint.of(f"{receiver.url}/ingest", attributes=attributes)
        with Exporter(endpoint, meta=META) as one:
            one.add(batch(0))
            assert one.flush(PATIENCE)
    [request] = receiver.taken
    [name] = parse_qs(urlsplit(request.target).query)["name"]
    labels = json.loads(run(program, stdin=quote_plus(name).encode() + b"\n"))
    assert isinstance(labels, dict), labels
    assert labels["__name__"] == "my_shop"
    assert labels["team"] == "a_1_b_c_"
    assert labels["bad_key"] == "x"
    assert "empty" not in labels
    assert len([key for key in labels if key.startswith("hostile")]) == len(HOSTILE)


def test_go_tool_pprof_reads_the_body_of_a_request(
    tool: Callable[[str], str], run: Callable[..., str], tmp_path: Path
) -> None:
    with receiving() as receiver, exporter(f"{receiver.url}/ingest") as one:
        push(one, 3)
    path = tmp_path / "body.pb.gz"
    path.write_bytes(receiver.taken[0].body)
    top = run(tool("go"), "tool", "pprof", "-symbolize=none", "-top", "-sample_index=samples", path)
    assert "Total samples = 10" in top
    assert re.search(r"^ *10 +100% +100% +10 +100%  batch3$", top, re.MULTILINE)
