# SPDX-License-Identifier: Apache-2.0
"""Which processes are followed, and when they are looked at, with fakes for /proc and the kernel's maps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rubyunwind.abi import FollowFlag
from rubyunwind.errors import AttachError, BpfError
from rubyunwind.process.identity import ProcessStatus
from rubyunwind.profiler import budget as budget_module
from rubyunwind.profiler import followed as followed_module
from rubyunwind.profiler import reports as reports_module
from rubyunwind.profiler import tracker as tracker_module
from rubyunwind.profiler.limits import Limits
from rubyunwind.profiler.tracker import ProcessTracker

GENERIC = (1).to_bytes(4, "little")
PROCESS, CHILDREN, FROM_EXEC = FollowFlag.PROCESS, FollowFlag.CHILDREN, FollowFlag.FROM_EXEC


class World:
    """What runs: parents by pid. A pid that is not there has ended."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.now = 50.0
        self.log: list[tuple[str, int]] = []
        self.changing: set[int] = set()
        self.unreadable: set[int] = set()
        self.made: list[Process] = []
        self.on_look: Any = None
        self.kernel_threads: set[int] = set()
        self.too_large: set[int] = set()
        self.look_takes = 0.0

    def read_status(self, pid: int) -> ProcessStatus:
        if pid not in self.parents:
            raise AttachError(f"process {pid}: no such process")
        return ProcessStatus(pid, "x", "R", self.parents[pid], 1, pid in self.kernel_threads)

    def running_pids(self) -> set[int]:
        return set(self.parents)

    def descendants(self, pid: int) -> list[int]:
        """Like the real one: what comes after this look is in the next one."""
        found = [pid]
        for parent in found:
            found += [child for child, its_parent in self.parents.items() if its_parent == parent]
        if self.on_look is not None:
            self.on_look()
        return found[1:]

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.now

    def count(self, what: str, pid: int) -> int:
        return self.log.count((what, pid))


class Process:
    """Stands for ProfiledProcess."""

    world: World

    def __init__(self, pid: int, *_: object, force_version: str | None) -> None:
        self.world.read_status(pid)
        self.parent: Process | None = None
        self.pid = pid
        self.identity = self
        self.ruby = None
        self.closed = False
        self.sampled = self.since = self.world.now
        self.ended = 0.0
        self.left_out = 0
        self.refusal = None
        self.world.made.append(self)

    def runs(self) -> bool:
        return self.pid in self.world.parents

    def inherit(self, parent: Process) -> None:
        # What is sampled between the two would find no code of it.
        assert ("announce", self.pid) not in self.world.log
        self.parent = parent

    def announce(self) -> None:
        self.world.log.append(("announce", self.pid))

    def sync(self) -> bool:
        if self.pid in self.world.unreadable | self.world.kernel_threads:
            raise AttachError("no")
        if self.pid in self.world.too_large:
            raise BpfError(7, "update map", "the map is full")
        self.world.now += self.world.look_takes
        self.world.log.append(("sync", self.pid))
        return self.pid in self.world.changing

    def forget(self) -> None:
        self.world.log.append(("forget", self.pid))

    def close(self) -> None:
        self.closed = True


class MapOfDict(dict[Any, Any]):
    """What these tests need of a Map."""

    def discard(self, key: Any) -> None:
        self.pop(key, None)


class Collection:
    def __init__(self) -> None:
        names = ("inhibit_events", "pid_events", "reported_pids", "followed_pids")
        self.maps = {name: MapOfDict() for name in names}

    @property
    def followed(self) -> dict[int, int]:
        """The flags of the processes that are sampled, without the mark that only those are."""
        return {pid: flags for pid, flags in self.maps["followed_pids"].items() if pid}

    def fork(self, parent: int, child: int) -> None:
        """What process_fork does."""
        flags = self.maps["followed_pids"].get(parent, 0)
        if flags & FollowFlag.CHILDREN:
            self.maps["followed_pids"][child] = flags
        if flags & FollowFlag.CHILDREN or not flags:
            self.report(child)

    def end(self, pid: int) -> None:
        """What process_exit does."""
        self.maps["followed_pids"].pop(pid, None)
        self.report(pid)

    def report(self, *pids: int) -> None:
        """What report_pid and its trigger leave in the maps."""
        for pid in pids:
            key = pid.to_bytes(4, "little")
            self.maps["pid_events"][key] = True
            self.maps["reported_pids"][key] = 1
        self.maps["inhibit_events"][GENERIC] = True

    def create_array(self, max_entries: int, value_size: int, flags: int, *, name: str = "") -> Any:
        raise AssertionError("a fake process registers no file")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    Process.world = world
    monkeypatch.setattr(tracker_module, "ProfiledProcess", Process)
    monkeypatch.setattr(tracker_module, "read_status", world.read_status)
    monkeypatch.setattr(tracker_module, "descendants", world.descendants)
    monkeypatch.setattr(tracker_module, "running_pids", world.running_pids)
    monkeypatch.setattr(tracker_module, "time", world)
    monkeypatch.setattr(followed_module, "read_status", world.read_status)
    monkeypatch.setattr(followed_module, "time", world)
    monkeypatch.setattr(reports_module, "time", world)
    monkeypatch.setattr(budget_module, "time", world)
    return world


def make(**options: Any) -> tuple[ProcessTracker, Collection]:
    collection = Collection()
    return ProcessTracker(cast("Any", collection), **options), collection


def test_what_is_so_of_a_ruby_is_said_once_and_what_is_of_a_process_for_each(world: World) -> None:
    tracker, _ = make()
    libraries = {5: "/usr/lib/libruby.so.3.3", 6: "/usr/lib/libruby.so.3.3", 7: "/opt/lib/libruby.so.3.3"}
    for pid in (*libraries, 8, 9):
        world.parents[pid] = 1
        process: Any = tracker.add(pid)
        if pid in libraries:
            mapping = SimpleNamespace(path=libraries[pid])
            process.ruby = SimpleNamespace(mapping=mapping, notes=("hidden", "assumed"))
    assert tracker.notes() == [
        "/usr/lib/libruby.so.3.3: hidden",
        "/usr/lib/libruby.so.3.3: assumed",
        "/opt/lib/libruby.so.3.3: hidden",
        "/opt/lib/libruby.so.3.3: assumed",
        "pid 8: no Ruby was found in it; native frames only",
        "pid 9: no Ruby was found in it; native frames only",
    ]


def test_a_process_is_announced_before_it_is_looked_at(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    assert world.log == [("announce", 5), ("sync", 5)]
    assert set(tracker.processes) == {5}


def test_adding_twice_is_once(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    assert tracker.add(5) is tracker.add(5)
    assert len(world.made) == 1


def test_a_process_that_cannot_be_read_leaves_nothing_behind(world: World) -> None:
    world.parents[5] = 1
    world.unreadable.add(5)
    tracker, _ = make()
    with pytest.raises(AttachError):
        tracker.add(5)
    assert world.log == [("announce", 5), ("forget", 5)]
    assert world.made[0].closed
    assert not tracker.processes


def test_a_quiet_process_is_looked_at_ever_more_seldom_and_at_least_every_second(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    waits = []
    for _ in range(14):
        wait = tracker.run()
        waits.append(wait)
        world.now += wait + 1e-6
    first = waits[0]
    assert first <= 0.01
    assert waits[1] == pytest.approx(2 * first, rel=0.01)
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == pytest.approx(1.0)


def test_a_process_that_changed_is_looked_at_soon_again(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    for _ in range(14):
        world.now += tracker.run() + 1e-6
    world.changing.add(5)
    assert tracker.run() <= 0.01


def test_between_two_looks_nothing_is_read(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    before = len(world.log)
    for _ in range(10):
        tracker.run()
    assert len(world.log) == before


def test_where_nothing_is_reported_and_nothing_is_due_it_says_when_that_will_be(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.add(5)
    for _ in range(14):
        world.now += tracker.run(reported=False) + 1e-6
    assert tracker.run(reported=False) == pytest.approx(1.0)
    looks = world.count("sync", 5)
    world.now += 0.4
    assert tracker.run(reported=False) == pytest.approx(0.6, abs=0.001)
    assert world.count("sync", 5) == looks
    # What was told meanwhile is handled at once, and who is followed from now on is looked at soon.
    collection.report(5)
    tracker.run(reported=True)
    assert world.count("sync", 5) == looks + 1
    world.parents[6] = 1
    tracker.follow(6)
    assert tracker.run(reported=False) <= 0.01


def test_what_comes_and_what_changes_is_counted(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    assert tracker.changes == 1
    for _ in range(14):
        world.now += tracker.run() + 1e-6
    assert tracker.changes == 1
    world.changing.add(5)
    world.now += tracker.run() + 1.1
    tracker.run()
    assert tracker.changes > 1


def test_a_report_of_a_known_process_is_handled_at_once_and_lets_the_next_one_through(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.add(5)
    collection.report(5)
    world.changing.add(5)
    tracker.run()
    assert world.count("sync", 5) == 2
    assert not any(collection.maps[name] for name in ("inhibit_events", "pid_events", "reported_pids"))


def test_a_report_that_nothing_has_come_of_is_let_through_again_at_the_next_look(world: World) -> None:
    """As from code that is in no file: each sample of it says so."""
    world.parents[5] = 1
    tracker, collection = make()
    tracker.add(5)
    looks, reports = world.count("sync", 5), 0
    for _ in range(1000):  # ten seconds
        if (5).to_bytes(4, "little") not in collection.maps["reported_pids"]:
            collection.report(5)
            reports += 1
        tracker.run()
        world.now += 0.01
    assert 10 <= reports <= 20
    assert world.count("sync", 5) - looks <= 40


def test_an_announced_process_is_looked_at_when_its_exec_is_reported(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.add(5, announced_only=True)
    tracker.run()
    assert world.count("sync", 5) == 0
    collection.report(5)
    tracker.run()
    assert world.count("sync", 5) == 1


@pytest.mark.parametrize("from_exec", [False, True])
@pytest.mark.parametrize("children", [False, True])
def test_a_followed_process_is_sampled_as_was_asked_and_nothing_else_is(
    world: World, children: bool, from_exec: bool
) -> None:
    world.parents[5] = 1
    tracker, collection = make(children=children)
    assert collection.maps["followed_pids"][0]  # the kernel side takes all processes without
    assert collection.followed == {}
    process = tracker.follow(5, from_exec=from_exec)
    assert tracker.processes == {5: process}
    wanted = PROCESS | (CHILDREN if children else 0) | (FROM_EXEC if from_exec else 0)
    assert collection.followed == {5: wanted}
    # Before its exec there is nothing in it to look at.
    assert world.log == ([("announce", 5)] if from_exec else [("announce", 5), ("sync", 5)])


def test_with_everything_there_is_no_filter(world: World) -> None:
    world.parents.update({5: 1, 6: 5})
    tracker, collection = make(everything=True)
    tracker.follow(5)
    assert set(tracker.processes) == {5}
    assert collection.maps["followed_pids"] == {}


def test_a_process_that_cannot_be_read_is_not_sampled(world: World) -> None:
    world.parents[5] = 1
    world.unreadable.add(5)
    tracker, collection = make()
    for pid in (5, 9):  # 9 does not run
        with pytest.raises(AttachError):
            tracker.follow(pid)
    assert collection.followed == {}


@pytest.mark.parametrize("children", [False, True])
def test_children_that_were_there_before_are_followed_if_children_are(world: World, children: bool) -> None:
    world.parents.update({5: 1, 6: 5, 7: 6, 8: 5, 9: 1})
    tracker, collection = make(children=children)
    tracker.follow(5)
    expected = {5, 6, 7, 8} if children else {5}
    assert set(tracker.processes) == set(collection.followed) == expected
    assert set(collection.followed.values()) == {PROCESS | CHILDREN if children else PROCESS}


def test_a_child_that_is_forked_while_we_look_is_not_missed(world: World) -> None:
    world.parents.update({5: 1, 6: 5})
    world.on_look = lambda: world.parents.update({7: 6})
    tracker, collection = make()
    tracker.follow(5)
    assert set(tracker.processes) == set(collection.followed) == {5, 6, 7}


def test_a_child_that_may_not_be_read_does_not_keep_the_others_from_being_followed(world: World) -> None:
    world.parents.update({5: 1, 6: 5, 7: 5})
    world.unreadable.add(6)
    tracker, collection = make()
    tracker.follow(5)
    assert set(tracker.processes) == {5, 7}
    assert 7 in collection.followed


def test_following_a_second_process_leaves_the_first_one_as_it_is(world: World) -> None:
    world.parents.update({5: 1, 6: 1})
    tracker, collection = make()
    tracker.follow(5)
    tracker.follow(6, from_exec=True)
    assert collection.followed == {5: PROCESS | CHILDREN, 6: PROCESS | CHILDREN | FROM_EXEC}


def test_a_child_that_the_kernel_side_follows_is_adopted_with_what_is_known_of_its_parent(
    world: World,
) -> None:
    world.parents.update({5: 1})
    tracker, collection = make()
    parent = tracker.follow(5)
    world.parents[6] = 5
    collection.fork(5, 6)
    tracker.run()
    assert set(tracker.processes) == {5, 6}
    assert cast("Any", tracker.processes[6]).parent is parent
    assert collection.maps["reported_pids"] == {}


def test_a_grandchild_that_is_reported_before_its_parent_is_adopted(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.follow(5)
    world.parents.update({6: 5, 7: 6, 8: 7})
    for parent, child in ((5, 6), (6, 7), (7, 8)):
        collection.fork(parent, child)
    reports = collection.maps["pid_events"]
    collection.maps["pid_events"] = MapOfDict(reversed(reports.items()))
    tracker.run()
    assert set(tracker.processes) == {5, 6, 7, 8}
    assert not collection.maps["reported_pids"]


def test_an_orphan_that_the_kernel_side_follows_is_one_of_ours(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.follow(5)
    world.parents[6] = 1  # its parent, a child of 5, has come and gone
    collection.maps["followed_pids"][6] = PROCESS | CHILDREN
    collection.report(6)
    tracker.run()
    assert 6 in tracker.processes


def test_a_child_of_a_process_that_has_just_ended_is_adopted(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.follow(5)
    world.parents[6] = 5
    collection.fork(5, 6)
    del world.parents[5]
    collection.end(5)
    tracker.run()
    assert set(tracker.processes) == {6}


@pytest.mark.parametrize("parent", [1, 5, 8], ids=["of-init", "of-ours", "of-a-stranger"])
def test_a_process_that_the_kernel_side_does_not_follow_is_not_adopted_nor_reported_over_and_over(
    world: World, parent: int
) -> None:
    world.parents.update({5: 1, 8: 1})
    tracker, collection = make()
    tracker.follow(5)
    world.parents[9] = parent
    collection.report(9)
    tracker.run()
    assert set(tracker.processes) == {5}
    assert set(collection.followed) == {5}
    assert not collection.maps["pid_events"]
    assert set(collection.maps["reported_pids"]) == {(9).to_bytes(4, "little")}


def test_a_child_that_ended_before_it_was_looked_at_is_no_error(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    tracker.follow(5)
    collection.fork(5, 6)
    tracker.run()
    collection.fork(5, 7)
    collection.end(7)
    tracker.run()
    assert set(tracker.processes) == {5}


def test_without_children_none_is_adopted(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make(children=False)
    tracker.follow(5)
    world.parents[6] = 5
    collection.fork(5, 6)
    collection.report(6)
    tracker.run()
    assert set(tracker.processes) == {5}
    assert set(collection.followed) == {5}


def test_with_everything_each_process_that_is_sampled_is_followed(world: World) -> None:
    world.parents.update({9: 8, 8: 1})
    tracker, collection = make(everything=True)
    collection.report(9)
    tracker.run()
    assert set(tracker.processes) == {9}


def test_a_reported_process_that_has_ended_meanwhile_is_no_error(world: World) -> None:
    tracker, collection = make(everything=True)
    collection.report(9)
    tracker.run()
    assert not tracker.processes
    assert not collection.maps["reported_pids"]


def test_a_process_that_ended_is_forgotten_by_the_kernel_side_and_kept_for_late_traces(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    process = tracker.add(5)
    del world.parents[5]
    collection.report(5)
    tracker.run()
    assert not tracker.processes
    assert world.log[-1] == ("forget", 5)
    assert cast("Any", process).closed
    assert tracker.get(5) is process
    assert tracker.known == {5: process}


def test_the_end_is_noticed_without_a_report_too(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    tracker.add(5)
    del world.parents[5]
    world.now += 2
    tracker.run()
    assert not tracker.processes


@pytest.mark.parametrize("known", [True, False], ids=["known", "just reported"])
def test_a_process_that_ends_slowly_is_unfollowed_at_its_end(world: World, known: bool) -> None:
    """It has lost its memory and still runs: whoever gets its number next must not be sampled."""
    world.parents.update({5: 1, 6: 5})
    tracker, collection = make()
    tracker.follow(5)
    if not known:
        world.parents[7] = 5
        collection.fork(5, 7)
    slow = 6 if known else 7
    world.unreadable.add(slow)
    collection.report(slow)
    tracker.run()
    assert slow not in tracker.processes
    assert slow in collection.followed
    for _ in range(20):
        world.now += 1.0
        assert tracker.run() <= 1.0
    assert slow in collection.followed
    del world.parents[slow]
    world.now += 1.0
    tracker.run()
    assert slow not in collection.followed
    assert 5 in collection.followed


def test_only_so_many_ended_processes_are_kept(world: World) -> None:
    tracker, collection = make(everything=True)
    for pid in range(100, 300):
        world.parents[pid] = 1
        tracker.add(pid)
        del world.parents[pid]
        collection.report(pid)
        tracker.run()
    assert tracker.get(299) is not None
    assert tracker.get(100) is None
    assert len(tracker.known) <= 64
    assert all(process.closed for process in world.made)


def test_a_pid_that_is_used_again_is_the_new_process(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    first = tracker.add(5)
    del world.parents[5]
    collection.report(5)
    tracker.run()
    world.parents[5] = 1
    second = tracker.add(5)
    assert second is not first
    assert tracker.get(5) is second


def test_close_closes_every_process_and_twice_is_harmless(world: World) -> None:
    world.parents.update({5: 1, 6: 1})
    tracker, _ = make()
    tracker.add(5)
    tracker.add(6)
    tracker.close()
    tracker.close()
    assert all(process.closed for process in world.made)
    assert tracker.get(5) is None


def key(pid: int) -> bytes:
    return pid.to_bytes(4, "little")


def test_of_all_processes_those_that_are_to_be_left_out_are(world: World) -> None:
    _, collection = make(everything=True, without=[3])
    assert collection.followed == {3: FollowFlag.NEVER}


def test_a_kernel_thread_is_not_reported_again(world: World) -> None:
    world.parents[9] = 2
    world.kernel_threads.add(9)
    tracker, collection = make(everything=True)
    collection.report(9)
    tracker.run()
    assert not tracker.processes
    assert collection.followed == {9: FollowFlag.NEVER}
    assert not collection.maps["reported_pids"]
    del world.parents[9]
    world.now += 3
    tracker.run()
    assert collection.followed == {}


def test_a_process_that_may_not_be_read_is_reported_again_after_a_while_only(world: World) -> None:
    world.parents[9] = 1
    world.unreadable.add(9)
    tracker, collection = make(everything=True)
    collection.report(9)
    tracker.run()
    assert not tracker.processes
    assert set(collection.maps["reported_pids"]) == {key(9)}
    assert collection.followed == {}
    del world.parents[9]  # it ends, and whoever has its pid then is looked at
    world.now += 3
    tracker.run()
    assert not collection.maps["reported_pids"]


def test_a_process_that_the_tables_have_no_room_for_is_counted(world: World) -> None:
    world.parents[9] = 1
    world.too_large.add(9)
    tracker, collection = make(everything=True)
    collection.report(9)
    tracker.run()
    assert not tracker.processes
    assert tracker.pressure() == {"waiting": 0, "evicted": 0, "no_room": 1, "given_up": 0}
    assert set(collection.maps["reported_pids"]) == {key(9)}
    assert world.log[-1] == ("forget", 9)


def test_reports_are_handled_for_a_while_and_the_rest_waits(world: World) -> None:
    world.parents.update(dict.fromkeys(range(100, 140), 1))
    tracker, collection = make(everything=True)
    collection.report(*range(100, 140))
    world.look_takes = 0.03
    assert tracker.run() == 0.0
    assert tracker.pressure()["waiting"] == 40 - len(tracker.processes) > 30
    for _ in range(200):
        world.now += tracker.run()
    assert len(tracker.processes) == 40
    assert tracker.pressure()["waiting"] == 0


def test_the_known_come_first_and_the_sampled_before_the_forked(world: World) -> None:
    world.parents.update({5: 1, 101: 1, 102: 1})
    tracker, collection = make(everything=True)
    tracker.add(5)
    world.log.clear()
    collection.report(101, 102, 5)
    for pid in (101, 5):  # they have not been sampled: a fork, an exec
        del collection.maps["reported_pids"][key(pid)]
    tracker.run()
    assert [pid for what, pid in world.log if what == "sync"] == [5, 102, 101]


def test_the_least_lately_sampled_make_room(world: World) -> None:
    world.parents.update(dict.fromkeys((1, 2, 3, 4), 1))
    tracker, _ = make(everything=True, limits=Limits(processes=3))
    for pid in (1, 2, 3):
        world.now += 1
        tracker.add(pid)
    cast("Any", tracker.processes[1]).sampled = world.now + 1
    tracker.add(4)
    assert set(tracker.processes) == {1, 3, 4}
    assert ("forget", 2) in world.log
    assert tracker.pressure()["evicted"] == 1


def test_of_all_processes_one_that_sleeps_is_not_looked_at(world: World) -> None:
    world.parents.update({5: 1, 6: 1})
    tracker, _ = make(everything=True)
    for pid in (5, 6):
        tracker.add(pid)
    for _ in range(14):
        world.now += tracker.run() + 1e-6
    before = world.count("sync", 5), world.count("sync", 6)
    for _ in range(10):
        world.now += 1.1
        cast("Any", tracker.processes[6]).sampled = world.now
        tracker.run()
    assert world.count("sync", 5) <= before[0] + 1
    assert world.count("sync", 6) >= before[1] + 9


def test_of_all_processes_one_that_has_not_changed_is_looked_at_once_it_was_sampled(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make(everything=True, rate=20)
    tracker.add(5)
    # It has just come, so that is looked at on time; after that there is nothing to wake up for.
    assert tracker.run() == pytest.approx(0.025)
    looks = world.count("sync", 5)
    world.now += 0.02  # awake for something else: that is early enough
    assert tracker.run(reported=False) > 0.5
    assert world.count("sync", 5) == looks + 1
    looks = world.count("sync", 5)
    world.now += 0.06
    tracker.run()
    assert world.count("sync", 5) == looks
    cast("Any", tracker.processes[5]).sampled = world.now
    world.now += 0.11
    tracker.run()
    assert world.count("sync", 5) == looks + 1


def test_one_that_sleeps_and_ends_unseen_is_dropped_all_the_same(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make(everything=True)
    tracker.add(5)
    for _ in range(14):
        world.now += tracker.run() + 1e-6
    del world.parents[5]
    for _ in range(3):
        world.now += 1.1
        tracker.run()
    assert not tracker.processes
    for _ in range(3):
        world.now += 1.1
        tracker.run()
    assert not tracker.known  # nobody asks what it was


def test_a_look_that_takes_long_is_followed_by_a_pause(world: World) -> None:
    world.parents[5] = 1
    tracker, _ = make()
    world.look_takes = 0.5
    tracker.add(5)
    world.now += 1
    before = world.count("sync", 5)
    tracker.run()
    assert world.count("sync", 5) == before + 1
    for _ in range(9):
        world.now += 1
        tracker.run()
    assert world.count("sync", 5) == before + 1
    world.now += 2
    tracker.run()
    assert world.count("sync", 5) == before + 2


def test_a_trace_is_of_the_process_that_had_the_pid_then(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make()
    first = tracker.add(5)
    del world.parents[5]
    collection.report(5)
    tracker.run()
    assert not tracker.reused(5)
    world.now += 1
    world.parents[5] = 1
    second = tracker.add(5)
    assert tracker.reused(5)
    assert tracker.get(5, world.now - 0.5) is first
    assert tracker.get(5, world.now + 0.5) is tracker.get(5) is second


def test_a_reported_pid_that_already_is_another_process_is_that_one(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make(everything=True)
    first = tracker.add(5)
    cast("Any", first).runs = lambda: False
    collection.report(5)
    tracker.run()
    assert tracker.processes[5] is not first


def test_a_flood_of_processes_takes_a_quarter_of_the_time_and_is_noted(world: World) -> None:
    tracker, collection = make(everything=True)
    world.look_takes = 0.005
    began, pid, worked = world.now, 100, 0.0
    while world.now < began + 20:
        for _ in range(50):  # more than can be looked at
            pid += 1
            world.parents[pid] = 1
            collection.report(pid)
        before = world.now
        wait = tracker.run()
        worked += world.now - before
        world.now += max(wait, 0.001)
    assert 0.2 <= worked / (world.now - began) <= 0.3
    assert tracker.pressure()["waiting"] > 1000
    assert tracker_module.TOO_MANY in tracker.notes()


def test_what_is_known_is_looked_at_in_a_flood_too(world: World) -> None:
    world.parents[5] = 1
    tracker, collection = make(everything=True)
    tracker.add(5)
    world.look_takes = 0.2
    for pid in range(100, 110):
        world.parents[pid] = 1
        collection.report(pid)
        tracker.run()
    assert tracker.pressure()["waiting"] > 0
    del world.parents[5]
    collection.report(5)
    tracker.run()
    assert 5 not in tracker.processes


def test_a_machine_full_of_processes_is_looked_at_at_once(world: World) -> None:
    tracker, collection = make(everything=True)
    world.look_takes = 0.002
    for pid in range(100, 200):
        world.parents[pid] = 1
        collection.report(pid)
    for _ in range(4):
        tracker.run()
    assert len(tracker.processes) == 100
    assert not tracker.notes()
