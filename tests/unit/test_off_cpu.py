# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind import OFF_CPU_THRESHOLD_MAX, OffCPU
from rubyunwind.abi import Counter, Frame, FrameMarker, OffCPURoom, OffCPUThread, Trace, TraceOrigin
from rubyunwind.cli.record import command
from rubyunwind.profiler.off_cpu import ThreadsAway, switches
from rubyunwind.profiler.recording import Recording
from rubyunwind.profiler.sample import Frame as Named
from rubyunwind.profiler.sample import Switches
from rubyunwind.profiler.samples import SampledStack


def test_what_may_be_asked_for() -> None:
    assert OffCPU.of(False) is None
    assert OffCPU.of(True) == OffCPU.of("both") == OffCPU()
    assert OffCPU.of("only") == OffCPU(only=True)
    wish = OffCPU(probability=0.2)
    assert OffCPU.of(wish) is wish
    with pytest.raises(ValueError, match="off_cpu is 'on'"):
        OffCPU.of("on")


@pytest.mark.parametrize("probability", [0, -1, 0.0009, 1.001, float("nan")])
def test_a_probability_out_of_range_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match=r"must be 0\.001 to 1"):
        OffCPU(probability=probability)


@pytest.mark.parametrize("shortest", [-1, float("inf"), float("nan")])
def test_a_time_out_of_range_is_refused(shortest: float) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        OffCPU(shortest=shortest)


@given(st.floats(0.001, 1))
def test_weights_are_scaled_by_what_the_kernel_side_was_told(probability: float) -> None:
    wish = OffCPU(probability=probability)
    assert 1 <= wish.threshold <= OFF_CPU_THRESHOLD_MAX
    assert wish.scale == (OFF_CPU_THRESHOLD_MAX, wish.threshold)
    assert abs(wish.threshold - probability * OFF_CPU_THRESHOLD_MAX) <= 0.5


def test_every_switch_is_in_one_of_the_counts() -> None:
    counters = {
        Counter.OFF_CPU_SWITCHES: 100,
        Counter.OFF_CPU_NOT_CHOSEN: 50,
        Counter.OFF_CPU_NO_ROOM: 3,
        Counter.OFF_CPU_SHORT: 9,
        Counter.OFF_CPU_SHORT_NS: 77,
        Counter.OFF_CPU_SENT: 30,
        Counter.OFF_CPU_OUTPUT_FAILED: 4,
        Counter.OFF_CPU_LATE: 5,  # of those that are counted above
        Counter.OFF_CPU_UNKNOWN_PID: 6,
    }
    assert switches(counters) == Switches(100, 30, 4, 50, 9, 7, 77)
    assert switches({}) == Switches()


class Map(dict[bytes, bytes]):
    """A map, and how often a value was asked for."""

    asked = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


class Names:
    def __init__(self) -> None:
        self.named: list[int] = []
        self.starting = False
        self.named_ahead: dict[Any, Any] = {}
        self.clock_offset = 0

    def key(self, trace: Trace) -> tuple[int, bytes]:
        return trace.pid, bytes(trace)

    def stack(self, trace: Trace) -> Any:
        self.named.append(trace.tid)
        return SampledStack((Named("unknown" if self.starting else "native", f"stack of {trace.tid}"),))

    @property
    def ahead(self) -> list[str]:
        return [stack.frames[0].name for stack in self.named_ahead.values()]


class Away:
    """The maps of threads that are away, and who looks at them."""

    def __init__(self) -> None:
        names = ("threads", "traces_few", "traces_some", "traces_many")
        self.maps = {f"off_cpu_{name}": Map() for name in names}
        self.names = Names()
        self.threads = ThreadsAway(cast("Any", self.maps), cast("Any", self.names))

    def put(self, tid: int, ago: float, frames: int = 2, room: OffCPURoom = OffCPURoom.FEW) -> None:
        key = tid.to_bytes(4, "little")
        since = time.monotonic_ns() - round(ago * 1e9)
        self.maps["off_cpu_threads"][key] = bytes(OffCPUThread(since=since, room=room))
        frame = Frame(kind=FrameMarker.NATIVE, addr_or_line=tid)
        trace = Trace(pid=5, tid=tid, origin=TraceOrigin.OFF_CPU, frames=[frame] * min(frames, 128))
        # Behind the frames lies what an earlier trace has left.
        self.maps[f"off_cpu_traces_{room.name.lower()}"][key] = bytes(trace) + b"\xff" * 240

    def look_again(self) -> None:
        self.threads._due = 0.0
        self.threads.look()


@pytest.fixture
def away() -> Away:
    return Away()


def test_traces_come_from_their_rooms_with_the_time_so_far(away: Away) -> None:
    for tid, room in enumerate(OffCPURoom, 1):
        away.put(tid, ago=tid, room=room)
    traces = away.threads.traces()
    assert [(trace.tid, len(trace.frames)) for trace in traces] == [(1, 2), (2, 2), (3, 2)]
    assert all(trace.tid <= trace.offtime / 1e9 < trace.tid + 30 for trace in traces)


def test_a_thread_that_comes_back_meanwhile_is_left_out(away: Away) -> None:
    away.put(1, ago=1)
    away.maps["off_cpu_traces_few"].clear()
    assert away.threads.traces() == []
    away.look_again()
    assert away.names.named_ahead == {}


def test_stacks_of_long_waits_are_named_once_and_kept_until_they_may_have_come(away: Away) -> None:
    away.put(1, ago=10)
    away.put(2, ago=0)
    away.look_again()
    away.look_again()
    assert away.names.named == [1]
    assert away.names.ahead == ["stack of 1"]
    away.maps["off_cpu_threads"].clear()
    away.look_again()  # its trace may be under way
    assert away.names.ahead == ["stack of 1"]
    away.look_again()
    assert away.names.named_ahead == {}


def test_a_stack_without_names_is_asked_for_again(away: Away) -> None:
    away.put(1, ago=10)
    away.names.starting = True
    away.look_again()
    assert away.names.ahead == []
    away.names.starting = False
    away.look_again()
    assert away.names.ahead == ["stack of 1"]


def test_looks_are_some_time_apart(away: Away) -> None:
    away.put(1, ago=10)
    away.threads.look()
    away.put(2, ago=10)
    away.threads.look()
    assert away.names.named == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--off-cpu-probability", "0.5", "-p", "1"], "go with --off-cpu"),
        (["--off-cpu-shortest", "1", "-p", "1"], "go with --off-cpu"),
        (["--off-cpu", "--backend", "user", "-p", "1"], "--off-cpu takes BPF programs"),
        (["--off-cpu=never", "-p", "1"], "never"),
        (["--off-cpu", "--off-cpu-probability", "0", "-p", "1"], "0.001<=x<=1"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(options: list[str], text: str) -> None:
    result = CliRunner().invoke(command, options)
    assert result.exit_code == 2
    assert text in result.output


def test_the_user_backend_has_no_off_cpu_samples() -> None:
    with pytest.raises(ValueError, match="off-CPU samples are taken by BPF programs"):
        Recording(pids=[1], backend="user", off_cpu=True)
