# SPDX-License-Identifier: Apache-2.0
"""Finds out where a kernel without type information keeps what the legacy programs read of a task.

A program shows kernel memory piece by piece: first the task_struct of the thread that asks. It is searched
for what the thread knows of itself (its ids, its thread pointer), and for a pointer to a stack at whose top
are the registers that user code left there.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind._native import lib as native
from rubyunwind.abi import SystemAnalysis, SystemConfig, TaskOffsets
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.errors import NotSupported
from rubyunwind.process.image import LiveProcess
from rubyunwind.profiler.system import ANALYSIS_MAP, ANALYSIS_PROGRAM, system_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rubyunwind.bpf.spec import CollectionSpec
    from rubyunwind.process.mappings import Mapping

__all__ = ["KernelReader", "SavedRegisters", "find_task_layout", "search"]

_PIECE = 128  # sizeof SystemAnalysis.code
# A task_struct has 3 to 10 kB, the state of the FPU (its last member) included.
_MOST = 16384
_PERF_COUNT_SW_PAGE_FAULTS = 2  # include/uapi/linux/perf_event.h
_PAGE = 4096


class SavedRegisters(NamedTuple):
    """struct pt_regs at the top of a kernel stack: which sizes both may have, and where in it what is.

    `mode` is the word that tells user code by `user_mode`: its bits under `mode_mask`.
    """

    stack_sizes: tuple[int, ...]
    sizes: tuple[int, ...]
    pc: int
    sp: int
    mode: int
    mode_mask: int
    user_mode: int


# THREAD_SIZE: arch/x86/include/asm/page_64_types.h (twice as much with KASAN),
# arch/arm64/include/asm/memory.h (64 kB with pages of that size).
# struct pt_regs: arch/*/include/asm/ptrace.h; on x86_64 16 bytes lie above it with CONFIG_X86_FRED (6.9:
# TOP_OF_KERNEL_STACK_PADDING), on arm64 the kernel's part behind user_pt_regs has grown: 320 bytes in 4.19
# and 5.4, 336 in 5.10.
REGISTERS = {
    "x86_64": SavedRegisters((16384, 32768), (168, 184), pc=128, sp=152, mode=136, mode_mask=3, user_mode=3),
    "aarch64": SavedRegisters(
        (16384, 65536), (320, 336, 304), pc=256, sp=248, mode=264, mode_mask=0x1F, user_mode=0
    ),
}


class KernelReader:
    """Reads kernel memory through the legacy object's `analyze_system`. A context manager.

    It answers in the thread that made it, and runs when that thread touches a fresh page.
    """

    def __init__(self, spec: CollectionSpec) -> None:
        with ExitStack() as stack:
            programs = {ANALYSIS_PROGRAM: replace(spec.programs[ANALYSIS_PROGRAM], load=True)}
            collection = stack.enter_context(
                replace(spec, programs={**spec.programs, **programs}).load(
                    without_programs=spec.programs.keys() - programs.keys(),
                    without_maps=spec.maps.keys() - {ANALYSIS_MAP},
                )
            )
            self._analysis = collection.maps[ANALYSIS_MAP]
            event = stack.enter_context(
                perf_event_open(pid=0, period=1, config=_PERF_COUNT_SW_PAGE_FAULTS, disabled=True)
            )
            event.attach(collection.programs[ANALYSIS_PROGRAM])
            event.enable()
            self._stack = stack.pop_all()

    def read(self, address: int) -> tuple[int, bytes] | None:
        """Return `address` (0: that of this thread's task_struct) and 128 bytes there, None if unmapped."""
        self._analysis[0] = bytes(SystemAnalysis(address=address, pid=os.getpid()))
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            page[0] = 1  # the fault
        answer = SystemAnalysis.from_bytes(bytes(self._analysis[0]))
        return None if answer.pid else (answer.address, bytes(answer.code))

    def close(self) -> None:
        """Unload the program. Twice is harmless."""
        self._stack.close()

    def __enter__(self) -> KernelReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def find_task_layout(spec: CollectionSpec, machine: str | None = None) -> tuple[SystemConfig, TaskOffsets]:
    """Return the values of system_config and task_offsets for this kernel. Raises NotSupported."""
    machine = machine or os.uname().machine
    with LiveProcess(os.getpid()) as ours:
        mappings = list(ours.mappings())
    with KernelReader(spec) as reader:
        return search(
            reader.read, mappings, machine, threading.get_native_id(), os.getpid(), native.thread_pointer()
        )


def search(
    read: Callable[[int], tuple[int, bytes] | None],
    mappings: Iterable[Mapping],
    machine: str,
    thread: int,
    process: int,
    thread_pointer: int,
) -> tuple[SystemConfig, TaskOffsets]:
    """Do the search with `read`, which is KernelReader.read; `mappings` are the process's own."""
    task = _task_struct(read)
    ids = _find(task, struct.pack("<ii", thread, process), 4)
    pointer = _find(task, struct.pack("<Q", thread_pointer), 8)
    stack, registers = _find_stack(read, task, REGISTERS[machine], list(mappings))
    for what, offset in (("the ids of a thread", ids), ("its thread pointer", pointer), ("its stack", stack)):
        if offset < 0:
            raise NotSupported(
                f"this kernel has no type information, and where it keeps {what} was not found in the "
                f"{len(task)} bytes of task_struct that can be read",
                feature="a known task_struct",
                needs="a kernel with CONFIG_DEBUG_INFO_BTF, or one built in the usual way",
            )
    config = system_config(machine)
    return (
        SystemConfig(
            inverse_pac_mask=config.inverse_pac_mask,
            tpbase_offset=pointer,
            task_stack_offset=stack,
            stack_ptregs_offset=registers,
        ),
        TaskOffsets(pid=ids, tgid=ids + 4),
    )


def _task_struct(read: Callable[[int], tuple[int, bytes] | None]) -> bytes:
    first = read(0)
    if first is None:
        return b""
    base, task = first
    while len(task) < _MOST and (piece := read(base + len(task))) is not None:
        task += piece[1]
    return task


def _find(memory: bytes, wanted: bytes, alignment: int) -> int:
    """Return the first aligned offset of some bytes, -1 if they are not there."""
    at = memory.find(wanted)
    while at >= 0 and at % alignment:
        at = memory.find(wanted, at + 1)
    return at


def _find_stack(
    read: Callable[[int], tuple[int, bytes] | None], task: bytes, shape: SavedRegisters, ours: list[Mapping]
) -> tuple[int, int]:
    """Return where task_struct has its kernel stack, and where on it the user's registers are; -1, -1."""
    for offset, (word,) in enumerate(struct.iter_unpack("<Q", task[: len(task) // 8 * 8])):
        # A kernel address, of a whole page. With five levels of page tables x86_64 has more of them.
        if word >> 56 != 0xFF or word % _PAGE:
            continue
        for total in shape.stack_sizes:
            for size in shape.sizes:
                at = total - size
                # The piece that ends with them: behind a stack there may be nothing.
                first = size - _PIECE
                found = read(word + at + first)
                if found is not None and _is_user(found[1], shape, first, ours):
                    return offset * 8, at
    return -1, -1


def _is_user(piece: bytes, shape: SavedRegisters, first: int, ours: list[Mapping]) -> bool:
    """Whether registers are those of user code: of ours, so its pc and sp are in our mappings."""
    pc, sp, mode = (
        int.from_bytes(piece[at - first : at - first + 8], "little")
        for at in (shape.pc, shape.sp, shape.mode)
    )
    return (
        mode & shape.mode_mask == shape.user_mode
        and any(m.start <= pc < m.end and m.executable for m in ours)
        and any(m.start <= sp < m.end and m.writable for m in ours)
    )
