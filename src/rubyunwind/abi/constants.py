# SPDX-License-Identifier: Apache-2.0
"""The numbers of the ABI as plain constants, for programs that want them by their C names.

The enums in rubyunwind.abi.enums are the same numbers with types. A unit test holds both against the C
definitions.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BIT_WIDTH_PAGE",
    "BIT_WIDTH_PID",
    "COMM_LEN",
    "CONTROL_FRAMES_WINDOW",
    "DELTA_COMMAND_FLAG",
    "ENV_WINDOW",
    "EVENT_TYPE_GENERIC_PID",
    "FLAT_PAGE_BITS",
    "FRAMES_PER_WALK_RUBY_STACK",
    "FRAME_MARKER_ABORT",
    "FRAME_MARKER_DOTNET",
    "FRAME_MARKER_ERROR_BIT",
    "FRAME_MARKER_HOTSPOT",
    "FRAME_MARKER_HOT_SPOT",
    "FRAME_MARKER_KERNEL",
    "FRAME_MARKER_NATIVE",
    "FRAME_MARKER_PERL",
    "FRAME_MARKER_PHP",
    "FRAME_MARKER_PHP_JIT",
    "FRAME_MARKER_PYTHON",
    "FRAME_MARKER_RUBY",
    "FRAME_MARKER_RUBY_CFUNC",
    "FRAME_MARKER_RUBY_GC",
    "FRAME_MARKER_RUBY_JIT",
    "FRAME_MARKER_UNKNOWN",
    "FRAME_MARKER_V8",
    "FUNC_TYPE_UNKNOWN",
    "HS_TSID_HAS_FRAME_BIT",
    "HS_TSID_IS_STUB_BIT",
    "HS_TSID_SEG_MAP_BIT",
    "HS_TSID_SEG_MAP_MASK",
    "HS_TSID_STACK_DELTA_BIT",
    "HS_TSID_STACK_DELTA_MASK",
    "HS_TSID_STACK_DELTA_SCALE",
    "ISEQ_CACHE_ENTRIES",
    "JIT_FILE_ID",
    "JIT_RULE_MASK",
    "MAX_DEEP_FRAMES",
    "MAX_FRAME_UNWINDS",
    "MAX_NON_ERROR_FRAME_UNWINDS",
    "MAX_TAIL_CALLS",
    "MERGEOPCODE_NEGATIVE",
    "MERGE_OPCODE_NEGATIVE",
    "METRIC_ID_BEGIN_CUMULATIVE",
    "METRIC_ID_MAX",
    "NUM_COUNTERS",
    "NUM_TRACER_PROGS",
    "OFF_CPU_FEW_FRAMES",
    "OFF_CPU_SOME_FRAMES",
    "OFF_CPU_THRESHOLD_MAX",
    "PERF_MAX_STACK_DEPTH",
    "PROG_UNWIND_DOTNET",
    "PROG_UNWIND_HOTSPOT",
    "PROG_UNWIND_NATIVE",
    "PROG_UNWIND_PERL",
    "PROG_UNWIND_PHP",
    "PROG_UNWIND_PYTHON",
    "PROG_UNWIND_RUBY",
    "PROG_UNWIND_STOP",
    "PROG_UNWIND_V8",
    "RATELIMIT_ACTION_DEFAULT",
    "RATELIMIT_ACTION_FAST",
    "RATELIMIT_ACTION_RESET",
    "REPORTED_PIDS_TIMEOUT",
    "STACK_DELTA_BUCKET_LARGEST",
    "STACK_DELTA_BUCKET_SMALLEST",
    "STACK_DELTA_COMMAND_FLAG",
    "STACK_DELTA_PAGE_BITS",
    "STACK_DELTA_PAGE_MASK",
    "STACK_WINDOW",
    "TRACE_ORIGIN_OFF_CPU",
    "TRACE_ORIGIN_SAMPLING",
    "TRACE_ORIGIN_UNKNOWN",
    "UNKNOWN_FILE",
    "UNWIND_COMMAND_INVALID",
    "UNWIND_COMMAND_PLT",
    "UNWIND_COMMAND_SIGNAL",
    "UNWIND_COMMAND_STOP",
    "UNWIND_DEREF_MASK",
    "UNWIND_DEREF_MULTIPLIER",
    "UNWIND_INFO_MAX_ENTRIES",
    "UNWIND_OPCODEF_DEREF",
    "UNWIND_OPCODEF_FRAME",
    "UNWIND_OPCODE_BASE_CFA",
    "UNWIND_OPCODE_BASE_FP",
    "UNWIND_OPCODE_BASE_LR",
    "UNWIND_OPCODE_BASE_REG",
    "UNWIND_OPCODE_BASE_SP",
    "UNWIND_OPCODE_COMMAND",
    "UNWIND_REG_MASK",
]

# Kind of a frame: Frame.kind.
FRAME_MARKER_UNKNOWN: Final = 0x00
FRAME_MARKER_PYTHON: Final = 0x01
FRAME_MARKER_PHP: Final = 0x02
FRAME_MARKER_NATIVE: Final = 0x03
FRAME_MARKER_KERNEL: Final = 0x04
FRAME_MARKER_HOTSPOT: Final = 0x05
FRAME_MARKER_HOT_SPOT: Final = FRAME_MARKER_HOTSPOT
FRAME_MARKER_RUBY: Final = 0x06
FRAME_MARKER_PERL: Final = 0x07
FRAME_MARKER_V8: Final = 0x08
FRAME_MARKER_PHP_JIT: Final = 0x09
FRAME_MARKER_DOTNET: Final = 0x0A
FRAME_MARKER_RUBY_CFUNC: Final = 0x46
FRAME_MARKER_RUBY_GC: Final = 0x56
FRAME_MARKER_RUBY_JIT: Final = 0x66
FRAME_MARKER_ERROR_BIT: Final = 0x80
FRAME_MARKER_ABORT: Final = 0xFF

# Index of an unwinder in the progs array.
PROG_UNWIND_STOP: Final = 0
PROG_UNWIND_NATIVE: Final = 1
PROG_UNWIND_HOTSPOT: Final = 2
PROG_UNWIND_PERL: Final = 3
PROG_UNWIND_PYTHON: Final = 4
PROG_UNWIND_PHP: Final = 5
PROG_UNWIND_RUBY: Final = 6
PROG_UNWIND_V8: Final = 7
PROG_UNWIND_DOTNET: Final = 8
NUM_TRACER_PROGS: Final = 9

# Why a trace was taken: Trace.origin.
TRACE_ORIGIN_UNKNOWN: Final = 0
TRACE_ORIGIN_SAMPLING: Final = 1
TRACE_ORIGIN_OFF_CPU: Final = 2

# What an Event record asks for.
EVENT_TYPE_GENERIC_PID: Final = 1

# How the next report of a pid is spaced.
RATELIMIT_ACTION_RESET: Final = 0
RATELIMIT_ACTION_DEFAULT: Final = 1
RATELIMIT_ACTION_FAST: Final = 2

# Frames: in a trace, in a trace without its abort frame, in a kernel stack, in one run of the Ruby unwinder.
MAX_FRAME_UNWINDS: Final = 128
MAX_DEEP_FRAMES: Final = 2600
MAX_NON_ERROR_FRAME_UNWINDS: Final = 127
PERF_MAX_STACK_DEPTH: Final = 127
FRAMES_PER_WALK_RUBY_STACK: Final = 27
# Tail calls after which only the last program is called.
MAX_TAIL_CALLS: Final = 29
# Bytes of a thread's name, its NUL included.
COMM_LEN: Final = 16

# Bits of the two parts of an LPM key.
BIT_WIDTH_PID: Final = 32
BIT_WIDTH_PAGE: Final = 64

# Off-CPU samples are taken with a chance of threshold / OFF_CPU_THRESHOLD_MAX.
OFF_CPU_THRESHOLD_MAX: Final = 1000

# Native unwind tables. A bucket is log2 of the rows that its inner maps hold; pages are 64 kB.
STACK_DELTA_BUCKET_SMALLEST: Final = 8
STACK_DELTA_BUCKET_LARGEST: Final = 23
STACK_DELTA_PAGE_BITS: Final = 16
STACK_DELTA_PAGE_MASK: Final = 0xFFFF
DELTA_COMMAND_FLAG: Final = 0x8000
STACK_DELTA_COMMAND_FLAG: Final = DELTA_COMMAND_FLAG
MERGE_OPCODE_NEGATIVE: Final = 0x80
MERGEOPCODE_NEGATIVE: Final = MERGE_OPCODE_NEGATIVE
UNWIND_INFO_MAX_ENTRIES: Final = 16384
# Param of a dereferencing row: low bits are words added after the read, the others the offset before it.
UNWIND_DEREF_MASK: Final = 0x7
UNWIND_DEREF_MULTIPLIER: Final = 8
# Param of a BASE_REG row: low bits are the register, the rest shifted right by 1 the offset.
UNWIND_REG_MASK: Final = 0xF

UNWIND_OPCODE_COMMAND: Final = 0x00
UNWIND_OPCODE_BASE_CFA: Final = 0x01
UNWIND_OPCODE_BASE_SP: Final = 0x02
UNWIND_OPCODE_BASE_FP: Final = 0x03
UNWIND_OPCODE_BASE_LR: Final = 0x04
UNWIND_OPCODE_BASE_REG: Final = 0x05
UNWIND_OPCODEF_FRAME: Final = 0x40
UNWIND_OPCODEF_DEREF: Final = 0x80

UNWIND_COMMAND_INVALID: Final = 0
UNWIND_COMMAND_STOP: Final = 1
UNWIND_COMMAND_PLT: Final = 2
UNWIND_COMMAND_SIGNAL: Final = 3

# Bit fields of a HotSpot text section id.
HS_TSID_IS_STUB_BIT: Final = 63
HS_TSID_HAS_FRAME_BIT: Final = 62
HS_TSID_STACK_DELTA_BIT: Final = 56
HS_TSID_STACK_DELTA_MASK: Final = 0x3F
HS_TSID_STACK_DELTA_SCALE: Final = 8
HS_TSID_SEG_MAP_BIT: Final = 0
HS_TSID_SEG_MAP_MASK: Final = 0xFF_FFFF_FFFF_FFFF

# Frames whose file, or function, is not known.
UNKNOWN_FILE: Final = 0
# In place of a file's id (beside the frozen ABI): code made at run time, with the index of its only rule in
# the bits of the mask.
JIT_FILE_ID: Final = 0x4A49_5400_0000_0000
JIT_RULE_MASK: Final = 0xFFFF
FUNC_TYPE_UNKNOWN: Final = 0xFFFF_FFFF_FFFF_FFFE

# Nanoseconds in which a pid is reported once.
REPORTED_PIDS_TIMEOUT: Final = 30_000_000_000

# The metrics map: ids below count up; MAX is its number of entries.
METRIC_ID_BEGIN_CUMULATIVE: Final = 96
METRIC_ID_MAX: Final = 97
# Entries of the counters map.
NUM_COUNTERS: Final = 22

# The walker's (beside the frozen ABI): words read at once, entries of its caches, bits of a page of rows.
CONTROL_FRAMES_WINDOW: Final = 128
ENV_WINDOW: Final = 64
STACK_WINDOW: Final = 128
ISEQ_CACHE_ENTRIES: Final = 2048
FLAT_PAGE_BITS: Final = 9
# Frames of the traces that its maps of threads off the CPU have room for; the last takes all.
OFF_CPU_FEW_FRAMES: Final = 128
OFF_CPU_SOME_FRAMES: Final = 640
