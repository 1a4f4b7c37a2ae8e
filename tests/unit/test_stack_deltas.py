# SPDX-License-Identifier: Apache-2.0
"""Unwind rows out of hand-made .eh_frame and .debug_frame sections, one rule at a time."""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right

import pytest
from elf_images import (
    AARCH64,
    ALLOC,
    ARM_CIE,
    EH_FRAME,
    EXEC,
    TEXT,
    X86_CIE,
    EhFrame,
    Part,
    block,
    elf_image,
    image_of,
    sleb,
    uleb,
)  # fmt: skip
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.elf.deltas import StackDeltas, UnwindInfoTuple, extract_stack_deltas
from rubyunwind.elf.file import ElfFile
from rubyunwind.errors import DecodeError

COMMAND, CFA, SP, FP, LR, REG, FRAME, DEREF = 0, 1, 2, 3, 4, 5, 0x40, 0x80
INVALID, STOP, PLT, SIGNAL = ((COMMAND, 0, 0, command, 0) for command in range(4))

RA_UNDEFINED = bytes([0x07, 16])


def rows(deltas: StackDeltas) -> list[tuple[int, UnwindInfoTuple]]:
    """Return rows as (offset from TEXT, info)."""
    return [
        (address - TEXT, deltas.infos[row])
        for address, row in zip(deltas.addresses(), deltas.rows(), strict=True)
    ]


def at(deltas: StackDeltas, address: int) -> UnwindInfoTuple:
    """Return the rule for an offset from TEXT, with merged rows taken apart, as the unwinder does."""
    addresses = deltas.addresses()
    index = bisect_right(addresses, address + TEXT) - 1
    opcode, fp_opcode, merge, param, fp_param = deltas.infos[deltas.rows()[index]]
    if merge and address + TEXT - addresses[index] >= merge & 0x7F:
        param += -8 if merge & 0x80 else 8
    return opcode, fp_opcode, 0, param, fp_param


def x86(
    program: bytes,
    *,
    cie: bytes = X86_CIE,
    length: int = 0x40,
    text: bytes | None = None,
    entry: int = 0,
    name: str = "test",
) -> StackDeltas:
    frames = EhFrame()
    frames.fde(frames.cie(cie), TEXT, length, program)
    return extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data), text=text, entry=entry), name))


def arm(program: bytes, *, cie: bytes = ARM_CIE) -> StackDeltas:
    frames = EhFrame()
    frames.fde(frames.cie(cie, code_align=4, column=30), TEXT, 0x40, program)
    return extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data), machine=AARCH64)))


def test_a_function_with_a_frame_pointer_gives_a_row_for_each_change() -> None:
    # push rbp; mov rbp, rsp; ...; leave
    deltas = x86(bytes([0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6, 0x50, 0x0C, 7, 8]))
    assert rows(deltas) == [
        (0, (SP, COMMAND, 0, 8, 0)),
        (1, (SP, CFA, 0, 16, -16)),
        (4, (FP, CFA, 0, 16, -16)),
        (20, (SP, CFA, 0, 8, -16)),
        (0x40, INVALID),
    ]


@pytest.mark.parametrize(("advance", "distance"), [(0x41, 1), (0x42, 2)])
def test_a_push_of_one_or_two_bytes_is_merged_with_the_row_before_it(advance: int, distance: int) -> None:
    deltas = x86(bytes([0x44, 0x0E, 16, advance, 0x0E, 24]))
    assert rows(deltas)[1] == (4, (SP, COMMAND, distance, 16, 0))
    assert at(deltas, 4 + distance - 1)[3] == 16
    assert at(deltas, 4 + distance)[3] == 24


def test_a_pop_is_merged_with_the_negative_bit_and_later_equal_rows_vanish() -> None:
    deltas = x86(bytes([0x44, 0x0E, 24, 0x42, 0x0E, 16, 0x48, 0x0E, 16]))
    assert rows(deltas) == [
        (0, (SP, COMMAND, 0, 8, 0)),
        (4, (SP, COMMAND, 0x80 | 2, 24, 0)),
        (0x40, INVALID),
    ]


def test_three_pushes_in_a_row_make_two_rows() -> None:
    deltas = x86(bytes([0x41, 0x0E, 16, 0x41, 0x0E, 24, 0x41, 0x0E, 32]))
    assert [row for row in rows(deltas) if row[1] != INVALID] == [
        (0, (SP, COMMAND, 1, 8, 0)),
        (2, (SP, COMMAND, 1, 24, 0)),
    ]
    assert [at(deltas, offset)[3] for offset in range(5)] == [8, 16, 24, 32, 32]


def test_a_step_of_three_bytes_or_of_sixteen_is_not_merged() -> None:
    assert len(rows(x86(bytes([0x43, 0x0E, 16])))) == 3
    assert len(rows(x86(bytes([0x41, 0x0E, 24])))) == 3


def test_undefined_return_address_means_stop() -> None:
    assert rows(x86(RA_UNDEFINED)) == [(0, STOP), (0x40, INVALID)]
    assert at(arm(bytes([0x07, 30])), 0) == STOP


def test_a_cfa_nobody_defined_means_stop() -> None:
    assert at(x86(b"", cie=bytes([0x90, 1])), 0) == STOP


def test_a_popped_return_address_means_stop() -> None:
    deltas = x86(bytes([0x44, 0x0E, 0]))
    assert at(deltas, 0) == (SP, COMMAND, 0, 8, 0)
    assert at(deltas, 4) == STOP


def test_a_return_address_anywhere_but_below_the_cfa_is_invalid() -> None:
    assert at(x86(bytes([0x0E, 32, 0x90, 2])), 0) == INVALID
    assert at(x86(bytes([0x09, 16, 3])), 0) == INVALID
    assert at(x86(bytes([0x08, 16])), 0) == INVALID


PLT_EXPRESSION = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])


def test_a_lazy_plt_is_recognised_by_its_expression() -> None:
    deltas = x86(bytes([0x0E, 16, 0x46, 0x0E, 24, 0x4A, 0x0F]) + block(PLT_EXPRESSION))
    assert [row[1] for row in rows(deltas)] == [
        (SP, COMMAND, 0, 16, 0), (SP, COMMAND, 0, 24, 0), PLT, INVALID,
    ]  # fmt: skip
    # An entry that pushes elsewhere than after 11 bytes is not what the command stands for.
    other = PLT_EXPRESSION.replace(b"\x3b", b"\x39")
    assert at(x86(bytes([0x0F]) + block(other)), 0) == INVALID


def breg(register: int, offset: int) -> bytes:
    return bytes([0x70 + register]) + sleb(offset)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (breg(7, 24), (SP, 24)),
        (breg(6, -40), (FP, -40)),
        (b"\x92" + uleb(6) + sleb(-40), (FP, -40)),
        (breg(7, 8) + b"\x23\x10", (SP, 24)),
        (breg(6, -8) + b"\x06", (FP | DEREF, -8)),
        (breg(7, 168) + b"\x06\x23\x08", (SP | DEREF, 168 + 1)),
        (breg(7, -8) + b"\x06\x23\x08", (SP | DEREF, -8 + 1)),
        (breg(7, 16) + b"\x06\x38\x22", (SP | DEREF, 16 + 1)),
        (breg(7, 16) + b"\x06\x08\x38\x22", (SP | DEREF, 16 + 7)),
        (breg(7, 32) + b"\x38\x1c\x06", (SP | DEREF, 24)),
    ],
)
def test_cfa_expressions_that_a_row_can_say(expression: bytes, expected: tuple[int, int]) -> None:
    info = at(x86(b"\x0f" + block(expression)), 0)
    assert (info[0], info[3]) == expected


@pytest.mark.parametrize(
    "expression",
    [
        b"",
        breg(3, 8),
        breg(7, 4) + b"\x06",  # the offset has to be in words
        breg(7, 8) + b"\x06\x23\x04",
        breg(7, 8) + b"\x06\x23\x40",  # more than seven words after the read
        breg(7, 8) + b"\x06\x38\x1c",  # less
        breg(7, 8) + b"\x06\x06",
        breg(7, 8) + breg(9, 0) + b"\x38\x1e\x22\x06\x23\x08",
        breg(7, 1 << 40),
        breg(7, 8)[:1],
        b"\x77\x80",
    ],
)
def test_cfa_expressions_beyond_that_are_invalid(expression: bytes) -> None:
    assert at(x86(b"\x0f" + block(expression)), 0) == INVALID


def test_a_frame_pointer_saved_by_expression_keeps_its_place() -> None:
    saved = bytes([0x10, 6]) + block(breg(6, 0))
    assert at(x86(saved + bytes([0x0F]) + block(breg(6, -8) + b"\x06")), 0) == (FP | DEREF, FP, 0, -8, 0)
    saved = bytes([0x10, 6]) + block(breg(7, 120))
    assert at(x86(saved), 0) == (SP, SP, 0, 8, 120)
    assert at(x86(bytes([0x16, 6]) + block(breg(7, 120))), 0) == (SP, COMMAND, 0, 8, 0)


def test_other_registers_serve_as_a_base_in_libcrypto_only() -> None:
    program = bytes([0x0C, 11, 24])
    assert at(x86(program), 0) == INVALID
    assert at(x86(program, name="/usr/lib/libcrypto.so.3"), 0) == (REG, COMMAND, 0, (24 << 1) | 11, 0)
    assert at(x86(bytes([0x0C, 0, 8]), name="libcrypto.so.1.1"), 0) == (REG, COMMAND, 0, 16, 0)
    assert at(x86(bytes([0x0C, 4, 8]), name="libcrypto.so.3"), 0) == INVALID  # rsi
    assert at(x86(bytes([0x0C, 11, 12]), name="libcrypto.so.3"), 0) == INVALID


def test_signal_frames_by_augmentation_and_by_their_code() -> None:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE, augmentation=b"zRS"), TEXT, 10, bytes([0x0E, 16, 0x42, 0x0E, 24]))
    deltas = extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data))))
    assert rows(deltas) == [(0, SIGNAL), (10, INVALID)]
    code = bytes.fromhex("48c7c00f0000000f05").ljust(0x1000, b"\xcc")
    assert rows(x86(b"", text=code, length=9)) == [(0, SIGNAL), (9, INVALID)]
    assert at(x86(b"", text=code, length=8), 0) != SIGNAL
    frames = EhFrame()
    frames.fde(frames.cie(ARM_CIE, code_align=4, column=30), TEXT, 8, b"")
    code = bytes.fromhex("681180d2010000d4")
    image = image_of(bytes(frames.end().data), machine=AARCH64, text=code)
    assert at(extract_stack_deltas(ElfFile(image)), 0) == SIGNAL


def test_remember_and_restore_bring_back_cfa_and_registers() -> None:
    deltas = x86(bytes([0x41, 0x0E, 16, 0x86, 2, 0x0A, 0x44, 0x0C, 7, 8, 0xC6, 0x44, 0x0B]))
    assert at(deltas, 1) == at(deltas, 9) == (SP, CFA, 0, 16, -16)
    assert at(deltas, 5) == (SP, COMMAND, 0, 8, 0)


def test_restoring_what_was_never_remembered_and_deep_nesting_end_in_invalid() -> None:
    assert rows(x86(bytes([0x44, 0x0B]))) == [(0, (SP, COMMAND, 0, 8, 0)), (4, INVALID)]
    assert at(x86(bytes([0x0A] * 32 + [0x0B] * 32)), 0) == (SP, COMMAND, 0, 8, 0)
    assert at(x86(bytes([0x0A] * 33)), 0) == INVALID


def test_gnu_args_size_and_all_ways_to_advance() -> None:
    deltas = x86(bytes([0x2E, 16, 0x02, 8, 0x0E, 16, 0x03, 8, 0, 0x0E, 32, 0x04, 8, 0, 0, 0, 0x0E, 48]))
    assert [row[0] for row in rows(deltas)] == [0, 8, 16, 24, 0x40]


def test_set_loc_is_a_pointer_in_the_encoding_of_the_cie() -> None:
    frames = EhFrame()
    fde = frames.fde(frames.cie(X86_CIE), TEXT, 0x40, bytes([0x01, 0, 0, 0, 0, 0x0E, 16]))
    # Behind length, id, start, length, size of the augmentation and the instruction's own byte.
    operand = fde + 4 + 4 + 4 + 4 + 1 + 1
    frames.data[operand : operand + 4] = struct.pack("<i", TEXT + 12 - (EH_FRAME + operand))
    deltas = extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data))))
    assert [row[0] for row in rows(deltas)] == [0, 12, 0x40]


def test_signed_and_negative_forms_of_offsets() -> None:
    assert at(x86(bytes([0x12, 6]) + sleb(-2)), 0) == (FP, COMMAND, 0, 16, 0)
    assert at(x86(bytes([0x13]) + sleb(-4)), 0) == (SP, COMMAND, 0, 32, 0)
    assert at(x86(bytes([0x11, 6]) + sleb(2)), 0)[4] == -16
    assert at(x86(bytes([0x2F, 6]) + uleb(2)), 0)[4] == 16
    assert at(x86(bytes([0x05, 6]) + uleb(3)), 0)[4] == -24
    assert at(x86(bytes([0x86, 2, 0x06, 6])), 0)[1:] == (COMMAND, 0, 8, 0)


def test_an_unknown_instruction_makes_the_rest_of_the_function_invalid() -> None:
    assert rows(x86(bytes([0x44, 0x3F]))) == [(0, (SP, COMMAND, 0, 8, 0)), (4, INVALID)]
    # Pointer authentication is no x86 instruction.
    assert at(x86(bytes([0x2D])), 0) == INVALID


def test_rows_behind_the_end_of_a_function_are_dropped() -> None:
    assert rows(x86(bytes([0x44, 0x0E, 16, 0x03, 0xFF, 0x7F, 0x0E, 24]), length=0x10)) == [
        (0, (SP, COMMAND, 0, 8, 0)),
        (4, (SP, COMMAND, 0, 16, 0)),
        (0x10, INVALID),
    ]


# ---- between functions -----------------------------------------------------------------------


def functions(*spans: tuple[int, int, bytes], entry: int = 0) -> StackDeltas:
    frames = EhFrame()
    cie = frames.cie(X86_CIE)
    for start, length, program in spans:
        frames.fde(cie, TEXT + start, length, program)
    return extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data), entry=entry)))


PUSHED = bytes([0x0E, 32])


def test_holes_up_to_fifteen_bytes_keep_the_rule_before_them() -> None:
    assert [row[0] for row in rows(functions((0, 17, b""), (32, 16, PUSHED)))] == [0, 32, 48]
    assert rows(functions((0, 16, b""), (32, 16, PUSHED)))[1] == (16, INVALID)


def test_the_code_at_the_entry_point_has_no_caller() -> None:
    deltas = functions((0, 32, b""), (0x80, 16, PUSHED), entry=TEXT + 32)
    assert at(deltas, 32) == STOP
    assert at(deltas, 0x80) == (SP, COMMAND, 0, 32, 0)
    # Padding before the entry changes nothing, a function with rules at the entry does.
    assert at(functions((0, 28, b""), (0x80, 16, PUSHED), entry=TEXT + 32), 32) == STOP
    assert at(functions((0, 32, b""), (32, 16, PUSHED), entry=TEXT + 32), 32) == (SP, COMMAND, 0, 32, 0)


def test_functions_are_sorted_and_equal_neighbours_are_one_row() -> None:
    deltas = functions((64, 16, PUSHED), (0, 32, b""), (32, 32, b""))
    assert [row[0] for row in rows(deltas)] == [0, 64, 80]


def test_of_two_rules_for_one_function_the_first_counts() -> None:
    deltas = functions((0, 32, PUSHED), (0, 32, b""))
    assert rows(deltas) == [(0, (SP, COMMAND, 0, 32, 0)), (32, INVALID)]


def test_a_function_that_reaches_into_the_next_one_is_cut() -> None:
    deltas = functions((0, 64, b""), (32, 8, PUSHED))
    assert [row[0] for row in rows(deltas)] == [0, 32, 40]


def test_functions_outside_the_code_are_left_out() -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, augmentation=b"zR", data=b"\x00")
    for start in (0, 0x1000, EH_FRAME, 1 << 40, TEXT + 0x10000, TEXT):
        frames.fde(cie, start, 16, b"")
    frames.fde(cie, TEXT + 0x8000, 1 << 60, b"")
    deltas = extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data))))
    assert [row[0] for row in rows(deltas)] == [0, 16, 0x8000, 0x10000]


def test_nothing_after_the_terminator_counts() -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE)
    frames.fde(cie, TEXT, 16, b"")
    frames.end()
    frames.fde(cie, TEXT + 64, 16, b"")
    assert [row[0] for row in rows(extract_stack_deltas(ElfFile(image_of(bytes(frames.data)))))] == [0, 16]


# ---- headers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [0x00, 0x03, 0x04, 0x0B, 0x0C, 0x10, 0x1B, 0x1C, 0x3B, 0x33])
def test_pointer_encodings(encoding: int) -> None:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE, data=bytes([encoding])), TEXT + 8, 24, b"", base=0x9000)
    image = image_of(bytes(frames.end().data), more=(Part(".got", bytes(8), 0x9000),))
    assert [row[0] for row in rows(extract_stack_deltas(ElfFile(image)))] == [8, 32]


@pytest.mark.parametrize("encoding", [0x50, 0x9B, 0x2B, 0x4B, 0x05, 0xFF])
def test_pointers_that_cannot_be_read_from_the_file_give_no_rows(encoding: int) -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, data=bytes([encoding]))
    frames.encoding[cie] = 0x1B
    frames.fde(cie, TEXT, 24, b"")
    assert extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data)))).count == 0


@pytest.mark.parametrize(
    ("augmentation", "data", "count"),
    [
        (b"zPLR", b"\x9b" + bytes(4) + b"\x1b\x1b", 2),
        (b"zPLR", b"\x00" + bytes(8) + b"\x1b\x1b", 2),
        (b"zRB", b"\x1b", 2),
        (b"zRG", b"\x1b", 2),
        (b"zR?", b"\x1b", 2),
        (b"x", b"", 0),
        (b"zR", b"", 0),
    ],
)
def test_augmentations(augmentation: bytes, data: bytes, count: int) -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, augmentation=augmentation, data=data)
    frames.encoding[cie] = 0x1B
    frames.fde(cie, TEXT, 24, b"")
    assert extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data)))).count == count


def test_sixty_four_bit_lengths() -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, wide=True, version=3)
    frames.fde(cie, TEXT, 24, PUSHED, wide=True)
    assert rows(extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data))))) == [
        (0, (SP, COMMAND, 0, 32, 0)), (24, INVALID),
    ]  # fmt: skip


def debug_frame(version: int, *, wide: bool = False, start: int = TEXT, program: bytes = PUSHED) -> bytes:
    """Return a section whose FDE comes before its CIE."""
    word = "Q" if wide else "I"

    def record(body: bytes) -> bytes:
        body += bytes(-len(body) % 8)
        return (struct.pack("<IQ", 0xFFFFFFFF, len(body)) if wide else struct.pack("<I", len(body))) + body

    sizes = b"\x08\x00" if version == 4 else b""
    cie = record(
        struct.pack("<" + word, 2 ** (64 if wide else 32) - 1)
        + bytes([version, 0])
        + sizes
        + uleb(1)
        + sleb(-8)
        + b"\x10"
        + X86_CIE
    )
    length = len(record(struct.pack(f"<{word}QQ", 0, start, 24) + program))
    return record(struct.pack(f"<{word}QQ", length, start, 24) + program) + cie


@pytest.mark.parametrize("version", [1, 3, 4])
@pytest.mark.parametrize("wide", [False, True])
def test_debug_frame_of_all_versions(version: int, wide: bool) -> None:
    deltas = extract_stack_deltas(ElfFile(image_of(debug_frame(version, wide=wide), name=".debug_frame")))
    assert rows(deltas) == [(0, (SP, COMMAND, 0, 32, 0)), (24, INVALID)]


def test_eh_frame_hides_debug_frame_where_it_has_rules() -> None:
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE), TEXT, 16, b"")
    more = Part(".debug_frame", debug_frame(4) + debug_frame(4, start=TEXT + 0x100))
    deltas = extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data), more=(more,))))
    assert rows(deltas) == [
        (0, (SP, COMMAND, 0, 8, 0)),
        (16, INVALID),
        (0x100, (SP, COMMAND, 0, 32, 0)),
        (0x118, INVALID),
    ]


# ---- aarch64 ---------------------------------------------------------------------------------


def test_a_leaf_has_its_return_address_in_the_link_register() -> None:
    assert at(arm(b""), 0) == (SP, LR, 0, 0, 0)


def test_a_frame_record_at_the_base_is_said_by_the_eight_and_by_the_flag() -> None:
    # stp x29, x30, [sp, #-32]!; mov x29, sp
    deltas = arm(bytes([0x41, 0x0E, 32, 0x9D, 4, 0x9E, 3, 0x41, 0x0D, 29]))
    assert at(deltas, 4) == (SP, SP | FRAME, 0, 32, 8)
    assert at(deltas, 8) == (FP, FP | FRAME, 0, 32, 8)


def test_a_frame_record_elsewhere_is_said_by_the_flag() -> None:
    assert at(arm(bytes([0x0E, 64, 0x9D, 2, 0x9E, 1])), 0) == (SP, SP | FRAME, 0, 64, 56)


def test_a_return_address_elsewhere_without_a_frame_pointer_below_it_has_no_flag() -> None:
    assert at(arm(bytes([0x0E, 64, 0x93, 2, 0x9E, 1])), 0) == (SP, SP, 0, 64, 56)


def test_a_return_address_beside_another_register_is_not_taken_for_a_frame_record() -> None:
    # stp x19, x30, [sp, #-16]!: at sp + 8, but what lies below it is no frame pointer.
    assert at(arm(bytes([0x0E, 16, 0x93, 2, 0x9E, 1])), 0) == (SP, CFA, 0, 16, -8)


def test_signed_return_addresses_change_nothing() -> None:
    plain = arm(bytes([0x41, 0x0E, 32, 0x9D, 4, 0x9E, 3]))
    signed = arm(bytes([0x2D, 0x41, 0x0E, 32, 0x9D, 4, 0x9E, 3, 0x2D]))
    assert rows(plain) == rows(signed)


def test_a_linkage_table_has_its_return_address_in_the_link_register() -> None:
    """As ld writes it: the entry for the dynamic linker, one plain, one with bti c; then padding."""
    push, adrp, load, add, jump = 0xA9BF7BF0, 0x90000010, 0xF9400211, 0x91000210, 0xD61F0220
    entry = [adrp, load, add, jump]
    words = [push, *entry, *[0xD503201F] * 3, *entry, 0xD503245F, *entry, 0xD503201F]
    code = struct.pack(f"<{len(words)}I", *words)
    frames = EhFrame()
    frames.fde(frames.cie(ARM_CIE, code_align=4, column=30), TEXT + 0x100, 0x40, b"")
    text = code + bytes(0x200 - len(code))
    parts = [
        Part(".plt", code, TEXT, flags=ALLOC | EXEC),
        Part(".text", text[0x100:], TEXT + 0x100, flags=ALLOC | EXEC),
        Part(".eh_frame", bytes(frames.end().data), EH_FRAME, flags=ALLOC),
    ]
    leaf = (SP, LR, 0, 0, 0)
    deltas = extract_stack_deltas(ElfFile(elf_image(*parts, machine=AARCH64)))
    assert rows(deltas) == [
        (0, leaf),
        (4, (SP, LR, 0, 16, 0)),
        (20, leaf),
        (len(code), INVALID),
        (0x100, leaf),
        (0x140, INVALID),
    ]
    # x86_64's has rules of its own, and so may one here.
    deltas = extract_stack_deltas(ElfFile(elf_image(*parts, machine=62)))
    assert rows(deltas)[0][0] == 0x100
    frames = EhFrame()
    frames.fde(frames.cie(ARM_CIE, code_align=4, column=30), TEXT, len(code), bytes([0x0E, 32]))
    parts[2] = Part(".eh_frame", bytes(frames.end().data), EH_FRAME, flags=ALLOC)
    deltas = extract_stack_deltas(ElfFile(elf_image(*parts, machine=AARCH64)))
    assert rows(deltas) == [(0, (SP, LR, 0, 32, 0)), (len(code), INVALID)]


def test_an_unknown_base_is_invalid_on_aarch64() -> None:
    assert at(arm(bytes([0x0C, 0, 16])), 0) == INVALID
    assert at(arm(bytes([0x09, 30, 3])), 0) == INVALID


# ---- the map format --------------------------------------------------------------------------


def test_every_page_from_the_first_row_to_the_last_has_an_entry() -> None:
    frames = EhFrame()
    cie = frames.cie(X86_CIE)
    for start in (0x10, 0x100, 0x30000):
        frames.fde(cie, TEXT + start, 16, PUSHED)
    deltas = extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data), text=bytes(0x40000))))
    assert deltas.pages() == [(0x10000, 0, 4), (0x20000, 4, 0), (0x30000, 4, 0), (0x40000, 4, 2)]


def test_pack_puts_global_ids_into_rows() -> None:
    deltas = functions((0x20, 16, PUSHED), (0x100, 16, b""))
    ids = [0x8000 if info == INVALID else 700 + index for index, info in enumerate(deltas.infos)]
    packed = list(struct.iter_unpack("<HH", deltas.pack(ids)))
    assert [low for low, _ in packed] == [0x20, 0x30, 0x100, 0x110]
    assert [value for _, value in packed][1::2] == [0x8000, 0x8000]
    assert [ids[row] for row in deltas.rows()] == [value for _, value in packed]
    with pytest.raises(ValueError, match="ids for"):
        deltas.pack(ids[:-1])


def test_the_bucket_is_the_bit_length_of_the_number_of_rows() -> None:
    def bucket(count: int) -> int:
        return StackDeltas(bytes(8 * count), bytes(2 * count), [INVALID]).bucket

    assert [bucket(count) for count in (1, 255, 256, 511, 512)] == [8, 8, 9, 9, 10]


def test_more_rules_than_the_map_holds_end_in_invalid_rows() -> None:
    program = b"".join(bytes([0x44, 0x0E]) + uleb(16 + 24 * number) for number in range(17000))
    frames = EhFrame()
    frames.fde(frames.cie(X86_CIE), TEXT, 0x12000, program)
    image = image_of(bytes(frames.end().data), text=bytes(0x20000))
    deltas = extract_stack_deltas(ElfFile(image))
    assert deltas.truncated
    assert len(deltas.infos) == 16384
    assert at(deltas, 4 * 16000)[3] == 16 + 24 * 15999
    assert at(deltas, 4 * 16900) == INVALID


def test_rows_too_far_apart_are_refused() -> None:
    addresses = struct.pack("<QQ", 0x1000, 1 << 50)
    with pytest.raises(DecodeError, match="64 KiB apart"):
        StackDeltas(addresses, bytes(4), [INVALID]).pages()


def test_a_file_without_rules_gives_an_empty_table() -> None:
    deltas = extract_stack_deltas(ElfFile(image_of(b"")))
    assert (deltas.count, deltas.infos, deltas.pages(), deltas.pack([])) == (0, [], [], b"")


# ---- hostile input ---------------------------------------------------------------------------


def _sample() -> bytes:
    frames = EhFrame()
    cie = frames.cie(X86_CIE, augmentation=b"zPLR", data=b"\x9b" + bytes(4) + b"\x1b\x1b")
    frames.fde(
        cie, TEXT, 64, bytes([0x41, 0x0E, 16, 0x86, 2, 0x0A, 0x44, 0x0B, 0x0F]) + block(breg(7, 8) + b"\x06")
    )
    other = frames.cie(X86_CIE, version=3, augmentation=b"zRS")
    frames.fde(other, TEXT + 128, 64, bytes([0x10, 6]) + block(breg(6, 0)), wide=True)
    return bytes(frames.end().data)


def _check(deltas: StackDeltas) -> None:
    addresses = deltas.addresses()
    assert addresses == sorted(set(addresses))
    assert all(TEXT <= address <= TEXT + 0x10000 for address in addresses)
    assert len(set(deltas.infos)) == len(deltas.infos)
    assert sum(count for _, _, count in deltas.pages()) == deltas.count
    assert len(deltas.pack(range(len(deltas.infos)))) == 4 * deltas.count


@pytest.mark.parametrize("name", [".eh_frame", ".debug_frame"])
def test_a_section_cut_anywhere_still_gives_a_table(name: str) -> None:
    section = _sample() if name == ".eh_frame" else debug_frame(4, wide=True)
    for length in range(len(section)):
        _check(extract_stack_deltas(ElfFile(image_of(section[:length], name=name))))


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(_sample()) - 1), st.integers(0, 255)), max_size=8), st.booleans()
)
def test_a_section_with_any_bytes_changed_still_gives_a_table(
    changes: list[tuple[int, int]], is_arm: bool
) -> None:
    section = bytearray(_sample())
    for position, value in changes:
        section[position] = value
    image = image_of(bytes(section), machine=AARCH64 if is_arm else 62)
    _check(extract_stack_deltas(ElfFile(image)))


@settings(max_examples=300)
@given(st.binary(max_size=80), st.binary(max_size=200))
def test_any_program_gives_a_table(cie: bytes, program: bytes) -> None:
    frames = EhFrame()
    at_cie = frames.cie(cie)
    frames.fde(at_cie, TEXT, 0x1000, program)
    frames.fde(at_cie, TEXT + 0x800, 0x1000, program)
    _check(extract_stack_deltas(ElfFile(image_of(bytes(frames.end().data)))))


@settings(max_examples=300)
@given(st.integers(0, 600), st.integers(0, 255), st.integers(0, 2000))
def test_a_damaged_file_gives_a_table_or_a_decode_error(position: int, value: int, cut: int) -> None:
    image = bytearray(image_of(_sample(), text=bytes(0x100)))
    # The headers are at the front and at the back.
    where = position if position < 64 else len(image) - (position - 64) - 1
    image[where] = value
    with contextlib.suppress(DecodeError):
        elf = ElfFile(bytes(image[: len(image) - cut]) if cut % 3 else bytes(image))
        extract_stack_deltas(elf).pages()
