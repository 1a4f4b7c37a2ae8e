/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The only place where a layout is written. Four readers include this file: the BPF programs
 * (clang -target bpf), the C extension (host compiler), cffi (preprocessed with RUBYUNWIND_CDEF,
 * for which the three macros below hide what its parser cannot read) and, through the BTF of the
 * built objects, the test that compares them all.
 *
 * Everything down to "Beside the ABI" is frozen: sizes, offsets, numbers and C names are the
 * contract with every program that reads our traces or fills our maps.
 */
#ifndef RUBYUNWIND_TYPES_H
#define RUBYUNWIND_TYPES_H

#ifndef RUBYUNWIND_CDEF
#include "prelude.h"
#define STATIC_ASSERT(condition, message) _Static_assert(condition, message)
#define PACKED __attribute__((packed))
#define OPEN_LAYOUT
#else
#define STATIC_ASSERT(condition, message)
#define PACKED
#define OPEN_LAYOUT ...;
#endif

/* ---- sizes and limits ---------------------------------------------------------------------- */

enum {
  /* Frames in one trace. Ordinary frames stop one short, so the abort frame always fits. */
  MAX_FRAME_UNWINDS = 128,
  MAX_NON_ERROR_FRAME_UNWINDS = 127,
  /* Frames a kernel stack map keeps for one stack (kernel's default sysctl value). */
  PERF_MAX_STACK_DEPTH = 127,
  COMM_LEN = 16,
  /* Tail calls after which only unwind_stop is called: the kernel allows 32 (33 in practice). */
  MAX_TAIL_CALLS = 29,
  FRAMES_PER_WALK_RUBY_STACK = 27,

  BIT_WIDTH_PID = 32,
  BIT_WIDTH_PAGE = 64,

  OFF_CPU_THRESHOLD_MAX = 1000,

  STACK_DELTA_BUCKET_SMALLEST = 8,
  STACK_DELTA_BUCKET_LARGEST = 23,
  STACK_DELTA_PAGE_BITS = 16,
  STACK_DELTA_PAGE_MASK = 0xffff,
  STACK_DELTA_COMMAND_FLAG = 0x8000,
  MERGEOPCODE_NEGATIVE = 0x80,
  UNWIND_INFO_MAX_ENTRIES = 16384,

  /* Bit fields of a HotSpot text section id. */
  HS_TSID_IS_STUB_BIT = 63,
  HS_TSID_HAS_FRAME_BIT = 62,
  HS_TSID_STACK_DELTA_BIT = 56,
  HS_TSID_STACK_DELTA_MASK = 0x3f,
  HS_TSID_STACK_DELTA_SCALE = 8,
  HS_TSID_SEG_MAP_BIT = 0
};

/* 64-bit constants: no enum holds them beside small ones, and cffi wants to see the name only. */
#ifndef RUBYUNWIND_CDEF
#define HS_TSID_SEG_MAP_MASK 0xffffffffffffffULL
#define UNKNOWN_FILE 0ULL
/* Beside the ABI. In place of the id of a file: code made at run time, with the index of its only
 * rule in the low 16 bits. "JIT" in ASCII, which an id by SHA-256 is once in 2^48 times. */
#define JIT_FILE_ID 0x4a49540000000000ULL
#define JIT_RULE_MASK 0xffffULL
#define FUNC_TYPE_UNKNOWN 0xfffffffffffffffeULL
#define REPORTED_PIDS_TIMEOUT 30000000000ULL
#endif

/* ---- enumerations -------------------------------------------------------------------------- */

typedef enum FrameMarker {
  FRAME_MARKER_UNKNOWN = 0x00,
  FRAME_MARKER_PYTHON = 0x01,
  FRAME_MARKER_PHP = 0x02,
  FRAME_MARKER_NATIVE = 0x03,
  FRAME_MARKER_KERNEL = 0x04,
  FRAME_MARKER_HOTSPOT = 0x05,
  FRAME_MARKER_RUBY = 0x06,
  FRAME_MARKER_PERL = 0x07,
  FRAME_MARKER_V8 = 0x08,
  FRAME_MARKER_PHP_JIT = 0x09,
  FRAME_MARKER_DOTNET = 0x0a,
  /* Beside the ABI: what the reference has no word for. */
  FRAME_MARKER_RUBY_CFUNC = 0x46, /* file_id: method entry */
  FRAME_MARKER_RUBY_GC = 0x56,    /* addr_or_line: phase */
  FRAME_MARKER_RUBY_JIT = 0x66,
  FRAME_MARKER_ERROR_BIT = 0x80,
  FRAME_MARKER_ABORT = 0xff /* addr_or_line: ErrorCode */
} FrameMarker;

typedef enum ProgUnwind {
  PROG_UNWIND_STOP = 0,
  PROG_UNWIND_NATIVE = 1,
  PROG_UNWIND_HOTSPOT = 2,
  PROG_UNWIND_PERL = 3,
  PROG_UNWIND_PYTHON = 4,
  PROG_UNWIND_PHP = 5,
  PROG_UNWIND_RUBY = 6,
  PROG_UNWIND_V8 = 7,
  PROG_UNWIND_DOTNET = 8,
  NUM_TRACER_PROGS = 9
} ProgUnwind;

typedef enum TraceOrigin {
  TRACE_ORIGIN_UNKNOWN = 0,
  TRACE_ORIGIN_SAMPLING = 1,
  TRACE_ORIGIN_OFF_CPU = 2
} TraceOrigin;

typedef enum EventType { EVENT_TYPE_GENERIC_PID = 1 } EventType;

typedef enum RatelimitAction {
  RATELIMIT_ACTION_RESET = 0,
  RATELIMIT_ACTION_DEFAULT = 1,
  RATELIMIT_ACTION_FAST = 2
} RatelimitAction;

typedef enum UnwindOpcode {
  UNWIND_OPCODE_COMMAND = 0x00,
  UNWIND_OPCODE_BASE_CFA = 0x01,
  UNWIND_OPCODE_BASE_SP = 0x02,
  UNWIND_OPCODE_BASE_FP = 0x03,
  UNWIND_OPCODE_BASE_LR = 0x04,  /* aarch64 */
  UNWIND_OPCODE_BASE_REG = 0x05, /* x86_64 */
  UNWIND_OPCODEF_FRAME = 0x40,   /* aarch64, beside the ABI: of fpOpcode, see step_by_rule */
  UNWIND_OPCODEF_DEREF = 0x80
} UnwindOpcode;

typedef enum UnwindCommand {
  UNWIND_COMMAND_INVALID = 0,
  UNWIND_COMMAND_STOP = 1,
  UNWIND_COMMAND_PLT = 2,
  UNWIND_COMMAND_SIGNAL = 3
} UnwindCommand;

/* Packing of the parameter of a dereferencing or register-based opcode. */
enum {
  UNWIND_DEREF_MASK = 0x7,     /* low bits: what is added after the read, in words */
  UNWIND_DEREF_MULTIPLIER = 8, /* size of such a word */
  UNWIND_REG_MASK = 0xf        /* low bits: register number; the rest >> 1 is the offset */
};

typedef enum ErrorCode {
  ERR_OK = 0,
  ERR_UNREACHABLE = 1,
  ERR_STACK_LENGTH_EXCEEDED = 2,
  ERR_EMPTY_STACK = 3,
  ERR_LOOKUP_PER_CPU_FRAME_LIST = 4,
  ERR_MAX_TAIL_CALLS = 5,

  ERR_HOTSPOT_NO_CODEBLOB = 1000,
  ERR_HOTSPOT_INTERPRETER_FP = 1001,
  ERR_HOTSPOT_INVALID_RA = 1002,
  ERR_HOTSPOT_INVALID_CODEBLOB = 1003,
  ERR_HOTSPOT_LR_UNWINDING_MID_TRACE = 1004,

  ERR_PYTHON_BAD_CODE_OBJECT_ADDR = 2000,
  ERR_PYTHON_NO_PROC_INFO = 2001,
  ERR_PYTHON_BAD_FRAME_OBJECT_ADDR = 2002,
  ERR_PYTHON_BAD_CFRAME_CURRENT_FRAME_ADDR = 2003,
  ERR_PYTHON_READ_THREAD_STATE_ADDR = 2004,
  ERR_PYTHON_ZERO_THREAD_STATE = 2005,
  ERR_PYTHON_BAD_THREAD_STATE_FRAME_ADDR = 2006,
  ERR_PYTHON_BAD_AUTO_TLS_KEY_ADDR = 2007,
  ERR_PYTHON_READ_TSD_BASE = 2008,

  ERR_RUBY_NO_PROC_INFO = 3000,
  ERR_RUBY_READ_STACK_PTR = 3001,
  ERR_RUBY_READ_STACK_SIZE = 3002,
  ERR_RUBY_READ_CFP = 3003,
  ERR_RUBY_READ_EP = 3004,
  ERR_RUBY_READ_ISEQ_BODY = 3005,
  ERR_RUBY_READ_ISEQ_ENCODED = 3006,
  ERR_RUBY_READ_ISEQ_SIZE = 3007,

  ERR_NATIVE_LOOKUP_TEXT_SECTION = 4000,
  ERR_NATIVE_LOOKUP_STACK_DELTA_OUTER_MAP = 4001,
  ERR_NATIVE_LOOKUP_STACK_DELTA_INNER_MAP = 4002,
  ERR_NATIVE_EXCEEDED_DELTA_LOOKUP_ITERATIONS = 4003,
  ERR_NATIVE_LOOKUP_RANGE = 4004,
  ERR_NATIVE_STACK_DELTA_INVALID = 4005,
  ERR_NATIVE_STACK_DELTA_STOP = 4006,
  ERR_NATIVE_PC_READ = 4007,
  ERR_NATIVE_LR_UNWINDING_MID_TRACE = 4008,
  ERR_NATIVE_READ_KERNELMODE_REGS = 4009,
  ERR_NATIVE_CHASE_IRQ_STACK_LINK = 4010,
  ERR_NATIVE_UNEXPECTED_KERNEL_ADDRESS = 4011,
  ERR_NATIVE_NO_PID_PAGE_MAPPING = 4012,
  ERR_NATIVE_ZERO_PC = 4013,
  ERR_NATIVE_SMALL_PC = 4014,
  ERR_NATIVE_BAD_UNWIND_INFO_INDEX = 4015,
  ERR_NATIVE_AARCH64_32BIT_COMPAT_MODE = 4016,
  ERR_NATIVE_X64_32BIT_COMPAT_MODE = 4017,

  ERR_V8_BAD_FP = 5000,
  ERR_V8_BAD_JS_FUNC = 5001,
  ERR_V8_NO_PROC_INFO = 5002,

  ERR_DOTNET_NO_PROC_INFO = 6000,
  ERR_DOTNET_BAD_FP = 6001,
  ERR_DOTNET_CODE_HEADER = 6002,
  ERR_DOTNET_CODE_TOO_LARGE = 6003
} ErrorCode;

/* Indices into the `metrics` map. Ids below metricID_BeginCumulative only ever grow. */
typedef enum MetricID {
  metricID_UnwindCallInterpreter = 0,
  metricID_UnwindErrZeroPC = 1,
  metricID_UnwindErrStackLengthExceeded = 2,
  metricID_UnwindErrBadTSDAddr = 3,
  metricID_UnwindErrBadTPBaseAddr = 4,
  metricID_UnwindNativeAttempts = 5,
  metricID_UnwindNativeFrames = 6,
  metricID_UnwindNativeStackDeltaStop = 7,
  metricID_UnwindNativeErrLookupTextSection = 8,
  metricID_UnwindNativeErrLookupIterations = 9,
  metricID_UnwindNativeErrLookupRange = 10,
  metricID_UnwindNativeErrKernelAddress = 11,
  metricID_UnwindNativeErrWrongTextSection = 12,
  metricID_UnwindNativeErrStackDeltaInvalid = 13,
  metricID_UnwindNativeErrPCRead = 14,
  metricID_UnwindPerlAttempts = 15,
  metricID_UnwindPerlFrames = 16,
  metricID_UnwindPerlTSD = 17,
  metricID_UnwindPerlReadStackInfo = 18,
  metricID_UnwindPerlReadContextStackEntry = 19,
  metricID_UnwindPerlResolveEGV = 20,
  metricID_UnwindPythonAttempts = 21,
  metricID_UnwindPythonFrames = 22,
  metricID_UnwindPythonErrBadPyThreadStateCurrentAddr = 23,
  metricID_UnwindPythonErrZeroThreadState = 24,
  metricID_UnwindPythonErrBadThreadStateFrameAddr = 25,
  metricID_UnwindPythonErrBadFrameObjectBackAddr = 26,
  metricID_UnwindPythonErrBadFrameCodeObjectAddr = 27,
  metricID_UnwindPythonZeroFrameCodeObject = 28,
  metricID_UnwindPythonErrBadFrameLastInstructionAddr = 29,
  metricID_UnwindPythonErrBadCodeObjectArgCountAddr = 30,
  metricID_UnwindPythonErrBadCodeObjectKWOnlyArgCountAddr = 31,
  metricID_UnwindPythonErrBadCodeObjectFlagsAddr = 32,
  metricID_UnwindPythonErrBadCodeObjectFirstLineNumberAddr = 33,
  metricID_UnwindPHPAttempts = 34,
  metricID_UnwindPHPFrames = 35,
  metricID_UnwindPHPErrBadCurrentExecuteData = 36,
  metricID_UnwindPHPErrBadZendExecuteData = 37,
  metricID_UnwindPHPErrBadZendFunction = 38,
  metricID_UnwindPHPErrBadZendOpline = 39,
  metricID_ErrEmptyStack = 40,
  metricID_UnwindHotspotAttempts = 41,
  metricID_UnwindHotspotFrames = 42,
  metricID_UnwindHotspotErrNoCodeblob = 43,
  metricID_UnwindHotspotErrInvalidCodeblob = 44,
  metricID_UnwindHotspotErrInterpreterFP = 45,
  metricID_UnwindHotspotErrInvalidRA = 46,
  metricID_UnwindHotspotErrLrUnwindingMidTrace = 47,
  metricID_UnwindHotspotUnsupportedFrameSize = 48,
  metricID_UnwindNativeSmallPC = 49,
  metricID_UnwindNativeErrLookupStackDeltaInnerMap = 50,
  metricID_UnwindNativeErrLookupStackDeltaOuterMap = 51,
  metricID_ErrBPFCurrentComm = 52,
  metricID_UnwindRubyAttempts = 53,
  metricID_UnwindRubyFrames = 54,
  metricID_UnwindV8Attempts = 55,
  metricID_UnwindV8Frames = 56,
  metricID_UnwindV8ErrBadFP = 57,
  metricID_UnwindV8ErrBadJSFunc = 58,
  metricID_UnwindV8ErrBadCode = 59,
  metricID_UnwindNativeLr0 = 60,
  metricID_ReportedPIDsErr = 61,
  metricID_PIDEventsErr = 62,
  metricID_NumProcNew = 63,
  metricID_NumProcExit = 64,
  metricID_NumUnknownPC = 65,
  metricID_NumGenericPID = 66,
  metricID_UnwindPythonErrBadCFrameFrameAddr = 67,
  metricID_MaxTailCalls = 68,
  metricID_UnwindPythonErrNoProcInfo = 69,
  metricID_UnwindPythonErrBadAutoTlsKeyAddr = 70,
  metricID_UnwindPythonErrReadThreadStateAddr = 71,
  metricID_UnwindPythonErrReadTsdBase = 72,
  metricID_UnwindRubyErrNoProcInfo = 73,
  metricID_UnwindRubyErrReadStackPtr = 74,
  metricID_UnwindRubyErrReadStackSize = 75,
  metricID_UnwindRubyErrReadCfp = 76,
  metricID_UnwindRubyErrReadEp = 77,
  metricID_UnwindRubyErrReadIseqBody = 78,
  metricID_UnwindRubyErrReadIseqEncoded = 79,
  metricID_UnwindRubyErrReadIseqSize = 80,
  metricID_UnwindNativeErrLrUnwindingMidTrace = 81,
  metricID_UnwindNativeErrReadKernelModeRegs = 82,
  metricID_UnwindNativeErrChaseIrqStackLink = 83,
  metricID_UnwindV8ErrNoProcInfo = 84,
  metricID_UnwindNativeErrBadUnwindInfoIndex = 85,
  metricID_UnwindApmIntErrReadTsdBase = 86,
  metricID_UnwindApmIntErrReadCorrBufPtr = 87,
  metricID_UnwindApmIntErrReadCorrBuf = 88,
  metricID_UnwindApmIntReadSuccesses = 89,
  metricID_UnwindDotnetAttempts = 90,
  metricID_UnwindDotnetFrames = 91,
  metricID_UnwindDotnetErrNoProcInfo = 92,
  metricID_UnwindDotnetErrBadFP = 93,
  metricID_UnwindDotnetErrCodeHeader = 94,
  metricID_UnwindDotnetErrCodeTooLarge = 95,
  metricID_BeginCumulative = 96,
  metricID_Max = 97
} MetricID;

/* ---- frames and traces --------------------------------------------------------------------- */

typedef struct Frame {
  u64 file_id;
  u64 addr_or_line;
  u8 kind;
  u8 return_address;
  u8 pad[6]; /* Ruby frames: the method entry's address, 48 bits, little endian; else 0 */
} Frame;

typedef union ApmTraceID {
  struct {
    u64 lo;
    u64 hi;
  } as_int;
  u8 raw[16];
} ApmTraceID;

typedef union ApmSpanID {
  u64 as_int;
  u8 raw[8];
} ApmSpanID;

typedef struct Trace {
  u32 pid;
  u32 tid;
  u64 ktime; /* bpf_ktime_get_ns: CLOCK_MONOTONIC */
  char comm[COMM_LEN];
  ApmSpanID apm_transaction_id;
  ApmTraceID apm_trace_id;
  s32 kernel_stack_id; /* key of kernel_stackmap; negative: none */
  u32 stack_len;
  TraceOrigin origin;
  u32 flags; /* beside the ABI (padding there): TraceFlag bits */
  u64 offtime;
  Frame frames[MAX_FRAME_UNWINDS]; /* last: a record is sent cut after the used ones */
} Trace;

/* ---- unwinding state ----------------------------------------------------------------------- */

typedef struct UnwindState {
  u64 pc, sp, fp;
#if defined(__x86_64__)
  u64 rax, r9, r11, r13, r15;
#elif defined(__aarch64__)
  u64 lr, r22;
#endif
  u64 text_section_id;     /* file id of the mapping that holds pc */
  u64 text_section_offset; /* ELF virtual address of pc in that file */
  u64 text_section_bias;
  s32 error_metric; /* metric to count when the trace is sent; -1: none */
  ErrorCode unwind_error;
  bool return_address; /* pc was popped: it points behind a call */
#if defined(__aarch64__)
  bool lr_invalid;
#endif
} UnwindState;

typedef struct PerlUnwindState {
  const void *stackinfo;
  const void *cop;
  const void *cxbase;
  const void *cxcur;
} PerlUnwindState;

typedef struct PythonUnwindState {
  void *py_frame;
} PythonUnwindState;

typedef struct PHPUnwindState {
  const void *zend_execute_data;
} PHPUnwindState;

typedef struct RubyUnwindState {
  void *stack_ptr;        /* control frame to unwind next; NULL: not started */
  void *last_stack_frame; /* control frame at the base of the stack, inclusive */
} RubyUnwindState;

typedef struct DotnetUnwindScratchSpace {
  u32 map[256];
} DotnetUnwindScratchSpace;

typedef struct HotspotUnwindScratchSpace {
  u8 codeblob[512];
} HotspotUnwindScratchSpace;

typedef struct V8UnwindScratchSpace {
  u8 fp_ctx[64];
  u8 code[96];
} V8UnwindScratchSpace;

typedef struct PythonUnwindScratchSpace {
  u8 frame[128];
  u8 code[192];
} PythonUnwindScratchSpace;

/* Beside the ABI, inside the space it has for scratch: buffers of the Ruby and native steps. */
typedef struct RowSearch {
  u32 first;       /* of the page */
  u32 left, right; /* rows that are still in question */
} RowSearch;

typedef struct RubyUnwindScratchSpace {
  u64 control_frame[32]; /* one rb_control_frame_struct, read at once (its offsets are u8) */
  u64 env[3];            /* ep[-2] method entry or cref, ep[-1] parent ep, ep[0] flags */
  u64 signal_regs[36];   /* registers: of a sample, or as a signal frame has saved them */
  RowSearch row_search;
  u64 enclosing_env; /* ep at which the search for a frame's method goes on; 0: it begins */
  u64 env_levels;    /* looked at so far */
} RubyUnwindScratchSpace;

typedef struct PerCPURecord {
  Trace trace;
  UnwindState state;
  PerlUnwindState perlUnwindState;
  PythonUnwindState pythonUnwindState;
  PHPUnwindState phpUnwindState;
  RubyUnwindState rubyUnwindState;
  union {
    DotnetUnwindScratchSpace dotnetUnwindScratch;
    HotspotUnwindScratchSpace hotspotUnwindScratch;
    V8UnwindScratchSpace v8UnwindScratch;
    PythonUnwindScratchSpace pythonUnwindScratch;
    RubyUnwindScratchSpace rubyUnwindScratch;
  };
  u32 unwindersDone; /* bit per ProgUnwind */
  u8 tailCalls;
  u8 ratelimitAction;
} PerCPURecord;

/* ---- native unwind tables ------------------------------------------------------------------ */

typedef struct UnwindInfo {
  u8 opcode;
  u8 fpOpcode;
  u8 mergeOpcode;
  s32 param;
  s32 fpParam;
} UnwindInfo;

typedef struct StackDelta {
  u16 addrLow;
  u16 unwindInfo; /* index into unwind_info_array, or STACK_DELTA_COMMAND_FLAG | command */
} StackDelta;

typedef struct StackDeltaPageKey {
  u64 fileID;
  u64 page;
} StackDeltaPageKey;

typedef struct StackDeltaPageInfo {
  u32 firstDelta;
  u16 numDeltas;
  u16 mapID;
} StackDeltaPageInfo;

typedef struct OffsetRange {
  u64 lower_offset; /* both ends inclusive */
  u64 upper_offset;
  u16 program_index;
} OffsetRange;

/* ---- processes ----------------------------------------------------------------------------- */

typedef struct PIDPage {
  u32 prefixLen;
  __be32 pid;
  __be64 page;
} PIDPage;

typedef struct PIDPageMappingInfo {
  u64 file_id;
  u64 bias_and_unwind_program; /* bits 0..55 load bias, bits 56..63 ProgUnwind */
} PIDPageMappingInfo;

typedef struct Event {
  u32 event_type;
} Event;

typedef struct SystemConfig {
  u64 inverse_pac_mask;
  u64 tpbase_offset;
  u32 task_stack_offset;
  u32 stack_ptregs_offset;
  u32 off_cpu_threshold;
  bool drop_error_only_traces;
} SystemConfig;

typedef struct SystemAnalysis {
  u64 address;
  u32 pid;
  u8 code[128];
} SystemAnalysis;

typedef struct RubyProcInfo {
  u32 version; /* major << 16 | minor << 8 | patch */
  u64 current_ctx_ptr;
  u8 vm_stack, vm_stack_size, cfp; /* in rb_execution_context_struct */
  u8 pc, iseq, ep;                 /* in rb_control_frame_struct */
  u8 size_of_control_frame_struct;
  u8 body;                               /* in rb_iseq_struct */
  u8 iseq_type, iseq_encoded, iseq_size; /* in rb_iseq_constant_body */
  u8 size_of_value;
  u16 running_ec; /* in rb_ractor_struct */
} RubyProcInfo;

typedef struct PHPProcInfo {
  u64 current_execute_data;
  u64 jit_return_address;
  u8 zend_execute_data_function;
  u8 zend_execute_data_opline;
  u8 zend_execute_data_prev_execute_data;
  u8 zend_execute_data_this_type_info;
  u8 zend_function_type;
  u8 zend_op_lineno;
} PHPProcInfo;

typedef struct DotnetProcInfo {
  u32 version;
} DotnetProcInfo;

typedef struct ApmIntProcInfo {
  u64 tls_offset;
} ApmIntProcInfo;

typedef struct TSDInfo {
  s16 offset;
  u8 multiplier;
  u8 indirect;
} TSDInfo;

typedef struct PACKED ApmCorrelationBuf {
  u16 layout_minor_ver;
  u8 valid;
  u8 trace_present;
  u8 trace_flags;
  u8 trace_id[16];
  u64 span_id;
  u64 transaction_id;
  OPEN_LAYOUT
} ApmCorrelationBuf;

/* ---- Beside the ABI ------------------------------------------------------------------------ */

/* How far a trace got: bits of Trace.flags. */
typedef enum TraceFlag {
  TRACE_NATIVE_ROOT = 0x01,    /* the native walk met a row that says stop, or pc 0 */
  TRACE_RUBY_MET = 0x02,       /* an interpreter frame was met */
  TRACE_RUBY_BASE = 0x04,      /* and its Ruby stack was walked to the base */
  TRACE_EC_FROM_TLS = 0x08,    /* the execution context is the sampled thread's own */
  TRACE_EC_FROM_RACTOR = 0x10, /* it came from running_ec or the global pointer */
  TRACE_NO_EC = 0x20,          /* the thread has none: no Ruby frames, nobody else's either */
  TRACE_KERNEL_INLINE = 0x40,  /* kernel frames lead the record: kernel_stackmap had no room */
  TRACE_EMPTY_SLOT = 0x80,     /* a slot of progs was empty, the walk ended there */
  TRACE_KERNEL_MODE = 0x100,   /* the CPU was in the kernel when it was sampled */
  TRACE_NATIVE_LOST = 0x200,   /* the native walk failed: Ruby frames came at once, without it */
  TRACE_RUNNABLE = 0x400       /* off the CPU, but ready to run: another thread was given it */
} TraceFlag;

/* Indices into `counters`: what the frozen metrics have no id for. */
typedef enum Counter {
  COUNTER_SAMPLES = 0,       /* runs of native_tracer_entry on a process that is to be sampled */
  COUNTER_SENT = 1,          /* traces handed to the perf buffer */
  COUNTER_OUTPUT_FAILED = 2, /* the perf buffer took none: full, or no reader on this CPU */
  COUNTER_UNKNOWN_PID = 3,   /* samples of a process user space has not registered yet */
  COUNTER_EMPTY_SLOT = 4,    /* tail calls into an empty slot of progs */
  COUNTER_EC_FROM_TLS = 5,
  COUNTER_EC_FROM_RACTOR = 6,
  COUNTER_NO_EC = 7,
  COUNTER_KERNEL_STACK_COLLISION = 8, /* kernel_stackmap slot held another stack */
  COUNTER_EVENT_FAILED = 9,           /* report_events took no event */
  COUNTER_DROPPED_ERROR_ONLY = 10,    /* system_config.drop_error_only_traces */
  COUNTER_NO_USER_REGS = 11,          /* kernel threads and tasks without user registers */
  COUNTER_NOT_FOLLOWED = 12,          /* children that followed_pids had no room for */
  /* Of switches away from a CPU. The first is the sum of the next five, of DROPPED_ERROR_ONLY as
   * far as it is theirs, and of the entries of off_cpu_threads. */
  COUNTER_OFF_CPU_SWITCHES = 13,   /* of threads that are to be sampled */
  COUNTER_OFF_CPU_NOT_CHOSEN = 14, /* left out by system_config.off_cpu_threshold */
  COUNTER_OFF_CPU_NO_ROOM = 15,    /* too many threads were away at once for the maps */
  COUNTER_OFF_CPU_SHORT = 16,      /* back sooner than walker_config.off_cpu_shortest */
  COUNTER_OFF_CPU_SENT = 17,
  COUNTER_OFF_CPU_OUTPUT_FAILED = 18, /* the perf buffer took none */
  COUNTER_OFF_CPU_LATE = 19,          /* the return was noticed later: the time is too short */
  COUNTER_OFF_CPU_UNKNOWN_PID = 20,   /* of a process user space has not registered yet */
  COUNTER_OFF_CPU_SHORT_NS = 21,      /* the time of those that were too short */
  NUM_COUNTERS = 22
} Counter;

/* Value of followed_pids, keyed by pid. Key 0: only processes that are in the map are sampled;
 * without it all are, but those that are in the map with FOLLOW_NEVER. */
typedef enum FollowFlag {
  FOLLOW_PROCESS = 1,
  FOLLOW_CHILDREN = 2,  /* what it forks is followed in the same way */
  FOLLOW_FROM_EXEC = 4, /* not before it executes another program */
  FOLLOW_NEVER = 8      /* nor what it forks for that reason */
} FollowFlag;

/* Where a thread keeps its execution context. Value of ruby_tls, keyed by pid. */
typedef enum RubyTLSKind {
  RUBY_TLS_NONE = 0,
  RUBY_TLS_DTV = 1,   /* *(u64 *)(dtv[module_id] + offset), dtv = *(u64 *)(tp + dtv_offset) */
  RUBY_TLS_STATIC = 2 /* *(u64 *)(tp + offset) */
} RubyTLSKind;

typedef struct RubyTLSInfo {
  s64 offset;
  u64 module_id;
  s32 dtv_offset;    /* of the dtv pointer from the thread pointer: 8 on x86_64, 0 on aarch64 */
  u8 dtv_entry_size; /* 16 with glibc, 8 with musl */
  u8 kind;           /* RubyTLSKind */
} RubyTLSInfo;

/* Members of 0 are not known. Value of ruby_vms, keyed by pid. */
typedef struct RubyVMInfo {
  u64 gc_flags;       /* address of the flags in the VM's rb_objspace */
  s32 pthread_offset; /* of a thread's pthread_t from its thread pointer */
  u16 ec_thread;      /* rb_execution_context_struct.thread_ptr */
  u16 thread_pthread; /* rb_thread_struct.thread_id, before 3.0 */
  u16 thread_ractor;  /* rb_thread_struct.ractor, from 3.0 on */
} RubyVMInfo;

/* ---- the walker: all of a stack in one run ---- */

enum {
  /* Frames of a deep trace: 80 + 24 * 2600 bytes. A perf record has no room for 65,517 (its size is
   * a u16), and the kernel does not say so. */
  MAX_DEEP_FRAMES = 2600,
  /* Words that are read at once, so that most frames are read with others. */
  CONTROL_FRAMES_WINDOW = 128,
  ENV_WINDOW = 64,
  STACK_WINDOW = 128,
  ISEQ_CACHE_ENTRIES = 2048,
  FLAT_PAGE_BITS = 9
};

/* Words [from, from + 8 * count) of a process. */
typedef struct WindowBounds {
  u64 from;
  u64 bytes;
} WindowBounds;

typedef struct Windows {
  WindowBounds control_frames_bounds;
  WindowBounds env_bounds;
  WindowBounds stack_bounds;
  u64 vm_stack, vm_stack_end; /* no environment outside is read with others */
  u64 control_frames[CONTROL_FRAMES_WINDOW];
  u64 env[ENV_WINDOW];
  u64 stack[STACK_WINDOW];
} Windows;

/*
 * What a page of a process is part of, and where the rows of that file are. Value of pid_mappings,
 * keyed as pid_page_to_mapping_info.
 */
typedef struct NativeMapping {
  u64 start, end; /* addresses */
  u64 file_id;
  u64 bias_and_unwind_program; /* as in PIDPageMappingInfo */
  u64 text_from;               /* ELF virtual address that the first page of the file begins at */
  u32 pages_first, pages_count;
} NativeMapping;

/* The rows that may rule in a page of flat_pages: the first one where it begins, the last where it
 * ends. */
typedef struct FlatPage {
  u32 first, last;
} FlatPage;

/* The mapping that the last pc was in. */
typedef struct MappingCache {
  NativeMapping mapping;
  OffsetRange interpreter;
  OffsetRange cold;
} MappingCache;

/* Where an instruction sequence has its body. Believed if the pc lies in its code, for a moment. */
typedef struct IseqCacheEntry {
  u64 iseq;
  u64 body;
  u64 checked; /* ktime at which the body was read */
  u64 encoded;
  u32 bytes; /* of code */
  u32 pid;
} IseqCacheEntry;

typedef struct IseqCache {
  IseqCacheEntry entries[ISEQ_CACHE_ENTRIES];
} IseqCache;

/*
 * Beside PerCPURecord, which holds the state of a walk and the head of its trace: the rest of what
 * the walker keeps. head and frames are sent as one record, laid out as a Trace.
 */
typedef struct WalkRecord {
  PerCPURecord record;
  RubyProcInfo ruby;
  MappingCache mapping;
  Windows windows;
  u32 unwinder; /* of the next frame */
  u32 max_frames;
  u64 head[10];
  Frame frames[MAX_DEEP_FRAMES];
} WalkRecord;

/* How the walker is set up. */
typedef struct WalkerConfig {
  u32 max_frames;       /* in a trace, at most MAX_DEEP_FRAMES; 0: as many */
  u32 off_cpu_slot;     /* in walk_records and iseq_cache: the first CPU's for off-CPU traces */
  u64 off_cpu_shortest; /* ns; threads that are back sooner are counted only */
} WalkerConfig;

/* ---- threads that are off the CPU ---- */

/* Frames that the traces of an off_cpu_traces_ map have room for; the last takes all. */
enum { OFF_CPU_FEW_FRAMES = 128, OFF_CPU_SOME_FRAMES = 640 };

/* Which of those maps has the trace of a thread. */
typedef enum OffCPURoom {
  OFF_CPU_ROOM_FEW = 0,
  OFF_CPU_ROOM_SOME = 1,
  OFF_CPU_ROOM_MANY = 2
} OffCPURoom;

/* A thread that is away. Value of off_cpu_threads, keyed by thread id. */
typedef struct OffCPUThread {
  u64 since; /* ktime */
  u32 room;  /* OffCPURoom */
} OffCPUThread;
/*
 * The pid namespace whose process ids are used everywhere: its inode number, as in
 * /proc/PID/ns/pid; 0: the initial one.
 */
typedef struct PIDNamespace {
  u32 inode;
} PIDNamespace;

/* Offsets in the kernel's task_struct of the ids of the thread and of its process. */
typedef struct TaskOffsets {
  u32 pid;
  u32 tgid;
} TaskOffsets;

#ifndef RUBYUNWIND_CDEF
STATIC_ASSERT(sizeof(Frame) == 24, "Frame is frozen");
STATIC_ASSERT(sizeof(Trace) == 3152, "Trace is frozen");
STATIC_ASSERT(sizeof(RubyProcInfo) == 32, "RubyProcInfo is frozen");
STATIC_ASSERT(sizeof(((RubyUnwindScratchSpace *)0)->signal_regs) >= 34 * sizeof(u64),
              "the registers of a sample fit, too: struct pt_regs of arm64 as user space sees it");
STATIC_ASSERT((u32)STACK_WINDOW >= (u32)PERF_MAX_STACK_DEPTH,
              "a kernel stack passes through the window for words of the user's");
STATIC_ASSERT(offsetof(WalkRecord, frames) - offsetof(WalkRecord, head) == offsetof(Trace, frames),
              "a deep trace is laid out as a trace");
#if defined(__x86_64__)
STATIC_ASSERT(sizeof(PerCPURecord) == 4352, "PerCPURecord is frozen");
#elif defined(__aarch64__)
STATIC_ASSERT(sizeof(PerCPURecord) == 4328, "PerCPURecord is frozen");
#endif
#endif

#endif /* RUBYUNWIND_TYPES_H */
