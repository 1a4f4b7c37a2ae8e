# SPDX-License-Identifier: Apache-2.0
"""The Python enums against the C enums they are written after, and how they treat unknown numbers."""

from __future__ import annotations

import pickle
import re
from enum import IntEnum, IntFlag

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind import (
    Counter,
    ErrorCode,
    EventType,
    FollowFlag,
    FrameMarker,
    MetricID,
    OffCPURoom,
    ProgUnwind,
    RatelimitAction,
    RubyTLSKind,
    TraceFlag,
    TraceOrigin,
    UnwindCommand,
    UnwindOpcode,
)
from rubyunwind._native import ffi

PREFIX: dict[type[IntEnum | IntFlag], str] = {
    Counter: "COUNTER_",
    ErrorCode: "ERR_",
    EventType: "EVENT_TYPE_",
    FrameMarker: "FRAME_MARKER_",
    MetricID: "metricID_",
    ProgUnwind: "PROG_UNWIND_",
    RatelimitAction: "RATELIMIT_ACTION_",
    FollowFlag: "FOLLOW_",
    OffCPURoom: "OFF_CPU_ROOM_",
    RubyTLSKind: "RUBY_TLS_",
    TraceFlag: "TRACE_",
    TraceOrigin: "TRACE_ORIGIN_",
    UnwindCommand: "UNWIND_COMMAND_",
    UnwindOpcode: "UNWIND_OPCODE_",
}
COUNTS = {"NUM_TRACER_PROGS", "NUM_COUNTERS"}  # how many there are, no members
OPEN = [FrameMarker, TraceOrigin, EventType, RatelimitAction, UnwindOpcode, ErrorCode, RubyTLSKind]


def python_name(c_name: str, prefix: str) -> str:
    """UnwindErrZeroPC is UNWIND_ERR_ZERO_PC; CFrame and PIDs are one word each."""
    name = c_name.replace("UNWIND_OPCODEF_", "UNWIND_OPCODE_").removeprefix(prefix)
    if name.isupper():
        return name
    name = name.replace("CFrame", "Cframe").replace("PIDs", "Pids")
    name = re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()


@pytest.mark.parametrize("enum", PREFIX)
def test_members_are_those_of_the_c_enum(enum: type[IntEnum | IntFlag]) -> None:
    c_members = ffi.typeof(enum.__name__).relements
    expected = {python_name(name, PREFIX[enum]): c_members[name] for name in c_members if name not in COUNTS}
    assert {name: int(member) for name, member in enum.__members__.items()} == expected


def test_metric_names_read_as_words() -> None:
    assert MetricID.UNWIND_CALL_INTERPRETER.value == 0
    assert MetricID.UNWIND_NATIVE_ERR_PC_READ.value == 14
    assert MetricID.ERR_BPF_CURRENT_COMM.value == 52
    assert MetricID.UNWIND_RUBY_FRAMES.value == 54
    assert MetricID.REPORTED_PIDS_ERR.value == 61
    assert MetricID.UNWIND_PYTHON_ERR_BAD_CFRAME_FRAME_ADDR.value == 67
    assert MetricID.BEGIN_CUMULATIVE.value == 96
    assert MetricID.MAX.value == 97


@pytest.mark.parametrize(
    ("value", "name", "base"),
    [
        (0x83, "NATIVE|ERROR_BIT", FrameMarker.NATIVE),
        (0x86, "RUBY|ERROR_BIT", FrameMarker.RUBY),
        (0xC6, "RUBY_CFUNC|ERROR_BIT", FrameMarker.RUBY_CFUNC),
        (0x80, "ERROR_BIT", FrameMarker.UNKNOWN),
    ],
)
def test_error_frames_have_a_kind_and_a_base(value: int, name: str, base: FrameMarker) -> None:
    marker = FrameMarker(value)
    assert marker == value
    assert marker.name == name
    assert marker.is_error
    assert marker.base is base


def test_abort_is_an_error_and_ruby_is_not() -> None:
    assert FrameMarker.ABORT.is_error
    assert FrameMarker(0xFF) is FrameMarker.ABORT
    assert not FrameMarker.RUBY.is_error
    assert FrameMarker.RUBY.is_known
    assert not FrameMarker(0x86).is_known


@given(st.integers(0, 255))
def test_every_byte_is_a_frame_marker(value: int) -> None:
    marker = FrameMarker(value)
    assert isinstance(marker, FrameMarker)
    assert marker == value
    assert marker.is_error == (value >= 0x80)
    assert pickle.loads(pickle.dumps(marker)) == marker
    assert str(value) in repr(marker)


@pytest.mark.parametrize("enum", OPEN)
@given(value=st.integers(0, 2**64 - 1))
def test_numbers_without_a_name_are_members_too(enum: type[IntEnum], value: int) -> None:
    before = list(enum)
    assert enum(value) == value
    assert hash(enum(value)) == hash(enum(value))
    assert list(enum) == before


@pytest.mark.parametrize("enum", OPEN)
@pytest.mark.parametrize("value", [-1, "RUBY", None, 1.5])
def test_what_is_no_number_of_c_is_refused(enum: type[IntEnum], value: object) -> None:
    with pytest.raises(ValueError, match="not a valid"):
        enum(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("enum", [ProgUnwind, MetricID, Counter, UnwindCommand])
def test_numbers_that_we_choose_ourselves_must_have_a_name(enum: type[IntEnum]) -> None:
    with pytest.raises(ValueError, match="not a valid"):
        enum(max(enum) + 1)


def test_opcodes_with_flags_have_names() -> None:
    assert UnwindOpcode(0x82).name == "BASE_SP|DEREF"
    assert UnwindOpcode(0x42).name == "BASE_SP|FRAME"
    assert UnwindOpcode(0xC1).name == "BASE_CFA|FRAME|DEREF"
    assert UnwindOpcode.DEREF.name == "DEREF"


def test_flags_of_a_newer_tracer_are_kept() -> None:
    flags = TraceFlag(0x8000 | TraceFlag.RUBY_MET)
    assert TraceFlag.RUBY_MET in flags
    assert int(flags) == 0x8002
