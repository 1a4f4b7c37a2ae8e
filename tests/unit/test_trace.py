# SPDX-License-Identifier: Apache-2.0
"""decode_trace over good, padded, cut and arbitrary records, and traces built by hand."""

from __future__ import annotations

import array
import copy
import pickle
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rubyunwind import (
    MAX_FRAME_UNWINDS,
    ApmSpanID,
    ApmTraceID,
    DecodeError,
    ErrorCode,
    Frame,
    FrameMarker,
    Trace,
    TraceFlag,
    TraceOrigin,
    decode_trace,
)

HEADER, FRAME = 80, 24
U32, U48, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**64 - 1)
COMMS = st.binary(max_size=16).map(lambda comm: comm.partition(b"\0")[0])
FRAMES = st.builds(
    Frame,
    file_id=U64,
    addr_or_line=U64,
    kind=st.integers(0, 255),
    return_address=st.booleans(),
    method_entry=U48,
)
TRACES = st.builds(
    Trace,
    pid=U32,
    tid=U32,
    ktime=U64,
    comm=COMMS,
    apm_transaction_id=st.builds(ApmSpanID, as_int=U64),
    apm_trace_id=st.builds(ApmTraceID, lo=U64, hi=U64),
    kernel_stack_id=st.integers(-(2**31), 2**31 - 1),
    origin=U32,
    flags=U32,
    offtime=U64,
    frames=st.lists(FRAMES, max_size=MAX_FRAME_UNWINDS),
)


def record(stack_len: int, size: int) -> bytes:
    return bytes(60) + struct.pack("<I", stack_len) + bytes(size - 64)


@given(TRACES)
def test_a_trace_comes_back_from_its_bytes(trace: Trace) -> None:
    wire = bytes(trace)
    assert len(wire) == HEADER + FRAME * len(trace.frames)
    again = decode_trace(wire)
    assert again == trace
    assert hash(again) == hash(trace)
    assert again.frames == trace.frames
    assert bytes(again) == wire
    assert repr(again) == repr(trace)
    for name in Trace.members:
        assert getattr(again, name) == getattr(trace, name)


@given(TRACES, st.integers(0, 7), st.sampled_from([bytes, bytearray, memoryview]))
def test_perf_padding_behind_a_record_is_not_part_of_it(trace: Trace, padding: int, kind: type) -> None:
    assert decode_trace(kind(bytes(trace) + b"\xee" * padding)) == trace


@given(TRACES, st.integers(0, 7))
def test_the_whole_struct_decodes_whatever_lies_behind_the_used_frames(trace: Trace, padding: int) -> None:
    whole = bytes(trace).ljust(Trace.size + padding, b"\xee")
    decoded = decode_trace(whole)
    assert decoded == trace
    assert bytes(decoded) == bytes(trace)


@given(TRACES, st.data())
def test_a_record_cut_anywhere_is_refused_with_its_sizes(trace: Trace, data: st.DataObject) -> None:
    wire = bytes(trace)
    cut = data.draw(st.integers(0, len(wire) - 1))
    with pytest.raises(DecodeError, match=rf"\b{cut}\b"):
        decode_trace(wire[:cut])


@given(st.binary(max_size=400) | st.binary(min_size=HEADER, max_size=HEADER + 10 * FRAME))
@example(bytes(80))
@example(b"\xff" * 80)
def test_arbitrary_bytes_are_a_trace_or_refused(data: bytes) -> None:
    try:
        trace = decode_trace(data)
    except DecodeError:
        assert len(data) < HEADER or len(data) != HEADER + FRAME * int.from_bytes(data[60:64], "little")
    else:
        assert data.startswith(bytes(trace))
        assert repr(trace)
        assert len(trace.frames) == trace.stack_len


@given(st.binary(min_size=64, max_size=64), st.integers(0, 10), st.data())
def test_arbitrary_content_with_an_honest_length_decodes(
    head: bytes, count: int, data: st.DataObject
) -> None:
    rest = data.draw(st.binary(min_size=16 + FRAME * count, max_size=16 + FRAME * count))
    wire = head[:60] + struct.pack("<I", count) + rest
    trace = decode_trace(wire)
    assert bytes(trace) == wire
    assert [bytes(frame) for frame in trace.frames] == [
        wire[at : at + FRAME] for at in range(HEADER, len(wire), FRAME)
    ]
    assert repr(trace)


@pytest.mark.parametrize("stack_len", [2601, 65536, 2**32 - 1])
def test_more_frames_than_a_trace_holds_are_refused(stack_len: int) -> None:
    with pytest.raises(DecodeError, match=f"at most 2600 frames, this record says {stack_len}"):
        decode_trace(record(stack_len, Trace.size))


@pytest.mark.parametrize("stack_len", [128, 129, 2600])
@pytest.mark.parametrize("padding", [0, 4])
def test_a_deep_trace_has_the_layout_of_any(stack_len: int, padding: int) -> None:
    trace = decode_trace(record(stack_len, 80 + 24 * stack_len + padding))
    assert len(trace.frames) == trace.stack_len == stack_len
    with pytest.raises(DecodeError, match="was cut at"):
        decode_trace(record(stack_len, 80 + 24 * stack_len - 1))


def test_a_stack_len_past_the_end_is_refused() -> None:
    with pytest.raises(DecodeError, match="3 frames make a trace of 152 bytes, this record was cut at 128"):
        decode_trace(record(3, 128))


@pytest.mark.parametrize("size", [88 + 24, 160, Trace.size - 8, Trace.size + 8, 65536])
def test_a_record_longer_than_its_frames_and_padding_is_refused(size: int) -> None:
    with pytest.raises(DecodeError, match=f"1 frames make a trace of 104 bytes.*has {size}"):
        decode_trace(record(1, size))


def test_nothing_is_copied_before_it_is_asked_for() -> None:
    buffer = bytearray(bytes(Trace(pid=1)))
    trace = decode_trace(buffer)
    buffer[0] = 2
    assert trace.pid == 2
    assert Trace.from_bytes(buffer).pid == 2
    kept = Trace.from_bytes(buffer)
    buffer[0] = 3
    assert kept.pid == 2


def test_frames_are_built_once() -> None:
    trace = decode_trace(bytes(Trace(frames=[Frame(file_id=1), Frame(file_id=2)])))
    assert trace.frames is trace.frames
    assert [frame.file_id for frame in trace.frames] == [1, 2]


def test_buffers_of_other_shapes_decode_and_others_are_type_errors() -> None:
    trace = Trace(pid=7, frames=[Frame(file_id=9)])
    words = array.array("I", bytes(trace))
    assert decode_trace(words) == trace
    doubled = bytes(byte for pair in zip(bytes(trace), bytes(trace), strict=True) for byte in pair)
    assert decode_trace(memoryview(doubled)[::2]) == trace
    with pytest.raises(TypeError):
        decode_trace("text")  # type: ignore[arg-type]


def test_header_fields_are_where_the_abi_has_them() -> None:
    wire = struct.pack("<IIQ16sQQQiIIIQ", 11, 12, 13, b"puma 0\0junk", 14, 15, 16, -17, 0, 1, 0x10A, 18)
    trace = decode_trace(wire)
    assert (trace.pid, trace.tid, trace.ktime, trace.comm) == (11, 12, 13, "puma 0")
    assert trace.apm_transaction_id.as_int == 14
    assert (trace.apm_trace_id.lo, trace.apm_trace_id.hi) == (15, 16)
    assert (trace.kernel_stack_id, trace.stack_len, trace.offtime) == (-17, 0, 18)
    assert trace.origin is TraceOrigin.SAMPLING
    assert trace.flags == TraceFlag.RUBY_MET | TraceFlag.EC_FROM_TLS | TraceFlag.KERNEL_MODE
    assert trace.frames == ()


@pytest.mark.parametrize("comm", [b"", b"\xff\xfe", b"sixteen bytes ok", "pümä".encode()])
def test_comm_keeps_every_byte(comm: bytes) -> None:
    trace = decode_trace(bytes(Trace(comm=comm)))
    assert trace.comm.encode("utf-8", "surrogateescape") == comm
    assert Trace(comm=trace.comm) == trace


@pytest.mark.parametrize("comm", ["seventeen bytes !", "a\0b"])
def test_a_comm_that_does_not_fit_is_refused(comm: str) -> None:
    with pytest.raises(ValueError, match=r"Trace\.comm"):
        Trace(comm=comm)


def test_a_ruby_frame_carries_its_method_entry_in_48_bits() -> None:
    frame = Frame(kind=FrameMarker.RUBY, file_id=1, addr_or_line=2, method_entry=0x7FFF_1234_5678)
    assert frame.pad == b"\x78\x56\x34\x12\xff\x7f"
    (decoded,) = decode_trace(bytes(Trace(frames=[frame]))).frames
    assert decoded.method_entry == 0x7FFF_1234_5678
    assert frame.replace(method_entry=1) == Frame(kind=6, file_id=1, addr_or_line=2, method_entry=1)
    with pytest.raises(OverflowError, match="48 bits"):
        Frame(method_entry=2**48)
    with pytest.raises(TypeError, match="give one of them"):
        Frame(method_entry=1, pad=b"x")


def test_an_abort_frame_gives_the_error_of_the_trace() -> None:
    abort = Frame(kind=FrameMarker.ABORT, addr_or_line=ErrorCode.RUBY_READ_CFP)
    trace = decode_trace(bytes(Trace(frames=[Frame(kind=FrameMarker.NATIVE), abort])))
    assert trace.error is ErrorCode.RUBY_READ_CFP
    assert [frame.is_error for frame in trace.frames] == [False, True]
    assert trace.frames[0].error is None


def test_an_error_of_one_unwinder_is_no_error_of_the_trace() -> None:
    frame = Frame(kind=FrameMarker.RUBY | FrameMarker.ERROR_BIT, addr_or_line=2**64 - 1)
    trace = decode_trace(bytes(Trace(frames=[frame])))
    assert trace.frames[0].kind.base is FrameMarker.RUBY
    assert trace.frames[0].error == 2**64 - 1
    assert trace.error is None
    assert Trace().error is None


def test_a_trace_built_by_hand_has_no_kernel_stack() -> None:
    assert Trace().kernel_stack_id == -1


def test_stack_len_follows_from_the_frames() -> None:
    assert Trace(frames=[Frame()] * 128).stack_len == 128
    with pytest.raises(ValueError, match="has 128 elements, 129 were given"):
        Trace(frames=[Frame()] * 129)
    with pytest.raises(TypeError, match="stack_len"):
        Trace(stack_len=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="is a Frame"):
        Trace(frames=[1])  # type: ignore[list-item]


def test_replace_gives_another_trace() -> None:
    trace = decode_trace(bytes(Trace(pid=1, frames=[Frame(file_id=1), Frame(file_id=2)])))
    assert trace.replace(pid=2).frames == trace.frames
    assert trace.replace(frames=[Frame(file_id=3)]) == Trace(pid=1, frames=[Frame(file_id=3)])
    assert trace.pid == 1


def test_views_can_be_pickled_and_copied() -> None:
    trace = decode_trace(bytearray(bytes(Trace(pid=1, frames=[Frame(file_id=1)]))))
    assert pickle.loads(pickle.dumps(trace)) == trace
    assert copy.deepcopy(trace) == trace
