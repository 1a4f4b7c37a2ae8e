# SPDX-License-Identifier: Apache-2.0
"""The packed field of PIDPageMappingInfo: a mapping's load bias and the unwinder that starts in it.

Bits 0 to 55 are the bias (address in the process minus ELF virtual address), bits 56 to 63 the ProgUnwind.
"""

from __future__ import annotations

__all__ = ["decode_bias_and_unwind_program", "encode_bias_and_unwind_program"]

_BIAS_BITS = 56
_PROGRAM_BITS = 8


def encode_bias_and_unwind_program(bias: int, program: int) -> int:
    """Pack `bias` and `program` (a ProgUnwind) into a u64.

    ValueError unless 0 <= bias < 2**56 and 0 <= program <= 255: a file mapped below its own addresses has a
    negative bias, which this encoding cannot hold.
    """
    if not 0 <= bias < 1 << _BIAS_BITS:
        raise ValueError(f"a bias is stored in {_BIAS_BITS} bits, unsigned; {bias:#x} does not fit")
    if not 0 <= program < 1 << _PROGRAM_BITS:
        raise ValueError(f"an unwind program is stored in {_PROGRAM_BITS} bits; {int(program)} does not fit")
    return int(program) << _BIAS_BITS | int(bias)


def decode_bias_and_unwind_program(value: int) -> tuple[int, int]:
    """Unpack a u64 into (bias, program). ValueError if `value` is no u64."""
    if not 0 <= value < 1 << _BIAS_BITS + _PROGRAM_BITS:
        raise ValueError(f"the packed bias and program are 64 bits, unsigned; {value:#x} does not fit")
    return value & (1 << _BIAS_BITS) - 1, value >> _BIAS_BITS
