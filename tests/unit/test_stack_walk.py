# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruby_memory import BASE, RubyMemory

from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.ruby.layouts import Layout, find_layout
from rubyunwind.ruby.selfcheck import check_stack
from rubyunwind.ruby.stack_walk import BadStack, ControlFrame, walk_stack

METHOD, BLOCK, CFUNC, IFUNC, DUMMY = 0x11110001, 0x22220001, 0x55550001, 0x66660001, 0x79990001
LOCAL, BMETHOD = 0x2, 0x40
LAYOUT = find_layout("3.1.2").layout


class Stack:
    """A made-up VM stack: frames are added root first."""

    def __init__(self, words: int = 4096, layout: Layout = LAYOUT) -> None:
        self.memory = RubyMemory(layout)
        self.words = words
        self.base = self.memory.place(bytes(8 * words))
        self.cfp = self.base + 8 * words
        self.context = self.memory.words(self.base, words, 0)
        self.push(DUMMY, *self.code("<main>"), entry=0)

    def code(self, label: str) -> tuple[int, int]:
        iseq, body = self.memory.iseq(label, lines=self.memory.one_line(1))
        return iseq, self.memory.u64(body + self.memory.layout.body_iseq_encoded) + 8

    def push(self, flags: int, iseq: int, pc: int, *, entry: int, parent: int = 0) -> int:
        """Add a frame and return its ep."""
        layout = self.memory.layout
        ep = self.memory.words(entry, parent | 1 if parent else 0, flags) + 16
        self.cfp -= layout.cfp_size
        self.memory.poke(self.cfp + layout.cfp_pc, pc)
        self.memory.poke(self.cfp + layout.cfp_iseq, iseq)
        self.memory.poke(self.cfp + layout.cfp_ep, ep)
        self.memory.poke(self.context + layout.ec_cfp, self.cfp)
        return ep

    def walk(self, limit: int = 1000) -> list[ControlFrame]:
        return list(walk_stack(self.memory, self.memory.layout, self.context, limit=limit))


def test_frames_come_leaf_first_without_the_dummy_at_the_base() -> None:
    stack = Stack()
    for label in ("main", "outer", "inner"):
        stack.push(METHOD | LOCAL, *stack.code(label), entry=0)
    frames = stack.walk()
    assert [frame.kind for frame in frames] == ["ruby"] * 3
    assert frames[0].address < frames[1].address < frames[2].address


def test_c_functions_are_shown_and_blocks_in_c_and_dummies_are_not() -> None:
    stack = Stack()
    stack.push(METHOD | LOCAL, *stack.code("main"), entry=0)
    entry = stack.memory.method_entry(8, 1)
    stack.push(CFUNC | LOCAL, 0, 0, entry=entry)
    stack.push(IFUNC, stack.memory.words(0, 0, 0, 0, 0), 0, entry=0)
    stack.push(DUMMY, 0, 0, entry=0)
    assert [(frame.kind, frame.method_entry) for frame in stack.walk()] == [("cfunc", entry), ("ruby", 0)]


def test_a_blocks_method_is_the_one_of_its_local_environment() -> None:
    stack = Stack()
    entry = stack.memory.method_entry(8, 1)
    method = stack.push(METHOD | LOCAL, *stack.code("run"), entry=entry)
    block = stack.push(BLOCK, *stack.code("block in run"), entry=0, parent=method)
    stack.push(BLOCK, *stack.code("block (2 levels) in run"), entry=0, parent=block)
    assert [frame.method_entry for frame in stack.walk()] == [entry] * 3


def test_code_in_define_method_belongs_to_that_method_not_to_the_one_around() -> None:
    stack = Stack()
    around, defined = stack.memory.method_entry(8, 1), stack.memory.method_entry(8, 2)
    outer = stack.push(METHOD | LOCAL, *stack.code("make"), entry=around)
    made = stack.push(BLOCK | BMETHOD, *stack.code("block in make"), entry=defined, parent=outer)
    stack.push(BLOCK, *stack.code("block (2 levels) in make"), entry=0, parent=made)
    assert [frame.method_entry for frame in stack.walk()] == [defined, defined, around]


def test_environments_in_a_circle_end() -> None:
    stack = Stack()
    ep = stack.push(BLOCK, *stack.code("block"), entry=0)
    stack.memory.poke(ep - 8, ep | 1)
    assert [frame.method_entry for frame in stack.walk()] == [0]


def test_a_walk_is_bounded_by_its_limit() -> None:
    stack = Stack()
    for _ in range(200):
        stack.push(METHOD | LOCAL, *stack.code("run"), entry=0)
    assert len(stack.walk()) == 200
    assert len(stack.walk(limit=150)) == 150


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("ec_vm_stack", 0, "a stack of"),
        ("ec_vm_stack", BASE + 4, "a stack of"),
        ("ec_vm_stack_size", 0, "a stack of 0 words"),
        ("ec_vm_stack_size", 1 << 60, "a stack of"),
        ("ec_cfp", 0, "no frame of the stack"),
        ("ec_cfp", BASE + 3, "no frame of the stack"),
        ("ec_cfp", (1 << 64) - 8, "no frame of the stack"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(field: str, value: int, reason: str) -> None:
    stack = Stack()
    stack.push(METHOD | LOCAL, *stack.code("run"), entry=0)
    stack.memory.poke(stack.context + getattr(LAYOUT, field), value)
    with pytest.raises(BadStack, match=reason):
        stack.walk()


def test_an_unreadable_environment_is_a_read_error() -> None:
    stack = Stack()
    stack.push(METHOD | LOCAL, *stack.code("run"), entry=0)
    stack.memory.poke(stack.cfp + LAYOUT.cfp_ep, 0x1000)
    with pytest.raises(MemoryReadError):
        stack.walk()


@given(damage=st.lists(st.tuples(st.integers(0, 600), st.integers(0, (1 << 64) - 1)), min_size=1, max_size=8))
def test_damaged_memory_ends_a_walk_with_an_error_of_ours_or_a_result(damage: list[tuple[int, int]]) -> None:
    stack = Stack(words=64)
    entry = stack.memory.method_entry(8, 1)
    for _ in range(4):
        stack.push(METHOD | LOCAL, *stack.code("run"), entry=entry)
    for word, value in damage:
        struct.pack_into("<Q", stack.memory.block, 8 * word % (len(stack.memory.block) - 8), value)
    with contextlib.suppress(RubyUnwindError):
        assert len(stack.walk(limit=64)) <= 64
    assert check_stack(stack.memory, LAYOUT, stack.context).result in ("good", "early", "bad")


def test_the_check_tells_good_from_early_from_bad() -> None:
    stack = Stack()
    assert check_stack(stack.memory, LAYOUT, 0).result == "early"
    assert check_stack(stack.memory, LAYOUT, stack.memory.words(0, 0, 0)).result == "early"
    end = stack.base + 8 * stack.words
    assert (
        check_stack(stack.memory, LAYOUT, stack.memory.words(stack.base, stack.words, end)).result == "early"
    )
    assert check_stack(stack.memory, LAYOUT, stack.context).result == "early"
    stack.push(METHOD | LOCAL, *stack.code("run"), entry=0)
    assert check_stack(stack.memory, LAYOUT, stack.context).result == "good"
    # One frame that compiled code has not filled in is no reason to doubt; most of them are.
    stack.push(METHOD | LOCAL, stack.code("run")[0], 0x1234, entry=0)
    assert check_stack(stack.memory, LAYOUT, stack.context).result == "good"
    stack.push(METHOD | LOCAL, stack.code("run")[0], 0x1234, entry=0)
    check = check_stack(stack.memory, LAYOUT, stack.context)
    assert check.result == "bad"
    assert "2 of 3 Ruby frames have a pc outside" in check.reason
    stack.push(METHOD | LOCAL, stack.memory.words(0, 0, 0x1000), 0x1234, entry=0)
    check = check_stack(stack.memory, LAYOUT, stack.context)
    assert check.result == "bad"
    assert "frame 1 from the leaf: cannot read" in check.reason
