# SPDX-License-Identifier: Apache-2.0
"""Ruby frames among native ones: from what the kernel side sends, in every moment, the true order back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubyunwind.abi import ErrorCode, Frame, FrameMarker, Step
from rubyunwind.profiler.interpreter import InterpreterLoop
from rubyunwind.profiler.placement import place_ruby_frames

LIBRUBY, LIBC = 1, 2
LOOP = InterpreterLoop(LIBRUBY, 0x1000, 0x1FFF)
ABORT = Frame(addr_or_line=ErrorCode.NATIVE_ZERO_PC, kind=FrameMarker.ABORT)


@dataclass(frozen=True)
class Stack:
    """A true stack, leaf first: kernel frames, native ones, then each loop's Ruby frames and native run."""

    kernel: list[Frame]
    leaf: list[Frame]
    groups: list[list[Frame]]
    runs: list[list[Frame]]  # each begins with its loop

    @property
    def natives(self) -> list[Frame]:
        return [*self.kernel, *self.leaf, *(frame for run in self.runs for frame in run)]

    def true_order(self) -> list[Frame]:
        order = [*self.kernel, *self.leaf]
        for group, run in zip(self.groups, self.runs, strict=True):
            order += group + run
        return order


def ruby(address: int, kind: FrameMarker = FrameMarker.RUBY) -> Frame:
    return Frame(file_id=0x7F0000000000 + address, addr_or_line=address, kind=kind)


def native(address: int, file: int = LIBC) -> Frame:
    return Frame(file_id=file, addr_or_line=address, kind=FrameMarker.NATIVE)


def loop(address: int) -> Frame:
    # A return address: the call may be the last instruction of the loop.
    return Frame(file_id=LIBRUBY, addr_or_line=address, kind=FrameMarker.NATIVE, return_address=1)


def as_sent(natives: list[Frame], groups: list[list[Frame]]) -> list[Frame]:
    """What the kernel side pushes: at each loop the Ruby frames up to one that finishes a group."""
    waiting = list(groups)
    done = met = False
    sent: list[Frame] = []
    for frame in natives:
        if LOOP.holds(frame) and not done:
            met = True
            if waiting:
                sent += waiting.pop(0)
            done = not waiting
        sent.append(frame)
    return sent + [frame for group in waiting if met for frame in group]


_numbers = st.integers(0x10, 0xFFFF)
_rubies = st.builds(ruby, _numbers, st.sampled_from([FrameMarker.RUBY, FrameMarker.RUBY_CFUNC]))
_groups = st.lists(_rubies, min_size=1, max_size=4)
_natives = st.lists(
    st.one_of(st.builds(native, _numbers), st.builds(native, st.integers(0x2001, 0x2FFF), st.just(LIBRUBY))),
    max_size=4,
)
_loops = st.builds(loop, st.integers(0x1001, 0x2000))
_kernels = st.lists(st.builds(lambda a: Frame(addr_or_line=a, kind=FrameMarker.KERNEL), _numbers), max_size=3)


@st.composite
def stacks(draw: st.DrawFn, least: int = 1, leaf: int = 0) -> Stack:
    count = draw(st.integers(least, 5))
    runs = [[draw(_loops), *draw(_natives)] for _ in range(count)]
    return Stack(
        draw(_kernels),
        draw(_natives.filter(lambda frames: len(frames) >= leaf)),
        [draw(_groups) for _ in range(count)],
        runs,
    )


def placed(sent: list[Frame], *, rooted: bool = True) -> list[bytes]:
    return [bytes(frame) for frame in place_ruby_frames(sent, LOOP.holds, rooted=rooted)]


def raw(frames: list[Frame]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


endings = st.sampled_from([[], [ABORT]])


@given(stacks(), endings)
def test_a_stack_at_rest_comes_back_as_it_is(stack: Stack, end: list[Frame]) -> None:
    sent = as_sent(stack.natives, stack.groups)
    assert raw(sent) == raw(stack.true_order())
    assert placed(sent + end) == raw(sent + end)


@given(stacks(leaf=1), _groups, endings)
def test_a_frame_pushed_before_its_loop_is_entered_is_the_leaf(
    stack: Stack, pushed: list[Frame], end: list[Frame]
) -> None:
    sent = as_sent(stack.natives, [pushed, *stack.groups])
    rest = stack.true_order()[len(stack.kernel) :]
    assert placed(sent + end) == raw(stack.kernel + pushed + rest + end)


@given(stacks(least=2), endings)
def test_a_loop_that_has_popped_its_frame_keeps_the_others_in_theirs(stack: Stack, end: list[Frame]) -> None:
    sent = as_sent(stack.natives, stack.groups[1:])
    left = Stack(stack.kernel, stack.leaf, [[], *stack.groups[1:]], stack.runs)
    assert placed(sent + end) == raw(left.true_order() + end)


@given(stacks(), st.data())
def test_a_stack_that_a_limit_cut_is_not_moved(stack: Stack, data: st.DataObject) -> None:
    whole = stack.true_order()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    limit = Frame(addr_or_line=ErrorCode.STACK_LENGTH_EXCEEDED, kind=FrameMarker.ABORT)
    assert placed([*cut, limit], rooted=False) == raw([*cut, limit])


@given(stacks(leaf=1), _groups)
def test_nothing_is_lost_or_made_up(stack: Stack, pushed: list[Frame]) -> None:
    for groups in (stack.groups, [pushed, *stack.groups], stack.groups[1:]):
        sent = as_sent(stack.natives, groups)
        assert sorted(placed(sent)) == sorted(raw(sent))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [ABORT],
        [native(1), native(2)],
        [native(1), loop(0x1100), native(2), ABORT],
        [loop(0x1100), loop(0x1200)],
    ],
)
def test_without_ruby_nothing_moves(frames: list[Frame]) -> None:
    assert placed(frames) == raw(frames)


@pytest.mark.parametrize("frames", [[ruby(1)], [ruby(1), ruby(2, FrameMarker.RUBY_CFUNC), ABORT]])
def test_without_native_frames_nothing_moves(frames: list[Frame]) -> None:
    assert placed(frames) == raw(frames)


def test_both_ends_of_the_loop_are_in_it_and_a_call_at_its_end_too() -> None:
    assert LOOP.holds(native(0x1000, LIBRUBY))
    assert LOOP.holds(native(0x1FFF, LIBRUBY))
    assert LOOP.holds(loop(0x2000))
    assert not LOOP.holds(native(0x2000, LIBRUBY))
    assert not LOOP.holds(loop(0x1000))
    assert not LOOP.holds(native(0x1800, LIBC))


def test_both_parts_of_a_loop_are_the_loop() -> None:
    loop = InterpreterLoop(7, 0x100, 0x1FF, cold=(0x900, 0x910))

    def holds(address: int, file_id: int = 7, return_address: int = 0) -> bool:
        return loop.holds(Step(file_id, address, int(FrameMarker.NATIVE), return_address, 0))

    assert [holds(at) for at in (0xFF, 0x100, 0x1FF, 0x200, 0x8FF, 0x900, 0x910, 0x911)] == [
        False, True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert holds(0x911, return_address=1)
    assert not holds(0x900, return_address=1)
    assert not holds(0x100, file_id=8)
