# SPDX-License-Identifier: Apache-2.0
"""Which threads get an event of their own, with fakes for perf events and /proc."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, cast

import pytest

from rubyunwind.errors import AttachError, BpfError
from rubyunwind.profiler import ticks as ticks_module
from rubyunwind.profiler.ticks import Ticks


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
    """Threads by process, and which of them the kernel refuses with which errno."""

    def __init__(self) -> None:
        self.threads: dict[int, list[int]] = {}
        self.refused: dict[int, int] = {}
        self.old_kernel = self.refuse_programs = False
        self.events: list[Event] = []
        self.on_open: Any = None

    def list_threads(self, pid: int) -> list[int]:
        return self.threads.get(pid, [])

    def open(self, **options: Any) -> Event:
        if self.on_open is not None:
            self.on_open(options["pid"])
        code = self.refused.get(options["pid"], 0)
        if options.get("inherit_thread") and self.old_kernel:
            code = errno.EINVAL
        if code:
            raise BpfError(code, "open perf event")
        event = Event(self, options)
        self.events.append(event)
        return event

    @property
    def sampled(self) -> list[int]:
        return [event.options["pid"] for event in self.events]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(ticks_module, "threads", world.list_threads)
    monkeypatch.setattr(ticks_module, "perf_event_open", world.open)
    yield world
    assert all(event.attached or world.refuse_programs for event in world.events)


def make(**options: Any) -> Ticks:
    return Ticks(cast("Any", "program"), 99, **options)


def test_each_thread_that_runs_gets_an_event(world: World) -> None:
    world.threads[5] = [5, 6, 7]
    make().follow(5)
    assert world.sampled == [5, 6, 7]
    assert {event.attached for event in world.events} == {"program"}


def test_following_twice_opens_nothing_anew(world: World) -> None:
    world.threads[5] = [5, 6]
    ticks = make()
    ticks.follow(5)
    ticks.follow(5)
    assert world.sampled == [5, 6]


def test_a_thread_that_starts_while_we_look_is_not_missed(world: World) -> None:
    world.threads[5] = [5]
    world.on_open = lambda pid: world.threads.update({5: [5, 6]})
    make().follow(5)
    assert world.sampled == [5, 6]


def test_a_thread_that_ends_while_we_look_is_no_error(world: World) -> None:
    world.threads[5] = [5, 6]
    world.refused[6] = errno.ESRCH
    make().follow(5)
    assert world.sampled == [5]


def test_a_process_that_ended_is_an_error_whatever_was_followed_before(world: World) -> None:
    world.threads[5] = [5]
    ticks = make()
    ticks.follow(5)
    with pytest.raises(AttachError, match="process 9 ended before it could be sampled"):
        ticks.follow(9)
    world.threads[9] = [9]
    world.refused[9] = errno.ESRCH
    with pytest.raises(AttachError, match="process 9 ended"):
        ticks.follow(9)


def test_a_refusal_is_passed_on(world: World) -> None:
    world.threads[5] = [5]
    world.refused[5] = errno.EACCES
    with pytest.raises(BpfError):
        make().follow(5)


@pytest.mark.parametrize("old_kernel", [False, True])
@pytest.mark.parametrize("children", [False, True])
def test_a_command_is_sampled_from_its_exec_on_on_every_kernel(
    world: World, old_kernel: bool, children: bool
) -> None:
    world.threads[5] = [5]
    world.old_kernel = old_kernel
    make(children=children).follow(5, from_exec=True)
    (event,) = world.events
    assert event.options["disabled"]
    assert event.options["enable_on_exec"]
    # Before 5.13 threads are inherited together with children only.
    assert event.options.get("inherit", False) == (children or old_kernel)


def test_an_event_that_takes_no_program_is_closed_with_the_others(world: World) -> None:
    world.threads[5] = [5]
    world.refuse_programs = True
    with pytest.raises(BpfError), make() as ticks:
        ticks.follow(5)
    assert all(event.closed for event in world.events)
    assert len(world.events) == 1


def test_closing_twice_is_harmless(world: World) -> None:
    world.threads[5] = [5]
    ticks = make()
    ticks.follow(5)
    ticks.close()
    ticks.close()
    assert all(event.closed for event in world.events)
