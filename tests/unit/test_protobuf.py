# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from format_readers import fields_of, packed, read_varint
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.formats.protobuf import Message, varint

# From the encoding guide of protocol buffers.
KNOWN = {0: "00", 1: "01", 127: "7f", 128: "8001", 150: "9601", 300: "ac02"}


@pytest.mark.parametrize(("value", "encoded"), KNOWN.items())
def test_a_varint_is_as_the_encoding_guide_has_it(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


def test_minus_one_has_ten_bytes() -> None:
    assert varint(-1) == b"\xff" * 9 + b"\x01"


@given(st.integers(-(2**63), 2**64 - 1))
def test_a_varint_can_be_read_back(value: int) -> None:
    encoded = varint(value)
    assert read_varint(encoded, 0) == (value % 2**64, len(encoded))


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1])
def test_what_does_not_fit_is_refused(value: int) -> None:
    with pytest.raises(OverflowError, match="64 bits"):
        varint(value)


def test_fields_are_written_in_their_order_and_zeros_left_out() -> None:
    message = (
        Message().integer(1, 150).integer(2, 0).integers(3, []).chunk(2, b"testing").message(20, Message())
    )
    assert bytes(message).hex() == "089601" + "120774657374696e67" + "a20100"


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.binary(), st.integers(1, 2**29 - 1))
def test_a_message_can_be_read_back(values: list[int], payload: bytes, field: int) -> None:
    encoded = bytes(Message().message(field, Message().integers(1, values).chunk(2, payload)))
    [inner] = fields_of(encoded)[field]
    fields = fields_of(inner)
    assert packed(fields, 1) == values
    assert fields[2] == [payload]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_packed_numbers_are_those_of_the_official_library(values: list[int]) -> None:
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    small = [value % 2**31 for value in values]
    ours = bytes(Message().integers(1, small))
    assert ours == profiles_pb2.Stack(location_indices=small).SerializeToString()
    assert profiles_pb2.Sample.FromString(bytes(Message().integers(4, values))).values == [
        value - 2**64 if value >= 2**63 else value for value in values
    ]
