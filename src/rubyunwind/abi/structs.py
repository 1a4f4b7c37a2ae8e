# SPDX-License-Identifier: Apache-2.0
"""Mirrors of the C structs that user space and the BPF programs exchange, in support/ebpf/types.h's order.

Addresses are of the profiled process, offsets and sizes in bytes, unless a field says otherwise.
"""

from __future__ import annotations

from rubyunwind.abi.constants import BIT_WIDTH_PAGE, BIT_WIDTH_PID
from rubyunwind.abi.enums import ErrorCode, EventType, RatelimitAction, RubyTLSKind, UnwindOpcode
from rubyunwind.abi.layout import ZERO, Struct
from rubyunwind.abi.trace import Trace

__all__ = [
    "ApmCorrelationBuf",
    "ApmIntProcInfo",
    "DotnetProcInfo",
    "Event",
    "NativeMapping",
    "OffCPUThread",
    "OffsetRange",
    "PHPProcInfo",
    "PHPUnwindState",
    "PIDNamespace",
    "PIDPage",
    "PIDPageMappingInfo",
    "PerCPURecord",
    "PerlUnwindState",
    "PythonUnwindState",
    "RubyProcInfo",
    "RubyTLSInfo",
    "RubyUnwindState",
    "RubyVMInfo",
    "StackDelta",
    "StackDeltaPageInfo",
    "StackDeltaPageKey",
    "SystemAnalysis",
    "SystemConfig",
    "TSDInfo",
    "TaskOffsets",
    "UnwindInfo",
    "UnwindState",
    "WalkerConfig",
]


class UnwindState(Struct):
    """Registers and place of the frame being unwound. The registers differ by architecture of the host."""

    __slots__ = ()
    pc: int = 0
    sp: int = 0
    fp: int = 0
    rax: int = 0  # x86_64
    r9: int = 0
    r11: int = 0
    r13: int = 0
    r15: int = 0
    lr: int = 0  # aarch64
    r22: int = 0
    text_section_id: int = 0  # file id of the mapping that holds pc
    text_section_offset: int = 0  # ELF virtual address of pc
    text_section_bias: int = 0
    error_metric: int = 0  # MetricID to count when the trace is sent; -1: none
    unwind_error: ErrorCode = ErrorCode.OK
    return_address: bool = False  # pc was popped: it points behind a call
    lr_invalid: bool = False  # aarch64


class PerlUnwindState(Struct):
    """Four pointers of the Perl unwinder."""

    __slots__ = ()
    stackinfo: int = 0
    cop: int = 0
    cxbase: int = 0
    cxcur: int = 0


class PythonUnwindState(Struct):
    """The Python unwinder's next frame object."""

    __slots__ = ()
    py_frame: int = 0


class PHPUnwindState(Struct):
    """The PHP unwinder's next frame."""

    __slots__ = ()
    zend_execute_data: int = 0


class RubyUnwindState(Struct):
    """Control frames the Ruby unwinder goes on with and ends at (inclusive); 0 before it started."""

    __slots__ = ()
    stack_ptr: int = 0
    last_stack_frame: int = 0


class PerCPURecord(Struct, values={"ratelimit_action": RatelimitAction}):
    """What one CPU works on: the trace being built, its unwinders' state, and their scratch space.

    The scratch fields share their bytes; at most one may be given.
    """

    __slots__ = ()
    trace: Trace = ZERO
    state: UnwindState = ZERO
    perl_unwind_state: PerlUnwindState = ZERO
    python_unwind_state: PythonUnwindState = ZERO
    php_unwind_state: PHPUnwindState = ZERO
    ruby_unwind_state: RubyUnwindState = ZERO
    dotnet_unwind_scratch: bytes = b""
    hotspot_unwind_scratch: bytes = b""
    v8_unwind_scratch: bytes = b""
    python_unwind_scratch: bytes = b""
    ruby_unwind_scratch: bytes = b""
    unwinders_done: int = 0  # bit per ProgUnwind
    tail_calls: int = 0
    ratelimit_action: RatelimitAction = RatelimitAction.RESET


class UnwindInfo(Struct, values={"opcode": UnwindOpcode, "fp_opcode": UnwindOpcode}):
    """How to step out of a frame: the value of unwind_info_array.

    On x86_64 `fp_opcode` and `fp_param` say where the frame pointer was saved, on aarch64 where the return
    address was. `merge_opcode` joins two rows: low 7 bits are the bytes between them, bit 7 says that param
    changes by -8 there, not +8.
    """

    __slots__ = ()
    opcode: int = UnwindOpcode.COMMAND  # reads as UnwindOpcode, as does the next
    fp_opcode: int = UnwindOpcode.COMMAND
    merge_opcode: int = 0
    param: int = 0
    fp_param: int = 0


class StackDelta(Struct):
    """A row of a native unwind table. It holds from `addr_low` to the next row."""

    __slots__ = ()
    addr_low: int = 0  # low 16 bits of the ELF virtual address
    unwind_info: int = 0  # index into unwind_info_array, or DELTA_COMMAND_FLAG | UnwindCommand


class StackDeltaPageKey(Struct):
    """Key of stack_delta_page_to_info: a file and the virtual address of a 64 kB page in it."""

    __slots__ = ()
    file_id: int = 0
    page: int = 0


class StackDeltaPageInfo(Struct):
    """Which rows belong to a page; `map_id` is the bucket, log2 of the inner map's size."""

    __slots__ = ()
    first_delta: int = 0
    num_deltas: int = 0
    map_id: int = 0


class OffsetRange(Struct):
    """Where an interpreter's loop lies in its file, both ends inclusive, and the ProgUnwind for it."""

    __slots__ = ()
    lower_offset: int = 0
    upper_offset: int = 0
    program_index: int = 0


class PIDPage(Struct, big_endian=("pid", "page")):
    """Key of the LPM trie pid_page_to_mapping_info. `pid` and `page` read as numbers, stored big endian.

    `prefix_len` counts bits of both: 32 for the pid, up to 64 for the address.
    """

    __slots__ = ()
    prefix_len: int = 0
    pid: int = 0
    page: int = 0

    @classmethod
    def of(cls, pid: int, address: int) -> PIDPage:
        """Make the key that looks up `address` in `pid`. Address 0 is the mark of a known process."""
        return cls(prefix_len=BIT_WIDTH_PID + BIT_WIDTH_PAGE, pid=pid, page=address)

    @classmethod
    def covering(cls, pid: int, start: int, end: int) -> list[PIDPage]:
        """Make the fewest keys that match exactly the addresses from `start` to before `end`, in order.

        Each is an aligned power-of-two block. ValueError unless 0 <= start < end <= 2**64.
        """
        if not 0 <= start < end <= 1 << BIT_WIDTH_PAGE:
            raise ValueError(
                f"{start:#x}..{end:#x} is no address range: the end must be greater and both 64 bits"
            )
        keys = []
        while start < end:
            block = 1 << (end - start).bit_length() - 1
            if start:
                block = min(block, start & -start)
            bits = BIT_WIDTH_PAGE + 1 - block.bit_length()
            keys.append(cls(prefix_len=BIT_WIDTH_PID + bits, pid=pid, page=start))
            start += block
        return keys


class PIDPageMappingInfo(Struct):
    """Value of pid_page_to_mapping_info; see encode_bias_and_unwind_program for the packed field."""

    __slots__ = ()
    file_id: int = 0
    bias_and_unwind_program: int = 0


class Event(Struct, values={"event_type": EventType}):
    """Record of report_events: user space has something to look at."""

    __slots__ = ()
    event_type: EventType = EventType(0)


class SystemConfig(Struct):
    """What the programs must know of this machine: the only value of system_config."""

    __slots__ = ()
    inverse_pac_mask: int = 0  # aarch64: bits of a pointer that are address
    tpbase_offset: int = 0  # of the thread pointer in task_struct
    task_stack_offset: int = 0  # of the kernel stack in task_struct
    stack_ptregs_offset: int = 0  # of the user registers on that stack
    off_cpu_threshold: int = 0  # out of OFF_CPU_THRESHOLD_MAX
    drop_error_only_traces: bool = False


class SystemAnalysis(Struct):
    """Request and answer of the program that reads kernel memory at start: 128 bytes at `address`."""

    __slots__ = ()
    address: int = 0
    pid: int = 0
    code: bytes = b""


class RubyProcInfo(Struct):
    """Value of ruby_procs: offsets in the interpreter's own structs, by the source's names.

    `version` is major << 16 | minor << 8 | patch. vm_stack, vm_stack_size and cfp lie in
    rb_execution_context_struct; pc, iseq and ep in rb_control_frame_struct; body in rb_iseq_struct; iseq_* in
    rb_iseq_constant_body; running_ec in rb_ractor_struct. `current_ctx_ptr` is an address.
    """

    __slots__ = ()
    version: int = 0
    current_ctx_ptr: int = 0
    vm_stack: int = 0
    vm_stack_size: int = 0
    cfp: int = 0
    pc: int = 0
    iseq: int = 0
    ep: int = 0
    size_of_control_frame_struct: int = 0
    body: int = 0
    iseq_type: int = 0
    iseq_encoded: int = 0
    iseq_size: int = 0
    size_of_value: int = 0
    running_ec: int = 0


class PHPProcInfo(Struct):
    """Value of php_procs."""

    __slots__ = ()
    current_execute_data: int = 0
    jit_return_address: int = 0
    zend_execute_data_function: int = 0
    zend_execute_data_opline: int = 0
    zend_execute_data_prev_execute_data: int = 0
    zend_execute_data_this_type_info: int = 0
    zend_function_type: int = 0
    zend_op_lineno: int = 0


class DotnetProcInfo(Struct):
    """Value of dotnet_procs."""

    __slots__ = ()
    version: int = 0


class ApmIntProcInfo(Struct):
    """Value of apm_int_procs: where a thread keeps the pointer to its correlation buffer.

    The field is called tls_offset in C and `offset` in the reference's Go; both names work.
    """

    __slots__ = ()
    tls_offset: int

    def __init__(self, *, tls_offset: int = 0, offset: int | None = None) -> None:
        if offset is not None and tls_offset:
            raise TypeError("ApmIntProcInfo: offset is another name of tls_offset, give one of them")
        super().__init__(tls_offset=tls_offset if offset is None else offset)

    @property
    def offset(self) -> int:
        """Another name of tls_offset."""
        return self.tls_offset


class TSDInfo(Struct):
    """How a thread-specific value of libc is reached from the thread pointer."""

    __slots__ = ()
    offset: int = 0
    multiplier: int = 0
    indirect: int = 0


class ApmCorrelationBuf(Struct):
    """What an APM agent in the process publishes for the current thread (packed, 37 bytes)."""

    __slots__ = ()
    layout_minor_ver: int = 0
    valid: int = 0
    trace_present: int = 0
    trace_flags: int = 0
    trace_id: bytes = b""
    span_id: int = 0
    transaction_id: int = 0


class RubyTLSInfo(Struct, values={"kind": RubyTLSKind}):
    """Value of ruby_tls (beside the frozen ABI): how a thread's own execution context is found.

    DTV: *(*(dtv + module_id * dtv_entry_size) + offset), dtv being read at thread pointer + dtv_offset.
    STATIC: *(thread pointer + offset).
    """

    __slots__ = ()
    offset: int = 0
    module_id: int = 0
    dtv_offset: int = 0
    dtv_entry_size: int = 0  # 16 with glibc, 8 with musl
    kind: RubyTLSKind = RubyTLSKind.NONE


class RubyVMInfo(Struct):
    """Value of ruby_vms (beside the frozen ABI): garbage collections, and whose a context is before 3.0.

    `gc_flags` is the address of rb_objspace.flags, `pthread_offset` what a thread's pthread_t is from its
    thread pointer. The rest are offsets: ec_thread in rb_execution_context_struct, thread_pthread and
    thread_ractor in rb_thread_struct. Members of 0 are not known.
    """

    __slots__ = ()
    gc_flags: int = 0
    pthread_offset: int = 0
    ec_thread: int = 0
    thread_pthread: int = 0
    thread_ractor: int = 0


class NativeMapping(Struct):
    """Value of pid_mappings (beside the frozen ABI), by the keys of pid_page_to_mapping_info, for the walker.

    `start` and `end` are addresses. The rows of the file are found by `pages_count` pages of 512 bytes from
    place `pages_first` of flat_pages on; the first one begins at the ELF virtual address `text_from`.
    """

    __slots__ = ()
    start: int = 0
    end: int = 0
    file_id: int = 0
    bias_and_unwind_program: int = 0
    text_from: int = 0
    pages_first: int = 0
    pages_count: int = 0


class WalkerConfig(Struct):
    """Value of walker_config (beside the frozen ABI): how many frames a deep trace may have.

    `off_cpu_slot` is the place in walk_records, and in iseq_cache, of the first CPU's for off-CPU traces.
    Threads that are back in less than `off_cpu_shortest` ns are counted, and not sent.
    """

    __slots__ = ()
    max_frames: int = 0
    off_cpu_slot: int = 0
    off_cpu_shortest: int = 0


class OffCPUThread(Struct):
    """Value of off_cpu_threads (beside the frozen ABI), keyed by thread id: a thread that is off the CPU.

    `since` is CLOCK_MONOTONIC in ns, `room` (OffCPURoom) the map that has its trace.
    """

    __slots__ = ()
    since: int = 0
    room: int = 0


class PIDNamespace(Struct):
    """Value of pid_namespace (beside the frozen ABI): whose process ids the programs use.

    That is the inode number of /proc/PID/ns/pid; 0 is the initial one.
    """

    __slots__ = ()
    inode: int = 0


class TaskOffsets(Struct):
    """Value of task_offsets (beside the frozen ABI): bytes into the kernel's task_struct."""

    __slots__ = ()
    pid: int = 0  # of the thread's id
    tgid: int = 0  # of its process's
