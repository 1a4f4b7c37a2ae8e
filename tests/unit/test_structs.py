# SPDX-License-Identifier: Apache-2.0
"""Every struct mirror: construction, bytes, equality, and what it refuses."""

from __future__ import annotations

import copy
import pickle
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rubyunwind
from rubyunwind import (
    ApmIntProcInfo,
    ApmSpanID,
    ApmTraceID,
    DecodeError,
    ErrorCode,
    Event,
    EventType,
    Frame,
    FrameMarker,
    PerCPURecord,
    PIDPage,
    PIDPageMappingInfo,
    RatelimitAction,
    RubyProcInfo,
    RubyTLSInfo,
    RubyTLSKind,
    StackDelta,
    StackDeltaPageInfo,
    StackDeltaPageKey,
    Struct,
    SystemConfig,
    Trace,
    TSDInfo,
    UnwindInfo,
    UnwindOpcode,
    UnwindState,
)
from rubyunwind._native import ffi
from rubyunwind.abi.layout import snake_case

MIRRORS: list[type[Struct]] = [
    mirror
    for name in rubyunwind.abi.__all__
    if isinstance(mirror := getattr(rubyunwind, name), type)
    and issubclass(mirror, Struct)
    and mirror is not Struct
]
FIXED = [mirror for mirror in MIRRORS if mirror is not Trace]
REGISTERS = {"rax", "r9", "r11", "r13", "r15", "lr", "r22", "lr_invalid"}  # differ by architecture


def values(mirror: type[Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a mirror with any values they can hold; of a union, the first member only."""
    fields: dict[str, Any] = {}
    end = 0
    for name, member in mirror.members.items():
        if member.offset < end:
            continue
        end = member.offset + member.size
        kind = ffi.typeof(member.type_name)
        bits = 8 * member.size
        if name == "return_address" or kind.cname == "_Bool":
            fields[name] = st.booleans()
        elif kind.kind in ("primitive", "enum", "pointer") and kind.cname.startswith("int"):
            fields[name] = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        elif kind.kind in ("primitive", "enum", "pointer"):
            fields[name] = st.integers(0, (1 << bits) - 1)
        elif kind.kind == "array":
            fields[name] = st.binary(min_size=member.size, max_size=member.size)
    return st.fixed_dictionaries(fields)


def contents(size: int) -> st.SearchStrategy[bytes]:
    """Any bytes; those of a big struct from a seed, which hypothesis does not try to shrink."""
    if size <= 256:
        return st.binary(min_size=size, max_size=size)
    return st.integers(0, 2**32).map(lambda seed: random.Random(seed).randbytes(size))


def test_mirrors_cover_what_is_promised() -> None:
    assert len(MIRRORS) == 33


@pytest.mark.parametrize("mirror", MIRRORS)
def test_size_is_the_c_size(mirror: type[Struct]) -> None:
    assert mirror.size == ffi.sizeof(mirror.__name__)


@pytest.mark.parametrize("mirror", FIXED)
def test_without_fields_all_is_zero(mirror: type[Struct]) -> None:
    zero = mirror.from_bytes(bytes(mirror.size))
    assert mirror() == zero
    assert len(bytes(mirror())) == mirror.size


@pytest.mark.parametrize("mirror", MIRRORS)
def test_declared_fields_are_those_of_c(mirror: type[Struct]) -> None:
    declared = {name for name in mirror.__annotations__ if not name.startswith("_")}
    assert declared - REGISTERS == set(mirror.members) - REGISTERS - (
        {"frames"} if mirror is Trace else set()
    )


@pytest.mark.parametrize("mirror", FIXED)
@given(data=st.data())
def test_fields_go_into_the_bytes_and_come_back(mirror: type[Struct], data: st.DataObject) -> None:
    fields = data.draw(values(mirror))
    value = mirror(**fields)
    assert {name: getattr(value, name) for name in fields} == fields
    again = mirror.from_bytes(bytes(value))
    assert again == value
    assert hash(again) == hash(value)
    assert bytes(again) == bytes(value)


@pytest.mark.parametrize("mirror", FIXED)
@given(data=st.data())
def test_any_bytes_of_the_right_size_are_kept(mirror: type[Struct], data: st.DataObject) -> None:
    raw = data.draw(contents(mirror.size))
    value = mirror.from_bytes(raw)
    assert bytes(value) == raw
    assert value == mirror.from_bytes(bytearray(raw)) == mirror.from_bytes(memoryview(raw))
    assert pickle.loads(pickle.dumps(value)) == value == copy.copy(value)


@pytest.mark.parametrize("mirror", FIXED)
@given(data=st.data())
def test_numbers_lie_where_the_c_compiler_puts_them(mirror: type[Struct], data: st.DataObject) -> None:
    raw = data.draw(contents(mirror.size))
    theirs = ffi.from_buffer(f"{mirror.__name__} *", raw)
    ours = mirror.from_bytes(raw)
    for c_name, field in ffi.typeof(mirror.__name__).fields:
        if field.type.kind != "primitive" or field.type.cname == "_Bool" or mirror is PIDPage:
            continue
        if snake_case(c_name) != "return_address":
            assert getattr(ours, snake_case(c_name)) == getattr(theirs, c_name)


@pytest.mark.parametrize("mirror", FIXED)
@pytest.mark.parametrize("by", [-1, 1, 8])
def test_bytes_of_another_size_are_refused(mirror: type[Struct], by: int) -> None:
    with pytest.raises(DecodeError, match=f"is {mirror.size} bytes, these are {mirror.size + by}"):
        mirror.from_bytes(bytes(mirror.size + by))


@pytest.mark.parametrize("mirror", MIRRORS)
def test_unknown_names_and_positions_are_refused(mirror: type[Struct]) -> None:
    with pytest.raises(TypeError, match="nosuch"):
        mirror(nosuch=1)
    with pytest.raises(TypeError):
        mirror(1)  # type: ignore[call-arg]


@pytest.mark.parametrize("mirror", MIRRORS)
def test_values_are_immutable_and_have_no_dict(mirror: type[Struct]) -> None:
    value = mirror()
    assert not hasattr(value, "__dict__")
    for name in [*mirror.members, "nosuch"]:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


@pytest.mark.parametrize("mirror", MIRRORS)
def test_repr_shows_every_field_that_has_bytes_of_its_own(mirror: type[Struct]) -> None:
    text = repr(mirror())
    assert text.startswith(f"{mirror.__name__}(")
    assert f"{next(iter(mirror.members))}=" in text


@pytest.mark.parametrize("value", [-1, 256, 2**64])
def test_a_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(OverflowError, match=r"RubyProcInfo\.vm_stack: .* does not fit 0\.\.255"):
        RubyProcInfo(vm_stack=value)


@pytest.mark.parametrize("value", [-(2**31) - 1, 2**31])
def test_a_signed_number_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(OverflowError, match=r"UnwindInfo\.param"):
        UnwindInfo(param=value)


@pytest.mark.parametrize("value", ["3", 1.0, None, b"\1"])
def test_what_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"RubyProcInfo\.version is a number"):
        RubyProcInfo(version=value)


def test_bytes_that_are_too_many_or_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="7 do not fit"):
        Frame(pad=b"1234567")
    with pytest.raises(TypeError, match="takes bytes"):
        rubyunwind.SystemAnalysis(code="text")  # type: ignore[arg-type]


def test_fields_have_python_names() -> None:
    assert list(StackDeltaPageKey.members) == ["file_id", "page"]
    assert list(StackDeltaPageInfo.members) == ["first_delta", "num_deltas", "map_id"]
    assert list(StackDelta.members) == ["addr_low", "unwind_info"]
    assert "perl_unwind_state" in PerCPURecord.members
    assert "v8_unwind_scratch" in PerCPURecord.members


def test_members_tell_offset_and_size() -> None:
    running_ec = RubyProcInfo.members["running_ec"]
    assert (running_ec.offset, running_ec.size) == (28, 2)
    assert "RubyProcInfo.running_ec" in repr(running_ec)


def test_ruby_proc_info_packs_as_c_does() -> None:
    info = RubyProcInfo(
        version=0x030102, current_ctx_ptr=0x7F00DEADBEEF, vm_stack=1, size_of_value=8, running_ec=540
    )
    assert bytes(info) == struct.pack("<I4xQ12BH2x", 0x030102, 0x7F00DEADBEEF, 1, *[0] * 10, 8, 540)


def test_padding_is_kept_but_not_compared() -> None:
    clean = SystemConfig(tpbase_offset=5)
    dirty = SystemConfig.from_bytes(bytes(clean)[:29] + b"\xee\xee\xee")
    assert dirty == clean
    assert hash(dirty) == hash(clean)
    assert bytes(dirty) != bytes(clean)
    state = UnwindState.from_bytes(bytes(UnwindState.size - 1) + b"\xee")
    assert PerCPURecord(state=state) == PerCPURecord()


def test_values_of_different_types_are_not_equal() -> None:
    assert PIDPageMappingInfo() != StackDeltaPageKey()
    assert Event() != bytes(Event())


def test_replace_changes_only_what_is_named() -> None:
    config = SystemConfig(tpbase_offset=5, off_cpu_threshold=7)
    changed = config.replace(off_cpu_threshold=9, drop_error_only_traces=True)
    assert changed == SystemConfig(tpbase_offset=5, off_cpu_threshold=9, drop_error_only_traces=True)
    assert config.off_cpu_threshold == 7


def test_enum_fields_read_as_their_enum() -> None:
    assert Frame(kind=6).kind is FrameMarker.RUBY
    assert repr(UnwindInfo(opcode=2).opcode) == repr(UnwindOpcode.BASE_SP)
    assert "BASE_SP|DEREF" in repr(UnwindInfo(opcode=0x82))
    assert Event(event_type=EventType(1)).event_type is EventType.GENERIC_PID
    assert UnwindState(unwind_error=ErrorCode(3003)).unwind_error is ErrorCode.RUBY_READ_CFP
    assert PerCPURecord(ratelimit_action=RatelimitAction(2)).ratelimit_action is RatelimitAction.FAST


def test_lpm_key_stores_pid_and_page_big_endian() -> None:
    key = PIDPage(prefix_len=96, pid=1234, page=0x7F0012345000)
    assert bytes(key) == struct.pack("<I", 96) + struct.pack(">IQ", 1234, 0x7F0012345000)
    assert (key.pid, key.page) == (1234, 0x7F0012345000)
    assert PIDPage.of(1234, 0x7F0012345000) == key


def matches(key: PIDPage, pid: int, address: int) -> bool:
    """Do what the kernel's LPM trie does: compare the first prefix_len bits."""
    stored, asked = (
        int.from_bytes(struct.pack(">IQ", p, a), "big") for p, a in ((key.pid, key.page), (pid, address))
    )
    return stored >> 96 - key.prefix_len == asked >> 96 - key.prefix_len


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**64), st.data())
def test_lpm_keys_cover_exactly_the_range(start: int, length: int, data: st.DataObject) -> None:
    end = min(start + length, 2**64)
    keys = PIDPage.covering(7, start, end)
    assert len(keys) <= 126
    inside = data.draw(st.integers(start, end - 1))
    for address in {start, inside, end - 1}:
        assert sum(matches(key, 7, address) for key in keys) == 1
    for address in {start - 1, end} - {-1, 2**64}:
        assert not any(matches(key, 7, address) for key in keys)
    assert not any(matches(key, 8, inside) for key in keys)


def test_lpm_keys_of_a_mapping_are_aligned_blocks() -> None:
    keys = PIDPage.covering(1, 0x1000, 0x5000)
    assert [(key.page, key.prefix_len) for key in keys] == [(0x1000, 84), (0x2000, 83), (0x4000, 84)]


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 5), (0, 2**64 + 1)])
def test_lpm_keys_of_no_range_are_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="no address range"):
        PIDPage.covering(1, start, end)


def test_apm_offset_has_two_names() -> None:
    assert ApmIntProcInfo(offset=7) == ApmIntProcInfo(tls_offset=7)
    assert ApmIntProcInfo(offset=7).offset == ApmIntProcInfo(offset=7).tls_offset == 7
    with pytest.raises(TypeError, match="give one of them"):
        ApmIntProcInfo(offset=7, tls_offset=8)


def test_members_of_a_union_share_their_bytes() -> None:
    assert ApmSpanID(as_int=0x0102).raw == b"\2\1\0\0\0\0\0\0"
    assert ApmTraceID(lo=1, hi=2).raw == struct.pack("<QQ", 1, 2)
    assert ApmTraceID(raw=struct.pack("<QQ", 1, 2)) == ApmTraceID(lo=1, hi=2)
    with pytest.raises(TypeError, match="share their bytes"):
        ApmTraceID(lo=1, raw=b"x")
    with pytest.raises(TypeError, match="share their bytes"):
        PerCPURecord(dotnet_unwind_scratch=b"x", v8_unwind_scratch=b"y")


def test_per_cpu_record_holds_other_mirrors() -> None:
    trace = Trace(pid=5, comm="ruby", frames=[Frame(kind=FrameMarker.RUBY, file_id=1)])
    record = PerCPURecord(trace=trace, state=UnwindState(pc=9, error_metric=-1), tail_calls=3)
    assert record.trace == trace
    assert record.state.pc == 9
    assert record.state.error_metric == -1
    assert record.tail_calls == 3
    assert len(bytes(record)) == PerCPURecord.size
    with pytest.raises(TypeError, match="is a UnwindState"):
        PerCPURecord(state=trace)  # type: ignore[arg-type]


def test_tls_offsets_may_be_negative() -> None:
    info = RubyTLSInfo(offset=-64, dtv_offset=-8, kind=RubyTLSKind.DTV)
    assert (info.offset, info.dtv_offset) == (-64, -8)
    assert TSDInfo(offset=-1).offset == -1
