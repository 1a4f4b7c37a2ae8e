# SPDX-License-Identifier: Apache-2.0
"""Ownership: everything closes once, frees its descriptors, and refuses use afterwards or after a fork."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rubyunwind.bpf.lifetime import LifetimeError
from rubyunwind.bpf.map_factory import create_array
from rubyunwind.bpf.perf_buffer import PerfBuffer
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.spec import CollectionSpec, load_collection_spec
from rubyunwind.errors import BpfError, RubyUnwindError

from .loader_program import RAN_STOP, configure, metric, spin_until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("bpf")]


@pytest.fixture
def spec(loader_object: Path) -> CollectionSpec:
    return load_collection_spec(path=loader_object)


def open_descriptors() -> dict[str, str]:
    gc.collect()
    found: dict[str, str] = {}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found[path.name] = str(path.readlink())
    return found


@pytest.fixture
def no_leak(bpf: None) -> Iterator[None]:
    """Fail if descriptors are left open."""
    before = open_descriptors()
    yield
    assert open_descriptors().items() <= before.items()


def in_child(action: Callable[[], object]) -> str:
    """Run `action` in a forked child and return "ExceptionType message", or "returned ...""."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = f"returned {action()!r}"
        except BaseException as error:
            answer = f"{type(error).__name__} {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read().decode()
    os.waitpid(child, 0)
    return answer


def test_everything_closes_twice_and_leaves_no_descriptor(spec: CollectionSpec, no_leak: None) -> None:
    collection = spec.load()
    buffer = PerfBuffer(collection.maps["trace_events"])
    event = perf_event_open(pid=0, disabled=True)
    event.attach(collection.programs["native_tracer_entry"])
    link = collection.programs["process_exit"].attach_raw_tracepoint()
    inner = create_array(4, 4)
    for item in (link, buffer, event, inner, collection, collection, inner, event, buffer, link):
        item.close()
    assert collection.closed
    assert link.closed


def test_closing_the_collection_closes_what_hangs_on_it(spec: CollectionSpec, no_leak: None) -> None:
    with spec.load() as collection:
        buffer = PerfBuffer(collection.maps["trace_events"])
        link = collection.programs["process_exit"].attach_raw_tracepoint()
    assert link.closed
    with pytest.raises(LifetimeError, match="perf buffer of map trace_events is closed"):
        buffer.poll(0)
    buffer.close()


def test_a_forgotten_collection_is_freed(spec: CollectionSpec, no_leak: None) -> None:
    collection = spec.load()
    collection.programs["process_exit"].attach_raw_tracepoint()
    PerfBuffer(collection.maps["trace_events"])
    del collection


def test_a_map_keeps_its_collection_alive(spec: CollectionSpec) -> None:
    hash_map = spec.load().maps["small_hash"]
    gc.collect()
    hash_map[1] = 2
    assert len(hash_map) == 1


def test_a_failed_load_leaves_no_descriptor(
    rejected_object: Path, spec: CollectionSpec, no_leak: None
) -> None:
    with pytest.raises(BpfError):
        load_collection_spec(path=rejected_object).load()
    with pytest.raises(BpfError):
        spec.load(max_entries={"small_hash": 0xFFFFFFFF})


def test_use_after_close_is_refused_by_name(spec: CollectionSpec) -> None:
    with spec.load() as collection:
        progs, program = collection.maps["progs"], collection.programs["unwind_stop"]
        event = perf_event_open(pid=0, disabled=True)
    for action in (lambda: progs[0], lambda: program.fd, lambda: event.attach(program), collection.__enter__):
        with pytest.raises(LifetimeError, match=r"collection loader\.o is closed"):
            action()
    event.close()
    with pytest.raises(LifetimeError, match="perf event on the calling thread, any CPU is closed"):
        event.enable()
    assert issubclass(LifetimeError, RubyUnwindError)
    assert issubclass(LifetimeError, RuntimeError)


def test_use_after_fork_is_refused_in_the_child_only(spec: CollectionSpec) -> None:
    with (
        spec.load() as collection,
        perf_event_open(pid=0, disabled=True) as event,
        create_array(1, 4) as array,
    ):
        buffer = PerfBuffer(collection.maps["trace_events"])
        for action in (
            lambda: collection.maps["settings"][0],
            lambda: collection.programs["unwind_stop"].fd,
            lambda: buffer.poll(0),
            event.enable,
            lambda: array[0],
        ):
            answer = in_child(action)
            assert answer.startswith("LifetimeError"), answer
            assert f"was opened by process {os.getpid()} and does not survive fork" in answer
        assert collection.maps["settings"][0] == bytes(24)


def test_closing_in_a_forked_child_does_not_stop_the_parents_sampling(spec: CollectionSpec) -> None:
    with spec.load() as collection, perf_event_open(pid=0, frequency=999, disabled=True) as event:
        configure(collection, slot=0, burst=1, length=16)
        with PerfBuffer(collection.maps["trace_events"]) as buffer:
            event.attach(collection.programs["native_tracer_entry"])
            event.enable()

            def close_all() -> None:
                buffer.close()
                event.close()
                collection.close()

            assert in_child(close_all) == "returned None"
            buffer.consume()
            spin_until(collection, RAN_STOP, metric(collection, RAN_STOP) + 3)
            assert buffer.consume() >= 3


def test_a_child_can_load_its_own(spec: CollectionSpec) -> None:
    with spec.load():

        def load() -> int:
            with spec.load() as own:
                return len(own.maps["progs"])

        assert in_child(load) == "returned 3"
