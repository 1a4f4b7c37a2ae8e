# SPDX-License-Identifier: Apache-2.0
"""RubyProcInfo: what the BPF side must know of a Ruby process, from its layout and symbols."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rubyunwind.abi import RubyProcInfo
from rubyunwind.ruby.layouts import parse_version, version_number

if TYPE_CHECKING:
    from rubyunwind.process.memory import Memory
    from rubyunwind.ruby.layouts import Layout

__all__ = ["make_proc_info", "running_context"]

_SIZE_OF_VALUE = 8


def make_proc_info(layout: Layout, version: str, context_address: int) -> RubyProcInfo:
    """Return the value of ruby_procs for a process that runs `version`.

    `context_address` is where layout.context_symbol lies in the process (load bias included), or 0 when the
    binary does not tell: then only the thread-local context can be used.
    """
    return _offsets(layout, version).replace(current_ctx_ptr=context_address)


@lru_cache(maxsize=64)
def _offsets(layout: Layout, version: str) -> RubyProcInfo:
    """Return what is the same in all processes."""
    return RubyProcInfo(
        version=version_number(parse_version(version)),
        vm_stack=layout.ec_vm_stack,
        vm_stack_size=layout.ec_vm_stack_size,
        cfp=layout.ec_cfp,
        pc=layout.cfp_pc,
        iseq=layout.cfp_iseq,
        ep=layout.cfp_ep,
        size_of_control_frame_struct=layout.cfp_size,
        body=layout.iseq_body,
        iseq_type=layout.body_type,
        iseq_encoded=layout.body_iseq_encoded,
        iseq_size=layout.body_iseq_size,
        size_of_value=_SIZE_OF_VALUE,
        running_ec=layout.ractor_running_ec or 0,
    )


def running_context(memory: Memory, layout: Layout, context_address: int, vm_address: int = 0) -> int:
    """Return the execution context of the thread that holds (or last held) the main ractor's lock; 0: none.

    From 3.0 on it is found through the main ractor, before through one global pointer. Ruby clears the
    pointer to the single main ractor with the first Ractor.new; the VM (`vm_address`: where
    ruby_current_vm_ptr lies, 0 if unknown) still knows it. Raises MemoryReadError.
    """
    if layout.ractor_running_ec is None:
        return memory.u64(context_address) if context_address else 0
    ractor = memory.u64(context_address) if context_address else 0
    if not ractor and vm_address and layout.vm_main_ractor is not None:
        vm = memory.u64(vm_address)
        ractor = memory.u64(vm + layout.vm_main_ractor) if vm else 0
    return memory.u64(ractor + layout.ractor_running_ec) if ractor else 0
