# SPDX-License-Identifier: Apache-2.0
"""The numbers of the ABI, by family. Members are named as in support/ebpf/types.h without the prefix.

Written out for readers and type checkers; a unit test holds every member equal to the C enum that the
extension was compiled from, so neither can drift alone.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from rubyunwind.abi.metrics import MetricID

__all__ = [
    "Counter",
    "ErrorCode",
    "EventType",
    "FollowFlag",
    "FrameMarker",
    "MetricID",
    "OffCPURoom",
    "OpenIntEnum",
    "ProgUnwind",
    "RatelimitAction",
    "RubyTLSKind",
    "TraceFlag",
    "TraceOrigin",
    "UnwindCommand",
    "UnwindOpcode",
]

_HIGH_BIT = 0x80


class OpenIntEnum(IntEnum):
    """An IntEnum for numbers that come from outside: a value without a name is a member all the same.

    Such a member is made on the fly and called `UNKNOWN_0x2a`. It equals its number and any other member
    with that number, but is not listed by iteration, and need not be the same object twice. Non-integers and
    negative numbers raise ValueError as in any enum.
    """

    @classmethod
    def _missing_(cls, value: object) -> OpenIntEnum | None:
        if not isinstance(value, int) or value < 0:
            return None
        member = int.__new__(cls, value)
        member._name_ = cls._describe(int(value))
        member._value_ = int(value)
        return member

    def __reduce_ex__(self, protocol: object) -> tuple[type[OpenIntEnum], tuple[int]]:
        # By number: some 3.11 releases pickle enum members by a name, which these do not have.
        return type(self), (int(self),)

    @classmethod
    def _describe(cls, value: int) -> str:
        return f"UNKNOWN_{value:#x}"

    @property
    def is_known(self) -> bool:
        """Whether the number has a name of its own."""
        return self._name_ in type(self).__members__


class FrameMarker(OpenIntEnum):
    """Kind of a frame (u8). With ERROR_BIT set the frame says why its unwinder could not go on.

    RUBY_CFUNC, RUBY_GC and RUBY_JIT are beside the frozen ABI. A marker with the error bit is a member too:
    FrameMarker(0x86) is called `RUBY|ERROR_BIT`, is_error is true and base is RUBY.
    """

    UNKNOWN = 0x00
    PYTHON = 0x01
    PHP = 0x02
    NATIVE = 0x03
    KERNEL = 0x04
    HOTSPOT = 0x05
    RUBY = 0x06
    PERL = 0x07
    V8 = 0x08
    PHP_JIT = 0x09
    DOTNET = 0x0A
    RUBY_CFUNC = 0x46  # file_id: method entry
    RUBY_GC = 0x56  # addr_or_line: phase of the collection
    RUBY_JIT = 0x66
    ERROR_BIT = 0x80
    ABORT = 0xFF  # last frame of a trace that ended in an error; addr_or_line: ErrorCode

    @classmethod
    def _describe(cls, value: int) -> str:
        if value & _HIGH_BIT and value & ~_HIGH_BIT in cls._value2member_map_:
            return f"{cls(value & ~_HIGH_BIT).name}|ERROR_BIT"
        return super()._describe(value)

    @property
    def is_error(self) -> bool:
        """Whether the frame carries an ErrorCode in addr_or_line instead of a place."""
        return bool(self & _HIGH_BIT)

    @property
    def base(self) -> FrameMarker:
        """The marker without the error bit: which unwinder the frame belongs to."""
        return FrameMarker(self & ~_HIGH_BIT)


class ProgUnwind(IntEnum):
    """Index of an unwinder in the `progs` tail-call array."""

    STOP = 0
    NATIVE = 1
    HOTSPOT = 2
    PERL = 3
    PYTHON = 4
    PHP = 5
    RUBY = 6
    V8 = 7
    DOTNET = 8


class TraceOrigin(OpenIntEnum):
    """Why a trace was taken (u32)."""

    UNKNOWN = 0
    SAMPLING = 1
    OFF_CPU = 2


class EventType(OpenIntEnum):
    """What an Event record asks user space to do (u32)."""

    GENERIC_PID = 1  # keys of the pid_events map want attention


class RatelimitAction(OpenIntEnum):
    """How the next report of a pid is spaced (u8)."""

    RESET = 0
    DEFAULT = 1
    FAST = 2


class UnwindOpcode(OpenIntEnum):
    """How a row of the native tables computes an address (u8).

    DEREF is a flag: UnwindOpcode(0x82) is called `BASE_SP|DEREF`, and its param packs two offsets. FRAME is
    one of a return address (aarch64, beside the frozen ABI): the caller's frame pointer lies below it.
    """

    COMMAND = 0x00  # param: UnwindCommand
    BASE_CFA = 0x01
    BASE_SP = 0x02
    BASE_FP = 0x03
    BASE_LR = 0x04  # aarch64
    BASE_REG = 0x05  # x86_64; param: register number and offset
    FRAME = 0x40
    DEREF = 0x80

    @classmethod
    def _describe(cls, value: int) -> str:
        base = value & 0x3F
        if base != value and base in cls._value2member_map_:
            flags = [flag.name for flag in (cls.FRAME, cls.DEREF) if value & flag]
            return "|".join([cls(base).name, *flags])
        return super()._describe(value)


class UnwindCommand(IntEnum):
    """Rows that are no address computation."""

    INVALID = 0  # no rule is known for this code
    STOP = 1  # the root of a stack
    PLT = 2
    SIGNAL = 3


class TraceFlag(IntFlag):
    """How far a trace got: bits of Trace.flags (beside the frozen ABI, where they are padding)."""

    NATIVE_ROOT = 0x01  # the native walk met a row that says stop, or pc 0
    RUBY_MET = 0x02  # an interpreter frame was met
    RUBY_BASE = 0x04  # and its Ruby stack was walked to the base
    EC_FROM_TLS = 0x08  # the execution context is the sampled thread's own
    EC_FROM_RACTOR = 0x10  # it came from the ractor's running_ec or the global pointer
    NO_EC = 0x20  # the thread has none, so it has no Ruby frames
    KERNEL_INLINE = 0x40  # kernel frames lead the record: kernel_stackmap had no room
    EMPTY_SLOT = 0x80  # a slot of progs was empty, the walk ended there
    KERNEL_MODE = 0x100  # the CPU was in the kernel when it was sampled
    NATIVE_LOST = 0x200  # the native walk failed: Ruby frames came at once, without it
    RUNNABLE = 0x400  # off the CPU, but ready to run: another thread was given it


class Counter(IntEnum):
    """Indices into the per-CPU `counters` map: what the frozen metrics have no id for."""

    SAMPLES = 0  # runs of the sampling program on a user process
    SENT = 1  # traces handed to the perf buffer
    OUTPUT_FAILED = 2  # traces the perf buffer did not take: full, or no reader on that CPU
    UNKNOWN_PID = 3  # samples of a process user space has not registered yet
    EMPTY_SLOT = 4  # tail calls into an empty slot of progs
    EC_FROM_TLS = 5
    EC_FROM_RACTOR = 6
    NO_EC = 7
    KERNEL_STACK_COLLISION = 8  # the kernel_stackmap slot held another stack
    EVENT_FAILED = 9  # report_events took no event
    DROPPED_ERROR_ONLY = 10  # by SystemConfig.drop_error_only_traces
    NO_USER_REGS = 11  # kernel threads and tasks without user registers
    NOT_FOLLOWED = 12  # children that followed_pids had no room for
    # Of switches away from a CPU. The first is the sum of the next five, of DROPPED_ERROR_ONLY as far as it
    # is theirs, and of the threads that are away.
    OFF_CPU_SWITCHES = 13  # of threads that are to be sampled
    OFF_CPU_NOT_CHOSEN = 14  # left out by SystemConfig.off_cpu_threshold
    OFF_CPU_NO_ROOM = 15  # too many threads were away at once for the maps
    OFF_CPU_SHORT = 16  # back sooner than WalkerConfig.off_cpu_shortest
    OFF_CPU_SENT = 17
    OFF_CPU_OUTPUT_FAILED = 18  # the perf buffer took none
    OFF_CPU_LATE = 19  # the return was noticed later: the time is too short
    OFF_CPU_UNKNOWN_PID = 20  # of a process user space has not registered yet: without user frames
    OFF_CPU_SHORT_NS = 21  # the time of those that were too short


class FollowFlag(IntFlag):
    """Whether and how a process is sampled: values of followed_pids."""

    PROCESS = 1
    CHILDREN = 2  # what it forks is followed in the same way
    FROM_EXEC = 4  # not before it executes another program
    NEVER = 8  # where all are sampled: this one is not


class OffCPURoom(IntEnum):
    """Which of the off_cpu_traces_ maps has the trace of a thread: the first for few frames."""

    FEW = 0
    SOME = 1
    MANY = 2


class RubyTLSKind(OpenIntEnum):
    """How RubyTLSInfo finds a thread's execution context (u8)."""

    NONE = 0
    DTV = 1  # through the dynamic thread vector
    STATIC = 2  # at a fixed offset from the thread pointer


class ErrorCode(OpenIntEnum):
    """Why a trace ended early: addr_or_line of an error frame. Thousands tell the unwinder."""

    OK = 0
    UNREACHABLE = 1
    STACK_LENGTH_EXCEEDED = 2
    EMPTY_STACK = 3
    LOOKUP_PER_CPU_FRAME_LIST = 4
    MAX_TAIL_CALLS = 5
    HOTSPOT_NO_CODEBLOB = 1000
    HOTSPOT_INTERPRETER_FP = 1001
    HOTSPOT_INVALID_RA = 1002
    HOTSPOT_INVALID_CODEBLOB = 1003
    HOTSPOT_LR_UNWINDING_MID_TRACE = 1004
    PYTHON_BAD_CODE_OBJECT_ADDR = 2000
    PYTHON_NO_PROC_INFO = 2001
    PYTHON_BAD_FRAME_OBJECT_ADDR = 2002
    PYTHON_BAD_CFRAME_CURRENT_FRAME_ADDR = 2003
    PYTHON_READ_THREAD_STATE_ADDR = 2004
    PYTHON_ZERO_THREAD_STATE = 2005
    PYTHON_BAD_THREAD_STATE_FRAME_ADDR = 2006
    PYTHON_BAD_AUTO_TLS_KEY_ADDR = 2007
    PYTHON_READ_TSD_BASE = 2008
    RUBY_NO_PROC_INFO = 3000
    RUBY_READ_STACK_PTR = 3001
    RUBY_READ_STACK_SIZE = 3002
    RUBY_READ_CFP = 3003
    RUBY_READ_EP = 3004
    RUBY_READ_ISEQ_BODY = 3005
    RUBY_READ_ISEQ_ENCODED = 3006
    RUBY_READ_ISEQ_SIZE = 3007
    NATIVE_LOOKUP_TEXT_SECTION = 4000
    NATIVE_LOOKUP_STACK_DELTA_OUTER_MAP = 4001
    NATIVE_LOOKUP_STACK_DELTA_INNER_MAP = 4002
    NATIVE_EXCEEDED_DELTA_LOOKUP_ITERATIONS = 4003
    NATIVE_LOOKUP_RANGE = 4004
    NATIVE_STACK_DELTA_INVALID = 4005
    NATIVE_STACK_DELTA_STOP = 4006
    NATIVE_PC_READ = 4007
    NATIVE_LR_UNWINDING_MID_TRACE = 4008
    NATIVE_READ_KERNELMODE_REGS = 4009
    NATIVE_CHASE_IRQ_STACK_LINK = 4010
    NATIVE_UNEXPECTED_KERNEL_ADDRESS = 4011
    NATIVE_NO_PID_PAGE_MAPPING = 4012
    NATIVE_ZERO_PC = 4013
    NATIVE_SMALL_PC = 4014
    NATIVE_BAD_UNWIND_INFO_INDEX = 4015
    NATIVE_AARCH64_32BIT_COMPAT_MODE = 4016
    NATIVE_X64_32BIT_COMPAT_MODE = 4017
    V8_BAD_FP = 5000
    V8_BAD_JS_FUNC = 5001
    V8_NO_PROC_INFO = 5002
    DOTNET_NO_PROC_INFO = 6000
    DOTNET_BAD_FP = 6001
    DOTNET_CODE_HEADER = 6002
    DOTNET_CODE_TOO_LARGE = 6003
