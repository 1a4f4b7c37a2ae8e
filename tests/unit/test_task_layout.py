# SPDX-License-Identifier: Apache-2.0
"""Where a kernel keeps what is read of a task is found by what a thread knows of itself, or refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.errors import NotSupported
from rubyunwind.process.mappings import Mapping
from rubyunwind.profiler.task_layout import REGISTERS, search

THREAD, PROCESS, POINTER = 4343, 4242, 0x7F00_1234_5680
TASK = 0xFFFF_8881_0430_9700
# Of vmalloc memory with four levels of page tables, and with five.
STACKS = (0xFFFF_C900_0717_4000, 0xFFA0_0000_0010_0000)
CODE = Mapping(0x40_0000, 0x41_0000, True, False, True, 0, 0, 1, "/bin/x")
MEMORY = Mapping(0x7FFD_0000_0000, 0x7FFD_0010_0000, True, True, False, 0, 0, 0, "[stack]")
TASK_SIZE = 4096


class Kernel:
    """Kernel memory with one task_struct and one stack; all else is unmapped, behind the stack too."""

    def __init__(
        self,
        machine: str,
        *,
        ids: int,
        pointer: int,
        stack: int,
        total: int,
        size: int,
        address: int = STACKS[0],
    ) -> None:
        shape = REGISTERS[machine]
        task = bytearray(b"\xa5" * TASK_SIZE)
        struct.pack_into("<ii", task, ids, THREAD, PROCESS)
        struct.pack_into("<Q", task, pointer, POINTER)
        struct.pack_into("<Q", task, stack, address)
        frame = bytearray(total)
        at = total - size
        struct.pack_into("<Q", frame, at + shape.pc, CODE.start + 4)
        struct.pack_into("<Q", frame, at + shape.sp, MEMORY.start + 64)
        struct.pack_into("<Q", frame, at + shape.mode, 0x33 if machine == "x86_64" else 0x6000_0000)
        self.task, self.stack, self.address = task, frame, address

    def read(self, address: int) -> tuple[int, bytes] | None:
        address = address or TASK
        for start, memory in ((TASK, self.task), (self.address, self.stack)):
            if start <= address and address + 128 <= start + len(memory):
                return address, bytes(memory[address - start : address - start + 128])
        return None


def found(kernel: Kernel, machine: str) -> tuple[int, int, int, int, int]:
    config, offsets = search(kernel.read, [CODE, MEMORY], machine, THREAD, PROCESS, POINTER)
    return (
        config.task_stack_offset,
        config.stack_ptregs_offset,
        config.tpbase_offset,
        offsets.pid,
        offsets.tgid,
    )


@pytest.mark.parametrize("machine", REGISTERS)
@settings(max_examples=40)
@given(data=st.data())
def test_every_offset_is_found_wherever_it_is(machine: str, data: st.DataObject) -> None:
    shape = REGISTERS[machine]
    words = data.draw(st.lists(st.integers(0, TASK_SIZE // 8 - 1), min_size=3, max_size=3, unique=True))
    ids, pointer, stack = (8 * word for word in words)
    total, size = data.draw(st.sampled_from(shape.stack_sizes)), data.draw(st.sampled_from(shape.sizes))
    address = data.draw(st.sampled_from(STACKS))
    kernel = Kernel(machine, ids=ids, pointer=pointer, stack=stack, total=total, size=size, address=address)
    assert found(kernel, machine) == (stack, total - size, pointer, ids, ids + 4)


@pytest.mark.parametrize("machine", REGISTERS)
@pytest.mark.parametrize("what", ["the ids of a thread", "its thread pointer", "its stack"])
def test_what_is_not_found_is_named(machine: str, what: str) -> None:
    shape = REGISTERS[machine]
    kernel = Kernel(machine, ids=8, pointer=800, stack=16, total=shape.stack_sizes[0], size=shape.sizes[0])
    at, length = {"the ids of a thread": (8, 8), "its thread pointer": (800, 8), "its stack": (16, 8)}[what]
    kernel.task[at : at + length] = b"\xa5" * length
    with pytest.raises(NotSupported, match=f"where it keeps {what} was not found in the 4096 bytes"):
        found(kernel, machine)


@pytest.mark.parametrize("machine", REGISTERS)
@pytest.mark.parametrize("wrong", ["pc", "sp", "mode"])
def test_a_page_that_has_no_registers_of_ours_at_its_top_is_no_stack(machine: str, wrong: str) -> None:
    shape = REGISTERS[machine]
    kernel = Kernel(machine, ids=8, pointer=800, stack=16, total=shape.stack_sizes[0], size=shape.sizes[0])
    at = shape.stack_sizes[0] - shape.sizes[0] + getattr(shape, wrong)
    struct.pack_into("<Q", kernel.stack, at, 0x10 if wrong == "mode" else 0xFFFF_FFFF_8100_0000)
    if wrong == "mode" and machine == "aarch64":
        struct.pack_into("<Q", kernel.stack, at, 0x5)  # EL1h
    with pytest.raises(NotSupported, match="its stack was not found"):
        found(kernel, machine)


def test_a_kernel_that_shows_nothing_is_refused() -> None:
    with pytest.raises(NotSupported, match="the 0 bytes of task_struct"):
        search(lambda _: None, [], "x86_64", THREAD, PROCESS, POINTER)
