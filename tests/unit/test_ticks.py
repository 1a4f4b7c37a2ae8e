# SPDX-License-Identifier: Apache-2.0
"""Which CPUs tick, with fakes for perf events and the list of CPUs that are online."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.errors import BpfError
from rubyunwind.profiler import ticks as ticks_module
from rubyunwind.profiler.ticks import Ticks, rate_in_force


class Event:
    def __init__(self, world: World, options: dict[str, Any]) -> None:
        self.world, self.options = world, options
        self.attached: object = None
        self.closed = False

    def attach(self, program: object) -> None:
        if self.world.refuse_programs:
            raise BpfError(errno.EPERM, "attach")
        self.attached = program

    def close(self) -> None:
        self.closed = True


class World:
    """The CPUs that are online, and which of them the kernel refuses with which errno."""

    def __init__(self) -> None:
        self.online = [0, 1, 2]
        self.refused: dict[int, int] = {}
        self.refuse_programs = False
        self.events: list[Event] = []

    def online_cpus(self) -> list[int]:
        return self.online

    def open(self, **options: Any) -> Event:
        if code := self.refused.get(options["cpu"], 0):
            raise BpfError(code, "open perf event")
        event = Event(self, options)
        self.events.append(event)
        return event

    @property
    def ticking(self) -> list[int]:
        return [event.options["cpu"] for event in self.events if not event.closed]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(ticks_module, "online_cpus", world.online_cpus)
    monkeypatch.setattr(ticks_module, "perf_event_open", world.open)
    yield world
    assert all(event.attached or world.refuse_programs for event in world.events)


def make() -> Ticks:
    return Ticks(cast("Any", "program"), 99)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0\n", [0]),
        ("0-3\n", [0, 1, 2, 3]),
        ("0-3,5\n", [0, 1, 2, 3, 5]),
        ("1,3,8-10\n", [1, 3, 8, 9, 10]),
        ("0-1,10-11,127\n", [0, 1, 10, 11, 127]),
    ],
)
def test_the_kernels_list_of_cpus_is_read(tmp_path: Path, text: str, cpus: list[int]) -> None:
    path = tmp_path / "online"
    path.write_text(text)
    assert online_cpus(path) == cpus


def test_each_online_cpu_ticks_for_all_processes_at_the_rate(world: World) -> None:
    world.online = [0, 1, 2, 3, 5]
    make().start()
    assert world.ticking == [0, 1, 2, 3, 5]
    for event in world.events:
        assert event.options["pid"] == -1  # whoever runs there; the program looks who is followed
        assert event.options["frequency"] == 99
        assert event.attached == "program"


def test_starting_twice_opens_nothing_anew(world: World) -> None:
    ticks = make()
    ticks.start()
    ticks.start()
    assert world.ticking == [0, 1, 2]
    assert len(world.events) == 3


def test_a_second_start_takes_in_cpus_that_came_online_meanwhile(world: World) -> None:
    ticks = make()
    ticks.start()
    world.online = [0, 1, 2, 3]
    ticks.start()
    assert world.ticking == [0, 1, 2, 3]
    assert len(world.events) == 4


def test_a_cpu_that_goes_offline_while_we_look_is_left_out(world: World) -> None:
    world.refused[1] = errno.ENODEV
    make().start()
    assert world.ticking == [0, 2]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EINVAL])
def test_another_refusal_is_passed_on_and_what_was_opened_is_closed(world: World, code: int) -> None:
    world.refused[2] = code
    with pytest.raises(BpfError) as caught, make() as ticks:
        ticks.start()
    assert caught.value.errno == code
    assert len(world.events) == 2
    assert world.ticking == []


def test_an_event_that_takes_no_program_is_closed_with_the_others(world: World) -> None:
    world.refuse_programs = True
    with pytest.raises(BpfError), make() as ticks:
        ticks.start()
    assert len(world.events) == 1
    assert world.ticking == []


def test_closing_stops_every_cpu_and_twice_is_harmless(world: World) -> None:
    ticks = make()
    ticks.start()
    ticks.close()
    ticks.close()
    assert world.ticking == []
    assert len(world.events) == 3


@pytest.mark.parametrize(
    ("limit", "rate"), [("100000\n", 999), ("250\n", 250), ("nonsense", 999), (None, 999)]
)
def test_the_rate_in_force_is_the_kernels_limit_where_that_is_lower(
    tmp_path: Path, limit: str | None, rate: int
) -> None:
    path = tmp_path / "perf_event_max_sample_rate"
    if limit is not None:
        path.write_text(limit)
    assert rate_in_force(999, path) == rate
