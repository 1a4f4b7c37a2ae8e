# SPDX-License-Identifier: Apache-2.0
"""The frozen layout, written out once more: field, offset, size. Independent of types.h and of BTF."""

from __future__ import annotations

import pytest
from architectures import ARCHITECTURES, definitions, fields_of

from rubyunwind import abi

# name: (size, "field offset size, ...") on both architectures
BOTH = {
    "RubyProcInfo": (
        32,
        "version 0 4, current_ctx_ptr 8 8, vm_stack 16 1, vm_stack_size 17 1, cfp 18 1, pc 19 1, iseq 20 1, "
        "ep 21 1, size_of_control_frame_struct 22 1, body 23 1, iseq_type 24 1, iseq_encoded 25 1, "
        "iseq_size 26 1, size_of_value 27 1, running_ec 28 2",
    ),
    "Frame": (24, "file_id 0 8, addr_or_line 8 8, kind 16 1, return_address 17 1, pad 18 6"),
    "Trace": (
        3152,
        "pid 0 4, tid 4 4, ktime 8 8, comm 16 16, apm_transaction_id 32 8, apm_trace_id 40 16, "
        "kernel_stack_id 56 4, stack_len 60 4, origin 64 4, flags 68 4, offtime 72 8, frames 80 3072",
    ),
    "PerlUnwindState": (32, "stackinfo 0 8, cop 8 8, cxbase 16 8, cxcur 24 8"),
    "PythonUnwindState": (8, "py_frame 0 8"),
    "PHPUnwindState": (8, "zend_execute_data 0 8"),
    "RubyUnwindState": (16, "stack_ptr 0 8, last_stack_frame 8 8"),
    "DotnetUnwindScratchSpace": (1024, "map 0 1024"),
    "HotspotUnwindScratchSpace": (512, "codeblob 0 512"),
    "V8UnwindScratchSpace": (160, "fp_ctx 0 64, code 64 96"),
    "PythonUnwindScratchSpace": (320, "frame 0 128, code 128 192"),
    "UnwindInfo": (12, "opcode 0 1, fpOpcode 1 1, mergeOpcode 2 1, param 4 4, fpParam 8 4"),
    "StackDelta": (4, "addrLow 0 2, unwindInfo 2 2"),
    "StackDeltaPageKey": (16, "fileID 0 8, page 8 8"),
    "StackDeltaPageInfo": (8, "firstDelta 0 4, numDeltas 4 2, mapID 6 2"),
    "OffsetRange": (24, "lower_offset 0 8, upper_offset 8 8, program_index 16 2"),
    "SystemAnalysis": (144, "address 0 8, pid 8 4, code 12 128"),
    "Event": (4, "event_type 0 4"),
    "PIDPage": (16, "prefixLen 0 4, pid 4 4, page 8 8"),
    "PIDPageMappingInfo": (16, "file_id 0 8, bias_and_unwind_program 8 8"),
    "SystemConfig": (
        32,
        "inverse_pac_mask 0 8, tpbase_offset 8 8, task_stack_offset 16 4, stack_ptregs_offset 20 4, "
        "off_cpu_threshold 24 4, drop_error_only_traces 28 1",
    ),
    "ApmIntProcInfo": (8, "tls_offset 0 8"),
    "DotnetProcInfo": (4, "version 0 4"),
    "PHPProcInfo": (
        24,
        "current_execute_data 0 8, jit_return_address 8 8, zend_execute_data_function 16 1, "
        "zend_execute_data_opline 17 1, zend_execute_data_prev_execute_data 18 1, "
        "zend_execute_data_this_type_info 19 1, zend_function_type 20 1, zend_op_lineno 21 1",
    ),
    "TSDInfo": (4, "offset 0 2, multiplier 2 1, indirect 3 1"),
    "ApmTraceID": (16, "as_int 0 16, raw 0 16"),
    "ApmSpanID": (8, "as_int 0 8, raw 0 8"),
    "ApmCorrelationBuf": (
        37,
        "layout_minor_ver 0 2, valid 2 1, trace_present 3 1, trace_flags 4 1, trace_id 5 16, span_id 21 8, "
        "transaction_id 29 8",
    ),
    # Beside the ABI, but in maps that other programs may fill.
    "NativeMapping": (
        48,
        "start 0 8, end 8 8, file_id 16 8, bias_and_unwind_program 24 8, text_from 32 8, pages_first 40 4, "
        "pages_count 44 4",
    ),
    "WalkerConfig": (16, "max_frames 0 4, off_cpu_slot 4 4, off_cpu_shortest 8 8"),
    "OffCPUThread": (16, "since 0 8, room 8 4"),
    "PIDNamespace": (4, "inode 0 4"),
    "TaskOffsets": (8, "pid 0 4, tgid 4 4"),
    "RubyVMInfo": (
        24,
        "gc_flags 0 8, pthread_offset 8 4, ec_thread 12 2, thread_pthread 14 2, thread_ractor 16 2",
    ),
    "RubyTLSInfo": (24, "offset 0 8, module_id 8 8, dtv_offset 16 4, dtv_entry_size 20 1, kind 21 1"),
}
RECORD = (
    "trace 0 3152, state 3152 {state}, perlUnwindState {0} 32, pythonUnwindState {1} 8, "
    "phpUnwindState {2} 8, rubyUnwindState {3} 16, dotnetUnwindScratch {4} 1024, "
    "hotspotUnwindScratch {4} 512, v8UnwindScratch {4} 160, pythonUnwindScratch {4} 320, "
    "unwindersDone {5} 4, tailCalls {6} 1, ratelimitAction {7} 1"
)
ONE = {
    "amd64": {
        "UnwindState": (
            104,
            "pc 0 8, sp 8 8, fp 16 8, rax 24 8, r9 32 8, r11 40 8, r13 48 8, r15 56 8, text_section_id 64 8, "
            "text_section_offset 72 8, text_section_bias 80 8, error_metric 88 4, unwind_error 92 4, "
            "return_address 96 1",
        ),
        "PerCPURecord": (
            4352,
            RECORD.format(3256, 3288, 3296, 3304, 3320, 4344, 4348, 4349, state=104),
        ),
    },
    "arm64": {
        "UnwindState": (
            80,
            "pc 0 8, sp 8 8, fp 16 8, lr 24 8, r22 32 8, text_section_id 40 8, text_section_offset 48 8, "
            "text_section_bias 56 8, error_metric 64 4, unwind_error 68 4, return_address 72 1, "
            "lr_invalid 73 1",
        ),
        "PerCPURecord": (
            4328,
            RECORD.format(3232, 3264, 3272, 3280, 3296, 4320, 4324, 4325, state=80),
        ),
    },
}


@pytest.mark.parametrize("name", [*BOTH, "UnwindState", "PerCPURecord"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_layout_is_the_frozen_one(arch: str, name: str) -> None:
    ffi = definitions(arch)
    size, fields = (BOTH | ONE[arch])[name]
    found = [item for item in fields_of(ffi, name) if item[0] != "rubyUnwindScratch"]  # beside the ABI
    assert ", ".join(f"{field} {at} {length}" for field, at, length in found) == fields
    assert ffi.sizeof(name) == size


@pytest.mark.parametrize("name", [name for name in BOTH if not name.endswith("ScratchSpace")])
def test_mirror_is_as_large_as_the_frozen_struct(name: str) -> None:
    assert getattr(abi, name).size == BOTH[name][0]


def test_mirrors_are_all_in_the_table() -> None:
    mirrors = {
        name
        for name in abi.__all__
        if isinstance(getattr(abi, name), type) and hasattr(getattr(abi, name), "members")
    }
    assert mirrors - {"Struct"} <= {*BOTH, "UnwindState", "PerCPURecord"}
