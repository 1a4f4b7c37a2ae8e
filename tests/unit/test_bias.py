# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind import ProgUnwind, decode_bias_and_unwind_program, encode_bias_and_unwind_program

BIASES = st.integers(0, 2**56 - 1)
PROGRAMS = st.integers(0, 255)


@given(BIASES, PROGRAMS)
def test_decoding_gives_back_what_was_encoded(bias: int, program: int) -> None:
    assert decode_bias_and_unwind_program(encode_bias_and_unwind_program(bias, program)) == (bias, program)


@given(st.integers(0, 2**64 - 1))
def test_every_u64_decodes_and_encodes_back(value: int) -> None:
    assert encode_bias_and_unwind_program(*decode_bias_and_unwind_program(value)) == value


def test_program_is_in_the_top_byte_and_the_bias_below_it() -> None:
    value = encode_bias_and_unwind_program(0x55D0_1234_5000, ProgUnwind.RUBY)
    assert value == 0x0600_55D0_1234_5000
    assert decode_bias_and_unwind_program(value) == (0x55D0_1234_5000, ProgUnwind.RUBY)


def test_result_is_a_plain_int() -> None:
    assert type(encode_bias_and_unwind_program(0, ProgUnwind.STOP)) is int


@pytest.mark.parametrize(("bias", "program"), [(-1, 1), (2**56, 1), (2**64, 1), (0, -1), (0, 256)])
def test_what_does_not_fit_is_refused(bias: int, program: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_bias_and_unwind_program(bias, program)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_only_64_bits_are_decoded(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        decode_bias_and_unwind_program(value)
