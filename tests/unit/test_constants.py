# SPDX-License-Identifier: Apache-2.0
"""Every number that the ABI names, against a table written out here, the enums and the C definitions."""

from __future__ import annotations

import pytest

import rubyunwind
from rubyunwind import abi
from rubyunwind._native import ffi, lib
from rubyunwind.abi import constants

# The exported constants of the reference's support package under our spelling, and their values.
EXPORTED = {
    "FRAME_MARKER_UNKNOWN": 0x0,
    "FRAME_MARKER_ERROR_BIT": 0x80,
    "FRAME_MARKER_PYTHON": 0x1,
    "FRAME_MARKER_NATIVE": 0x3,
    "FRAME_MARKER_PHP": 0x2,
    "FRAME_MARKER_PHP_JIT": 0x9,
    "FRAME_MARKER_KERNEL": 0x4,
    "FRAME_MARKER_HOT_SPOT": 0x5,
    "FRAME_MARKER_HOTSPOT": 0x5,
    "FRAME_MARKER_RUBY": 0x6,
    "FRAME_MARKER_PERL": 0x7,
    "FRAME_MARKER_V8": 0x8,
    "FRAME_MARKER_DOTNET": 0xA,
    "FRAME_MARKER_ABORT": 0xFF,
    "PROG_UNWIND_STOP": 0x0,
    "PROG_UNWIND_NATIVE": 0x1,
    "PROG_UNWIND_HOTSPOT": 0x2,
    "PROG_UNWIND_PYTHON": 0x4,
    "PROG_UNWIND_PHP": 0x5,
    "PROG_UNWIND_RUBY": 0x6,
    "PROG_UNWIND_PERL": 0x3,
    "PROG_UNWIND_V8": 0x7,
    "PROG_UNWIND_DOTNET": 0x8,
    "DELTA_COMMAND_FLAG": 0x8000,
    "MERGE_OPCODE_NEGATIVE": 0x80,
    "BIT_WIDTH_PID": 0x20,
    "BIT_WIDTH_PAGE": 0x40,
    "STACK_DELTA_BUCKET_SMALLEST": 0x8,
    "STACK_DELTA_BUCKET_LARGEST": 0x17,
    "STACK_DELTA_PAGE_BITS": 0x10,
    "STACK_DELTA_PAGE_MASK": 0xFFFF,
    "HS_TSID_IS_STUB_BIT": 0x3F,
    "HS_TSID_HAS_FRAME_BIT": 0x3E,
    "HS_TSID_STACK_DELTA_BIT": 0x38,
    "HS_TSID_STACK_DELTA_MASK": 0x3F,
    "HS_TSID_STACK_DELTA_SCALE": 0x8,
    "HS_TSID_SEG_MAP_BIT": 0x0,
    "HS_TSID_SEG_MAP_MASK": 0xFFFFFFFFFFFFFF,
    "TRACE_ORIGIN_UNKNOWN": 0x0,
    "TRACE_ORIGIN_SAMPLING": 0x1,
    "TRACE_ORIGIN_OFF_CPU": 0x2,
    "EVENT_TYPE_GENERIC_PID": 0x1,
    "MAX_FRAME_UNWINDS": 0x80,
    "METRIC_ID_BEGIN_CUMULATIVE": 0x60,
    "OFF_CPU_THRESHOLD_MAX": 0x3E8,
    "PERF_MAX_STACK_DEPTH": 0x7F,
}
# Numbers of the ABI that the reference keeps to its C side.
FURTHER = {
    "COMM_LEN": 16,
    "FRAMES_PER_WALK_RUBY_STACK": 27,
    "MAX_DEEP_FRAMES": 2600,
    "CONTROL_FRAMES_WINDOW": 128,
    "ENV_WINDOW": 64,
    "STACK_WINDOW": 128,
    "ISEQ_CACHE_ENTRIES": 2048,
    "FLAT_PAGE_BITS": 9,
    "OFF_CPU_FEW_FRAMES": 128,
    "OFF_CPU_SOME_FRAMES": 640,
    "FUNC_TYPE_UNKNOWN": 0xFFFFFFFFFFFFFFFE,
    "MAX_NON_ERROR_FRAME_UNWINDS": 127,
    "MAX_TAIL_CALLS": 29,
    "METRIC_ID_MAX": 97,
    "NUM_TRACER_PROGS": 9,
    "RATELIMIT_ACTION_DEFAULT": 1,
    "RATELIMIT_ACTION_FAST": 2,
    "RATELIMIT_ACTION_RESET": 0,
    "REPORTED_PIDS_TIMEOUT": 30_000_000_000,
    "UNKNOWN_FILE": 0,
    "JIT_FILE_ID": 0x4A49_5400_0000_0000,
    "JIT_RULE_MASK": 0xFFFF,
    "UNWIND_COMMAND_SIGNAL": 3,
    "UNWIND_OPCODEF_DEREF": 0x80,
    "UNWIND_OPCODEF_FRAME": 0x40,
}
# Names that differ from C's: the reference exports them under another name.
IN_C = {
    "DELTA_COMMAND_FLAG": "STACK_DELTA_COMMAND_FLAG",
    "FRAME_MARKER_HOT_SPOT": "FRAME_MARKER_HOTSPOT",
    "MERGE_OPCODE_NEGATIVE": "MERGEOPCODE_NEGATIVE",
    "METRIC_ID_BEGIN_CUMULATIVE": "metricID_BeginCumulative",
    "METRIC_ID_MAX": "metricID_Max",
}


@pytest.mark.parametrize(("name", "value"), [*EXPORTED.items(), *FURTHER.items()])
def test_constant_has_the_expected_value_and_is_a_plain_int(name: str, value: int) -> None:
    assert getattr(rubyunwind, name) == value
    assert type(getattr(rubyunwind, name)) is int


@pytest.mark.parametrize("name", constants.__all__)
def test_constant_equals_the_c_definition(name: str) -> None:
    assert getattr(constants, name) == getattr(lib, IN_C.get(name, name))


def test_every_number_of_the_c_side_has_a_constant_or_an_enum_member() -> None:
    """Of types.h, that is; members of ErrorCode, MetricID, ... are in the enums only."""
    enums_only = {"ErrorCode", "FollowFlag", "MetricID", "Counter", "TraceFlag", "RubyTLSKind", "OffCPURoom"}
    in_enums = {name for enum in enums_only for name in ffi.typeof(enum).relements}
    numbers = {name for name in dir(lib) if isinstance(getattr(lib, name), int) and name.upper() == name}
    assert "FRAME_MARKER_RUBY" in numbers
    assert {name for name in numbers if not name.startswith("CFI_")} - in_enums <= set(constants.__all__)


def test_all_names_every_constant() -> None:
    assert set(constants.__all__) == {name for name in vars(constants) if name.isupper()}
    assert set(constants.__all__) <= set(abi.__all__)
