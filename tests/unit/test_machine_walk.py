# SPDX-License-Identifier: Apache-2.0
"""Walks through machine code made by hand: what is read and returned, and that none goes on for ever."""

from __future__ import annotations

import pytest
from code_fragments import TEXT, WAYS, Fragment, Way, arm, fragment_of
from hypothesis import example, given
from hypothesis import strategies as st

from rubyunwind.ruby.hidden import _thread_variable
from rubyunwind.ruby.machine import Kind, Value, aarch64, x86_64
from rubyunwind.ruby.machine.instruction import Operation
from rubyunwind.ruby.machine.value import DEEPEST, add, constant
from rubyunwind.ruby.machine.walk import MOST_INSTRUCTIONS

NAMES = [way.name for way in WAYS]
BY_NAME = {way.name: way for way in WAYS}


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_every_way_to_a_thread_local_variable_is_followed(way: Way) -> None:
    found = fragment_of(way).trace()
    assert found.result is not None
    start, steps = found.result.path
    assert _thread_variable(start) == way.variable
    assert steps == (0x30, 0x10, 0)


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_code_that_is_cut_off_gives_no_result(way: Way) -> None:
    code = bytes.fromhex(way.code)
    for size in range(len(code) - 1):
        short = Way(way.name, way.arm, code[:size].hex(), way.variable)
        assert fragment_of(short).trace().result is None, size


@pytest.mark.parametrize("name", ["x86_64, general dynamic", "x86_64, descriptor", "aarch64, descriptor"])
def test_a_call_with_what_is_no_slot_of_the_dynamic_linker_is_any_call(name: str) -> None:
    way = BY_NAME[name]
    found = Fragment(bytes.fromhex(way.code), arm=way.arm).trace()
    assert found.result is None or _thread_variable(found.result.path[0]) is None


def test_a_helper_out_of_line_is_followed_and_its_result_used() -> None:
    # aarch64 builds have rb_current_ec_noinline: mrs x0; ldr x0,[x0,#16]; ret
    helper = TEXT + 0x100
    code = arm(
        0xD503233F, 0xA9BF7BFD, 0x94000000 | (helper - TEXT - 8) // 4, 0xF9401800, 0xA8C17BFD, 0xD65F03C0
    )
    found = Fragment(
        bytes.fromhex(code),
        arm=True,
        functions={helper: bytes.fromhex(arm(0xD53BD040, 0xF9400800, 0xD65F03C0))},
    ).trace()
    assert found.result is not None
    start, steps = found.result.path
    assert (start.kind, start.offset, steps) == (Kind.THREAD, 16, (0x30, 0))


def test_a_call_keeps_only_what_a_callee_has_to_keep() -> None:
    # mov $1,%ebx; mov $2,%ecx; call helper; mov %rbx,%rax | mov %rcx,%rax; ret
    helper = TEXT + 0x100
    call = "e8" + (helper - TEXT - 15).to_bytes(4, "little").hex()
    start = "bb01000000 b902000000" + call
    functions = {helper: b"\xc3"}
    kept = Fragment(bytes.fromhex(start + "4889d8c3"), functions=functions).trace()
    lost = Fragment(bytes.fromhex(start + "4889c8c3"), functions=functions).trace()
    assert kept.result == constant(1)
    assert lost.result is None


def test_a_tail_call_through_the_linkage_table_is_followed() -> None:
    # jmp *0x200(%rip), to a function of the same file: mov $7,%eax; ret
    target = TEXT + 0x400
    code = bytes.fromhex("ff2500020000")
    functions = {target: bytes.fromhex("b807000000c3")}
    pointers = {TEXT + 6 + 0x200: target}
    assert Fragment(code, functions=functions, pointers=pointers).trace().result == constant(7)
    assert Fragment(code, functions=functions).trace().result is None
    # adrp x16; ldr x17,[x16,#8]; add x16,x16,#8; br x17
    code = bytes.fromhex(arm(0x90000010, 0xF9400611, 0x91002210, 0xD61F0220))
    functions = {target: bytes.fromhex(arm(0xD28000E0, 0xD65F03C0))}
    found = Fragment(code, arm=True, functions=functions, pointers={TEXT + 8: target}).trace()
    assert found.result == constant(7)


@pytest.mark.parametrize(
    ("code", "steps", "shift"),
    [
        # lea 0x1000(%rip),%rax; mov (%rax),%rax; mov 0x518(%rax),%rax; movzbl 16(%rax),%eax; shr $5,%al; and
        ("488d0500100000 488b00 488b8018050000 0fb64010 c0e805 83e001 c3", (0x518, 16, 0), 5),
        # in a byte of a register: mov 16(%rax),%al; shr $5,%al; and $1,%eax
        ("488d0500100000 488b00 488b8018050000 8a4010 c0e805 83e001 c3", (0x518, 16, 0), 5),
        # the same flag as a whole word: mov 16(%rax),%eax; shr $5,%eax; and $1,%eax
        ("488d0500100000 488b00 488b8018050000 8b4010 c1e805 83e001 c3", (0x518, 16, 0), 5),
    ],
)
def test_a_flag_is_its_word_and_its_bit(code: str, steps: tuple[int, ...], shift: int) -> None:
    found = Fragment(bytes.fromhex(code)).trace().result
    assert found is not None
    assert found.path == (constant(TEXT + 7 + 0x1000), steps)
    assert found.shift == shift


def test_a_test_in_memory_is_seen_with_its_lowest_bit() -> None:
    # testb $0x20,0x10(%rdi) of a known rdi; setne %al; ret
    code = bytes.fromhex("bf00100000 f6471020 0f95c0 c3")
    assert Fragment(code).trace().reads == ((constant(0x1010), 5),)


@pytest.mark.parametrize(
    ("code", "is_arm"),
    [
        ("ebfe", False),  # jmp to itself
        ("e8fbffffff", False),  # call of itself, and what follows is not there
        ("e8fbffffff ebf9", False),
        (arm(0x14000000), True),  # b to itself
        (arm(0x94000000, 0x17FFFFFF), True),  # bl to itself, b back
        (arm(0x14000002, 0xD503201F, 0x17FFFFFE), True),
    ],
)
def test_loops_of_jumps_and_calls_end(code: str, is_arm: bool) -> None:
    fragment = Fragment(bytes.fromhex(code), arm=is_arm)
    assert fragment.trace().result is None
    assert fragment.decoded <= MOST_INSTRUCTIONS


@given(st.binary(max_size=600), st.booleans())
@example(b"\xe8\0\0\0\0" * 60, False)
@example(b"\0\0\0\x94" * 60, True)
def test_any_bytes_end_within_the_bound(code: bytes, is_arm: bool) -> None:
    fragment = Fragment(code, arm=is_arm)
    found = fragment.trace()
    assert fragment.decoded <= MOST_INSTRUCTIONS
    assert all(read.depth <= DEEPEST for read, _ in found.reads)


@given(st.binary(max_size=40), st.integers(0, 40), st.booleans())
def test_an_instruction_lies_inside_of_its_bytes(code: bytes, at: int, is_arm: bool) -> None:
    one = (aarch64 if is_arm else x86_64).decode(code, at, TEXT + at)
    if one is not None:
        assert 0 < one.size <= len(code) - at
        assert one.size <= 15
        assert (one.register is None) or 0 <= one.register < 32
        assert all(0 <= register < 32 for register in one.writes)


@given(st.binary(max_size=200), st.booleans())
def test_targets_of_any_bytes_are_within_reach(code: bytes, is_arm: bool) -> None:
    reach = 1 << 27 if is_arm else 1 << 31
    for target, _ in (aarch64 if is_arm else x86_64).targets(code, TEXT):
        assert abs(target - TEXT) <= reach + len(code)


def test_calls_and_jumps_are_found_wherever_they_lie() -> None:
    # nop; call +0x10; je +0x20; jmp *0x30(%rip)
    code = bytes.fromhex("90 e810000000 0f8420000000 ff2530000000")
    assert list(x86_64.targets(code, TEXT)) == [
        (TEXT + 6 + 0x10, False), (TEXT + 12 + 0x20, False), (TEXT + 18 + 0x30, True),
    ]  # fmt: skip
    # nop; bl +0x10; b -8; cbz
    code = bytes.fromhex(arm(0xD503201F, 0x94000004, 0x17FFFFFE, 0xB4000040))
    assert list(aarch64.targets(code, TEXT)) == [(TEXT + 0x14, False), (TEXT, False)]


@pytest.mark.parametrize(
    ("code", "size", "operation"),
    [
        ("f30f1efa", 4, Operation.OTHER),  # endbr64
        ("66662e0f1f840000000000", 11, Operation.OTHER),  # nopw %cs:0(%rax,%rax)
        ("6681380102", 5, Operation.OTHER),  # cmpw $0x201,(%rax): an immediate of 16 bits
        ("66f740080102", 6, Operation.LOAD),  # testw $0x201,8(%rax)
        ("48b80102030405060708", 10, Operation.ADDRESS),  # movabs
        ("66b80102", 4, Operation.ADDRESS),  # mov $0x201,%ax
        ("f0480fb10f", 5, Operation.OTHER),  # lock cmpxchg
        ("410fcd", 3, Operation.OTHER),  # bswap %r13d
        ("660f3a0fc108", 6, Operation.OTHER),  # palignr $8
        ("0f8401000000", 6, Operation.OTHER),  # je
        ("f6d8", 2, Operation.OTHER),  # neg %al: no immediate
        ("48f7e1", 3, Operation.OTHER),  # mul %rcx
        ("8a6008", 3, Operation.OTHER),  # mov 8(%rax),%ah
        ("c3", 1, Operation.RETURN),
        ("f3c3", 2, Operation.RETURN),
        ("ffe0", 2, Operation.JUMP),  # jmp *%rax
        ("41ff5208", 4, Operation.CALL),  # call *8(%r10)
    ],
)
def test_lengths_of_x86_64_instructions(code: str, size: int, operation: Operation) -> None:
    one = x86_64.decode(bytes.fromhex(code) + bytes(8), 0, TEXT)
    assert one is not None
    assert (one.size, one.operation) == (size, operation)


@pytest.mark.parametrize("code", ["0f0b", "c5f877", "62f17c48", "f4", "06", "cc", "0f05", "", "48", "666666"])
def test_what_no_compiler_has_on_the_way_ends_it_on_x86_64(code: str) -> None:
    assert x86_64.decode(bytes.fromhex(code), 0, TEXT) is None


@pytest.mark.parametrize("word", [0, 0xD4207D00, 0xD69F03E0, 0x02000000])
def test_what_no_compiler_has_on_the_way_ends_it_on_aarch64(word: int) -> None:
    assert aarch64.decode(word.to_bytes(4, "little"), 0, TEXT) is None


def test_sums_that_mean_nothing_are_not_known() -> None:
    thread, slot = Value(Kind.THREAD), Value(Kind.DESCRIPTOR, slot=8)
    assert add(thread, slot) == add(slot, thread)
    assert add(thread, thread) is None
    assert add(slot, slot) is None
    assert add(None, thread) is None
    both = add(thread, slot)
    assert add(both, slot) is None
    assert add(constant(-8 & (1 << 64) - 1), thread) == thread.plus(-8)
    shifted = Value(Kind.CONSTANT, 8, shift=1)
    assert shifted.plus(1) is None
    assert shifted.loaded() is None
