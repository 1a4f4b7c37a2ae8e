# SPDX-License-Identifier: Apache-2.0
"""Stacks that change while they are read: one of the two that were there comes out, or none."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from ruby_memory import BASE, RubyMemory

from rubyunwind.abi import FrameMarker, decode_trace
from rubyunwind.bpf.hosted import HostedCollection, HostMemory
from rubyunwind.profiler.context_reader import ContextReader
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.procinfo import make_proc_info

METHOD, CFUNC, DUMMY = 0x11110003, 0x55550083, 0x77770003
WORDS = 4096


class RubyStack:
    """A VM stack: frames are (kind, code, pc); code is an iseq, or a C function's method entry."""

    def __init__(self, version: str = "3.1.2") -> None:
        self.layout = find_layout(version).layout
        self.memory = RubyMemory(self.layout)
        self.stack = self.memory.place(bytes(8 * WORDS))
        self.context = self.memory.words(self.stack, WORDS, 0)
        self.on_read: Callable[[int, int], None] = lambda address, length: None
        self.end = self.stack + 8 * WORDS
        self.count = 0
        self.push(DUMMY)

    def read(self, address: int, length: int) -> bytes:
        self.on_read(address, length)
        return self.memory.read(address, length)

    def u64(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def u32(self, address: int) -> int:
        return int(struct.unpack("<I", self.read(address, 4))[0])

    def push(self, kind: int, code: int = 0, pc: int = 0) -> None:
        layout = self.layout
        ep = self.stack + 64 * self.count + 16
        self.memory.poke(ep - 16, code if kind == CFUNC else 0)
        self.memory.poke(ep - 8, 0)
        self.memory.poke(ep, kind)
        self.count += 1
        frame = self.end - self.count * layout.cfp_size
        self.memory.poke(frame + layout.cfp_pc, pc)
        self.memory.poke(frame + layout.cfp_iseq, 0 if kind == CFUNC else code)
        self.memory.poke(frame + layout.cfp_ep, ep)
        self.memory.poke(self.context + layout.ec_cfp, frame)

    def pop(self) -> None:
        self.count -= 1
        self.memory.poke(self.context + self.layout.ec_cfp, self.end - self.count * self.layout.cfp_size)

    def call(self, label: str, position: int = 1) -> int:
        """Push a Ruby frame; return its body."""
        iseq, body = self.memory.iseq(label)
        self.push(METHOD, iseq, self.memory.u64(body + self.layout.body_iseq_encoded) + 8 * position)
        return body


@pytest.fixture
def collection() -> Iterator[HostedCollection]:
    with HostedCollection() as opened:
        yield opened


def read(collection: HostedCollection, stack: RubyStack) -> list[tuple[FrameMarker, int]] | None:
    info = make_proc_info(stack.layout, "3.1.2", 0)
    reader = ContextReader(collection, HostMemory(memory=stack), info, 5)
    record = reader.read(stack.context, 7, "ruby", 1)
    if record is None:
        return None
    trace = decode_trace(record)
    assert (trace.pid, trace.tid, trace.comm) == (5, 7, "ruby")
    return [(frame.kind, frame.file_id) for frame in trace.frames]


def test_a_stack_that_holds_still_is_read(collection: HostedCollection) -> None:
    stack = RubyStack()
    main, run = stack.call("<main>"), stack.call("run")
    entry = stack.memory.words(1)
    stack.push(CFUNC, entry)
    assert read(collection, stack) == [
        (FrameMarker.RUBY_CFUNC, entry),
        (FrameMarker.RUBY, run),
        (FrameMarker.RUBY, main),
    ]


@pytest.mark.parametrize("every", range(1, 12))
def test_a_stack_that_calls_and_returns_is_never_a_mixture(collection: HostedCollection, every: int) -> None:
    """Main calls a from one place and b from another, by turns: each `every` reads the other one."""
    stack = RubyStack()
    main = stack.call("<main>")
    code = stack.memory.u64(main + stack.layout.body_iseq_encoded)
    frame = stack.end - stack.count * stack.layout.cfp_size
    iseqs = [stack.memory.iseq("a"), stack.memory.iseq("b")]
    reads = turns = 0

    def switch(address: int = 0, length: int = 0) -> None:
        nonlocal reads, turns
        reads += 1
        if reads % every:
            return
        turns += 1
        stack.pop()
        iseq, body = iseqs[turns % 2]
        stack.memory.poke(frame + stack.layout.cfp_pc, code + 8 * (1 + turns % 2))
        stack.push(METHOD, iseq, stack.memory.u64(body + stack.layout.body_iseq_encoded) + 8)

    stack.push(METHOD, iseqs[0][0], stack.memory.u64(iseqs[0][1] + stack.layout.body_iseq_encoded) + 8)
    stack.on_read = switch
    info = make_proc_info(stack.layout, "3.1.2", 0)
    reader = ContextReader(collection, HostMemory(memory=stack), info, 5)
    record = reader.read(stack.context, 7, "ruby", 1)
    assert turns
    if record is None:
        assert every < 6  # it takes five reads to see that nothing has changed
        return
    leaf, root = decode_trace(record).frames
    assert root.file_id == main
    called = (root.addr_or_line - code) // 8 - 1
    assert leaf.file_id == iseqs[called][1]


def test_a_stack_that_changes_all_the_time_is_none_after_a_bounded_number_of_reads(
    collection: HostedCollection,
) -> None:
    stack = RubyStack()
    stack.call("<main>")
    stack.call("run")
    reads = 0

    def change(address: int, length: int) -> None:
        nonlocal reads
        reads += 1
        while stack.count > 2:
            stack.pop()
        for _ in range(reads % 3):
            stack.call("x")

    stack.on_read = change
    assert read(collection, stack) is None
    assert reads < 2000


def test_the_leaf_may_run_on_meanwhile(collection: HostedCollection) -> None:
    stack = RubyStack()
    main = stack.call("<main>")
    run = stack.call("run")
    code = stack.memory.u64(run + stack.layout.body_iseq_encoded)
    frame = stack.end - stack.count * stack.layout.cfp_size
    position = 0

    def step(address: int, length: int) -> None:
        nonlocal position
        position = position % 9 + 1
        stack.memory.poke(frame + stack.layout.cfp_pc, code + 8 * position)

    stack.on_read = step
    assert read(collection, stack) == [(FrameMarker.RUBY, run), (FrameMarker.RUBY, main)]


def test_a_context_that_goes_away_is_none(collection: HostedCollection) -> None:
    stack = RubyStack()
    stack.call("<main>")
    reads = 0

    def vanish(address: int, length: int) -> None:
        nonlocal reads
        reads += 1
        if reads == 4:
            stack.memory.block = bytearray()

    stack.on_read = vanish
    assert read(collection, stack) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ec_vm_stack", 0),
        ("ec_vm_stack", 8),
        ("ec_vm_stack_size", 0),
        ("ec_vm_stack_size", 1 << 40),
        ("ec_vm_stack_size", (1 << 64) - 1),
        ("ec_cfp", 0),
        ("ec_cfp", BASE),
        ("ec_cfp", (1 << 64) - 8),
    ],
)
def test_a_context_whose_numbers_make_no_sense_is_none(
    collection: HostedCollection, field: str, value: int
) -> None:
    stack = RubyStack()
    stack.call("<main>")
    stack.memory.poke(stack.context + getattr(stack.layout, field), value)
    assert read(collection, stack) is None


@pytest.mark.parametrize("code", [1, 8, BASE - 8, (1 << 64) - 8, 1 << 63])
def test_frames_that_point_nowhere_are_none(collection: HostedCollection, code: int) -> None:
    stack = RubyStack()
    stack.call("<main>")
    stack.push(METHOD, code, 16)
    assert read(collection, stack) is None


def test_environments_that_point_to_each_other_end(collection: HostedCollection) -> None:
    stack = RubyStack()
    main = stack.call("<main>")
    ep = stack.stack + 64 + 16
    stack.memory.poke(ep - 8, ep)  # a block inside of itself
    stack.memory.poke(ep, 0x22220001)
    assert read(collection, stack) == [(FrameMarker.RUBY, main)]


def test_a_stack_of_frames_that_ruby_does_not_show_ends(collection: HostedCollection) -> None:
    stack = RubyStack()
    for _ in range(stack.layout.cfp_size // 8 * 7):  # as many as have room beside their environments
        stack.push(DUMMY)
    assert read(collection, stack) is None


def test_without_a_context_there_is_no_stack(collection: HostedCollection) -> None:
    stack = RubyStack()
    stack.context = 0
    assert read(collection, stack) is None
