# SPDX-License-Identifier: Apache-2.0
"""What is done about CPUs that come and go, with fakes for rings, ticks and the list of CPUs."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest

from rubyunwind.errors import BpfError
from rubyunwind.profiler import hotplug as hotplug_module
from rubyunwind.profiler.hotplug import Hotplug


class Rings:
    """Rings of a buffer: `dead` are those whose CPU was offline since they were made."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name
        self.cpus, self.dead = {0, 1}, set[int]()
        self.refusal = 0

    def live(self) -> set[int]:
        return self.cpus - self.dead

    def add(self, cpu: int) -> int:
        assert cpu not in self.cpus
        if self.refusal:
            raise BpfError(self.refusal, "make perf buffers")
        self.cpus.add(cpu)
        self.log.append(f"{self.name} {cpu} made")
        return 100 + cpu

    def retire(self, cpu: int) -> None:
        if cpu in self.cpus:
            self.cpus.discard(cpu)
            self.dead.discard(cpu)
            self.log.append(f"{self.name} {cpu} read and gone")


class Ticks:
    def __init__(self, log: list[str]) -> None:
        self.log, self.cpus = log, {0, 1}

    def add(self, cpu: int) -> None:
        if cpu not in self.cpus:
            self.cpus.add(cpu)
            self.log.append(f"ticks {cpu}")

    def drop(self, cpu: int) -> None:
        self.cpus.discard(cpu)


class World:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.online = [0, 1]
        self.reports, self.traces = Rings(self.log, "reports"), Rings(self.log, "traces")
        self.ticks = Ticks(self.log)
        self.watched: list[int] = []
        self.hotplug = Hotplug(
            cast("Any", self), cast("Any", (self.reports, self.traces)), cast("Any", self.ticks)
        )

    def watch(self, fd: int) -> None:
        self.watched.append(fd)

    def goes_offline(self, cpu: int) -> None:
        for rings in (self.reports, self.traces):
            rings.dead.add(cpu)
        self.online = [one for one in self.online if one != cpu]

    def look(self) -> list[str]:
        """Look, and return what was done."""
        self.log.clear()
        self.hotplug.look(at_once=True)
        return list(self.log)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(hotplug_module, "online_cpus", lambda: world.online)
    return world


GONE = ["reports 1 read and gone", "traces 1 read and gone"]
MADE = ["reports 1 made", "traces 1 made", "ticks 1"]


def test_nothing_is_done_while_all_cpus_stay(world: World) -> None:
    assert world.look() == []
    assert world.watched == []


def test_a_cpu_that_comes_has_rings_before_it_ticks(world: World) -> None:
    world.online = [0, 1, 2]
    assert world.look() == ["reports 2 made", "traces 2 made", "ticks 2"]
    assert world.watched == [102, 102]
    assert world.look() == []


def test_rings_of_a_cpu_that_went_are_read_once_and_made_anew_when_it_is_back(world: World) -> None:
    world.goes_offline(1)
    assert world.look() == GONE
    assert world.ticks.cpus == {0}
    assert world.look() == []
    world.online = [0, 1]
    assert world.look() == MADE
    assert world.hotplug.notes() == []


def test_a_cpu_that_was_back_before_we_looked_is_known_by_its_dead_rings(world: World) -> None:
    world.goes_offline(1)
    world.online = [0, 1]
    assert world.look() == [*GONE, *MADE]


def test_a_cpu_that_goes_while_its_rings_are_made_is_no_error(world: World) -> None:
    world.online = [0, 1, 2]
    world.traces.refusal = errno.ENODEV
    assert world.look() == ["reports 2 made"]
    assert world.hotplug.notes() == []
    world.goes_offline(2)
    world.look()
    assert world.reports.cpus == {0, 1}


def test_a_cpu_that_cannot_be_sampled_is_told_and_tried_again(world: World) -> None:
    world.online = [0, 1, 2]
    world.traces.refusal = errno.EMFILE
    world.look()
    assert 2 not in world.ticks.cpus
    (note,) = world.hotplug.notes()
    assert note.startswith("CPU 2 came online and is not sampled: ")
    world.traces.refusal = 0
    assert "ticks 2" in world.look()
    assert world.hotplug.notes() == []
