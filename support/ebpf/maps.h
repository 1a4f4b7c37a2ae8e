/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Every map. Sizes here are upper bounds of the specification; the loader sets what a machine
 * needs. */
#pragma once
#include "helpers.h"
#include "types.h"

#define HASH_MAP(name, map_type, entries, key_type, value_type)                                    \
  struct {                                                                                         \
    MAP_UINT(type, map_type);                                                                      \
    MAP_UINT(max_entries, entries);                                                                \
    MAP_TYPE(key, key_type);                                                                       \
    MAP_TYPE(value, value_type);                                                                   \
  } name SEC(".maps")

/* The tail-call array: ProgUnwind -> program. Filled by user space after loading. */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_PROG_ARRAY);
  MAP_UINT(max_entries, NUM_TRACER_PROGS);
  MAP_UINT(key_size, sizeof(u32));
  MAP_UINT(value_size, sizeof(u32));
} progs SEC(".maps");

HASH_MAP(per_cpu_records, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, PerCPURecord);
HASH_MAP(metrics, BPF_MAP_TYPE_PERCPU_ARRAY, metricID_Max, u32, u64);

/* ---- to user space ---- */

#define PERF_BUFFER(name)                                                                          \
  struct {                                                                                         \
    MAP_UINT(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);                                                 \
    MAP_UINT(max_entries, 0); /* one per CPU, set by the loader */                                 \
    MAP_UINT(key_size, sizeof(u32));                                                               \
    MAP_UINT(value_size, sizeof(u32));                                                             \
  } name SEC(".maps")

PERF_BUFFER(report_events);
PERF_BUFFER(trace_events);

/* Pids reported lately and when, so that they are not reported again before they were handled. */
HASH_MAP(reported_pids, BPF_MAP_TYPE_LRU_HASH, 65536, u32, u64);
/* Pids waiting for user space, which reads and deletes them. */
HASH_MAP(pid_events, BPF_MAP_TYPE_HASH, 65536, u32, bool);
/* Event types that were sent and not re-armed yet. */
HASH_MAP(inhibit_events, BPF_MAP_TYPE_HASH, 2, u32, bool);

struct {
  MAP_UINT(type, BPF_MAP_TYPE_STACK_TRACE);
  MAP_UINT(max_entries, 16384);
  MAP_UINT(key_size, sizeof(u32));
  MAP_UINT(value_size, PERF_MAX_STACK_DEPTH * sizeof(u64));
} kernel_stackmap SEC(".maps");

/* ---- from user space: processes ---- */

struct {
  MAP_UINT(type, BPF_MAP_TYPE_LPM_TRIE);
  MAP_UINT(max_entries, 1 << 19);
  MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
  MAP_TYPE(key, PIDPage);
  MAP_TYPE(value, PIDPageMappingInfo);
} pid_page_to_mapping_info SEC(".maps");

HASH_MAP(interpreter_offsets, BPF_MAP_TYPE_HASH, 32, u64, OffsetRange);
/* Beside the ABI: the part of the same function that the compiler has moved away (its .cold
 * symbol). */
HASH_MAP(interpreter_cold_offsets, BPF_MAP_TYPE_HASH, 32, u64, OffsetRange);
HASH_MAP(ruby_procs, BPF_MAP_TYPE_HASH, 1024, u32, RubyProcInfo);
HASH_MAP(php_procs, BPF_MAP_TYPE_HASH, 1024, u32, PHPProcInfo);
HASH_MAP(dotnet_procs, BPF_MAP_TYPE_HASH, 1024, u32, DotnetProcInfo);
HASH_MAP(apm_int_procs, BPF_MAP_TYPE_HASH, 128, u32, ApmIntProcInfo);
HASH_MAP(system_config, BPF_MAP_TYPE_ARRAY, 1, u32, SystemConfig);
HASH_MAP(system_analysis, BPF_MAP_TYPE_ARRAY, 1, u32, SystemAnalysis);
HASH_MAP(sched_times, BPF_MAP_TYPE_LRU_PERCPU_HASH, 256, u64, u64);

/* ---- from user space: native unwind tables ---- */

HASH_MAP(stack_delta_page_to_info, BPF_MAP_TYPE_HASH, 40000, StackDeltaPageKey, StackDeltaPageInfo);
HASH_MAP(unwind_info_array, BPF_MAP_TYPE_ARRAY, UNWIND_INFO_MAX_ENTRIES, u32, UnwindInfo);

/*
 * file id -> rows of the file; the bucket is the bit length of the number of rows. The template of
 * the inner arrays has one entry: BPF_F_INNER_MAP lets the real ones have what the file needs.
 * Before 5.10 they have the size of their bucket's template, whatever the file needs.
 */
#ifdef RUBYUNWIND_LEGACY
#define STACK_DELTA_ROWS(bits) (1 << (bits))
#define STACK_DELTA_FLAGS 0
#else
#define STACK_DELTA_ROWS(bits) 1
#define STACK_DELTA_FLAGS (BPF_F_INNER_MAP | BPF_F_MMAPABLE)
#endif

#define STACK_DELTA_TEMPLATE(bits)                                                                 \
  struct {                                                                                         \
    MAP_UINT(type, BPF_MAP_TYPE_ARRAY);                                                            \
    MAP_UINT(max_entries, STACK_DELTA_ROWS(bits));                                                 \
    MAP_UINT(map_flags, STACK_DELTA_FLAGS);                                                        \
    MAP_UINT(key_size, sizeof(u32));                                                               \
    MAP_UINT(value_size, sizeof(StackDelta));                                                      \
  }

#define STACK_DELTA_BUCKET(bits)                                                                   \
  struct {                                                                                         \
    MAP_UINT(type, BPF_MAP_TYPE_HASH_OF_MAPS);                                                     \
    MAP_UINT(max_entries, 4096);                                                                   \
    MAP_TYPE(key, u64);                                                                            \
    MAP_UINT(value_size, sizeof(u32));                                                             \
    MAP_VALUES(STACK_DELTA_TEMPLATE(bits));                                                        \
  } exe_id_to_##bits##_stack_deltas SEC(".maps")

STACK_DELTA_BUCKET(8);
STACK_DELTA_BUCKET(9);
STACK_DELTA_BUCKET(10);
STACK_DELTA_BUCKET(11);
STACK_DELTA_BUCKET(12);
STACK_DELTA_BUCKET(13);
STACK_DELTA_BUCKET(14);
STACK_DELTA_BUCKET(15);
STACK_DELTA_BUCKET(16);
STACK_DELTA_BUCKET(17);
STACK_DELTA_BUCKET(18);
STACK_DELTA_BUCKET(19);
STACK_DELTA_BUCKET(20);
STACK_DELTA_BUCKET(21);
STACK_DELTA_BUCKET(22);
STACK_DELTA_BUCKET(23);

/* ---- Beside the ABI ---- */

/* Where the threads of a Ruby process keep their execution context. */
HASH_MAP(ruby_tls, BPF_MAP_TYPE_HASH, 1024, u32, RubyTLSInfo);
HASH_MAP(ruby_vms, BPF_MAP_TYPE_HASH, 1024, u32, RubyVMInfo);
HASH_MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, NUM_COUNTERS, u32, u64);

#ifndef RUBYUNWIND_LEGACY
/* The walker's: a record and a cache for each CPU (set by the loader; too large for a per-CPU map),
 * and as many again for off-CPU traces. */
HASH_MAP(walk_records, BPF_MAP_TYPE_ARRAY, 1, u32, WalkRecord);
HASH_MAP(iseq_cache, BPF_MAP_TYPE_ARRAY, 1, u32, IseqCache);
HASH_MAP(walker_config, BPF_MAP_TYPE_ARRAY, 1, u32, WalkerConfig);

struct {
  MAP_UINT(type, BPF_MAP_TYPE_LPM_TRIE);
  MAP_UINT(max_entries, 1 << 19);
  MAP_UINT(map_flags, BPF_F_NO_PREALLOC);
  MAP_TYPE(key, PIDPage);
  MAP_TYPE(value, NativeMapping);
} pid_mappings SEC(".maps");

/*
 * The rows of all files, one behind the other, two to an element (arrays round elements up to eight
 * bytes), and the pages of 512 bytes that lead to them: what a row search takes is an index, not a
 * search.
 */
struct {
  MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
  MAP_UINT(max_entries, 1 << 21);
  MAP_UINT(map_flags, BPF_F_MMAPABLE);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, u64);
} flat_rows SEC(".maps");

struct {
  MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
  MAP_UINT(max_entries, 1 << 19);
  MAP_UINT(map_flags, BPF_F_MMAPABLE);
  MAP_TYPE(key, u32);
  MAP_TYPE(value, FlatPage);
} flat_pages SEC(".maps");

/*
 * Threads that are off the CPU, and the stacks that they left it with until they are back. Not
 * sched_times, which is per CPU: a thread may come back on another one. Preallocated, as all that
 * changes while the scheduler switches; so a trace goes where there are just about frames enough.
 */
HASH_MAP(off_cpu_threads, BPF_MAP_TYPE_HASH, 5632, u32, OffCPUThread);

/* When the last switch was, on each CPU. */
HASH_MAP(off_cpu_last, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, u64);

#define OFF_CPU_TRACES(name, entries, most)                                                        \
  struct name##_value {                                                                            \
    u64 head[10];                                                                                  \
    Frame frames[most];                                                                            \
  };                                                                                               \
  HASH_MAP(name, BPF_MAP_TYPE_HASH, entries, u32, struct name##_value)

OFF_CPU_TRACES(off_cpu_traces_few, 4096, OFF_CPU_FEW_FRAMES);
OFF_CPU_TRACES(off_cpu_traces_some, 1024, OFF_CPU_SOME_FRAMES);
OFF_CPU_TRACES(off_cpu_traces_many, 64, MAX_DEEP_FRAMES);
#endif

/* Which processes are sampled, if not all; FollowFlag bits. */
HASH_MAP(followed_pids, BPF_MAP_TYPE_HASH, 65536, u32, u32);

#ifndef RUBYUNWIND_LEGACY
HASH_MAP(pid_namespace, BPF_MAP_TYPE_ARRAY, 1, u32, PIDNamespace);
#endif

/* What the legacy flavour has to know of task_struct beside what system_config holds. */
HASH_MAP(task_offsets, BPF_MAP_TYPE_ARRAY, 1, u32, TaskOffsets);

struct kernel_stack {
  u64 pcs[PERF_MAX_STACK_DEPTH];
};
/* Kernel stacks that kernel_stackmap has no room for, on their way into the record. */
HASH_MAP(kernel_stack_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct kernel_stack);

/*
 * Never created: clang writes a type into BTF only where a map or a function has it, and user
 * space's layouts are compared with BTF. These are the types that no other map brings in.
 */
struct abi_types {
  StackDelta stack_delta;
  Event event;
  TSDInfo tsd_info;
  ApmCorrelationBuf apm_correlation_buf;
  FrameMarker frame_marker;
  ProgUnwind prog_unwind;
  EventType event_type;
  RatelimitAction ratelimit_action;
  UnwindOpcode unwind_opcode;
  UnwindCommand unwind_command;
  MetricID metric_id;
  TraceFlag trace_flag;
  Counter counter;
  RubyTLSKind ruby_tls_kind;
  FollowFlag follow_flag;
  OffCPURoom off_cpu_room;
};
HASH_MAP(abi_types, BPF_MAP_TYPE_ARRAY, 1, u32, struct abi_types);
