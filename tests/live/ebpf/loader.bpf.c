/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One of everything that the loader handles. An event runs native_tracer_entry, which tail-calls the slot
 * that `settings` names; each program says in `metrics` that it ran. */
#include "helpers.h"

char LICENSE[] SEC("license") = "GPL";

enum Metric { RAN_ENTRY, RAN_STOP, RAN_NATIVE, RAN_RUBY, EMPTY_SLOT, OUTPUT_FAILED, EXITS, PAGE_FOUND, ROW_FOUND };

struct settings {
  u32 pid;   /* thread group to act on */
  u32 slot;  /* of progs */
  u32 burst; /* records a sample */
  u32 length;
  u64 file_id; /* table to look into */
};

struct record {
  u32 number, length;
  u8 filler[1016];
};

struct {
  __uint(type, BPF_MAP_TYPE_PROG_ARRAY);
  __uint(max_entries, NUM_TRACER_PROGS);
  __type(key, u32);
  __type(value, u32);
} progs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
  __uint(max_entries, 0);
  __type(key, int);
  __uint(value_size, 0); /* as the reference has it; the loader must make it 4 */
} trace_events SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
  __uint(max_entries, 0);
  __type(key, int);
  __type(value, u32);
} report_events SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 16);
  __type(key, u32);
  __type(value, u64);
} metrics SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, u32);
  __type(value, struct record);
} scratch SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, u32);
  __type(value, PerCPURecord);
} per_cpu_records SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, u32);
  __type(value, struct settings);
} settings SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, 4);
  __type(key, u32);
  __type(value, u64);
} small_hash SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LPM_TRIE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 1024);
  __type(key, PIDPage);
  __type(value, PIDPageMappingInfo);
} pid_page_to_mapping_info SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_STACK_TRACE);
  __uint(max_entries, 64);
  __uint(key_size, 4);
  __uint(value_size, PERF_MAX_STACK_DEPTH * 8);
} kernel_stackmap SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
  __uint(max_entries, 8);
  __type(key, u64);
  __type(value, u32);
  __array(
    values, struct {
      __uint(type, BPF_MAP_TYPE_ARRAY);
      __uint(map_flags, BPF_F_INNER_MAP);
      __uint(max_entries, 1);
      __uint(key_size, 4);
      __uint(value_size, sizeof(StackDelta)); /* clang 14 only declares the struct here */
    });
} tables SEC(".maps");

static inline __attribute__((always_inline)) void count(u32 metric) {
  u64 *value = bpf_map_lookup_elem(&metrics, &metric);
  if (value)
    __sync_fetch_and_add(value, 1);
}

static inline __attribute__((always_inline)) struct settings *get_settings(void) {
  u32 zero = 0;
  return bpf_map_lookup_elem(&settings, &zero);
}

SEC("perf_event")
int native_tracer_entry(void *ctx) {
  struct settings *set = get_settings();
  u32 zero = 0;
  PerCPURecord *record = bpf_map_lookup_elem(&per_cpu_records, &zero);
  u64 id = bpf_get_current_pid_tgid();

  if (!set || !record || set->pid != id >> 32)
    return 0;
  record->trace.pid = id >> 32;
  record->trace.tid = id;
  count(RAN_ENTRY);
  bpf_tail_call(ctx, &progs, set->slot);
  count(EMPTY_SLOT);
  return 0;
}

SEC("perf_event")
int unwind_stop(void *ctx) {
  struct settings *set = get_settings();
  u32 zero = 0;
  struct record *record = bpf_map_lookup_elem(&scratch, &zero);
  u64 size;

  if (!set || !record)
    return 0;
  count(RAN_STOP);
  /* Maps that no program refers to are not created. */
  bpf_map_lookup_elem(&small_hash, &zero);
  if (set->length == ~0u)
    bpf_perf_event_output(ctx, &report_events, BPF_F_CURRENT_CPU, record, 8);
  size = set->length;
  if (size > sizeof *record)
    size = sizeof *record;
  for (u32 i = 0; i < 64; i++) {
    if (i >= set->burst)
      break;
    record->number++;
    record->length = size;
    if (bpf_perf_event_output(ctx, &trace_events, BPF_F_CURRENT_CPU, record, size))
      count(OUTPUT_FAILED);
  }
  return 0;
}

SEC("perf_event")
int unwind_native(void *ctx) {
  struct settings *set = get_settings();
  PIDPage key = {.prefixLen = BIT_WIDTH_PID + BIT_WIDTH_PAGE};
  u32 row = 2;
  PIDPageMappingInfo *info;
  void *table;

  if (!set)
    return 0;
  count(RAN_NATIVE);
  key.pid = __builtin_bswap32(set->pid);
  key.page = __builtin_bswap64(0x7f0000001234ULL);
  info = bpf_map_lookup_elem(&pid_page_to_mapping_info, &key);
  if (!info)
    return 0;
  count(PAGE_FOUND);
  u64 file_id = info->file_id;
  table = bpf_map_lookup_elem(&tables, &file_id);
  if (table) {
    StackDelta *delta = bpf_map_lookup_elem(table, &row);
    if (delta && delta->addrLow == 0x222)
      count(ROW_FOUND);
  }
  bpf_tail_call(ctx, &progs, PROG_UNWIND_STOP);
  return 0;
}

SEC("perf_event")
int unwind_ruby(void *ctx) {
  u32 zero = 0;
  PerCPURecord *record = bpf_map_lookup_elem(&per_cpu_records, &zero);

  if (record)
    record->trace.kernel_stack_id = bpf_get_stackid(ctx, &kernel_stackmap, 0);
  count(RAN_RUBY);
  return 0;
}

SEC("raw_tp/sched_process_exit")
int process_exit(void *ctx) {
  struct settings *set = get_settings();
  if (set && set->pid == bpf_get_current_pid_tgid() >> 32)
    count(EXITS);
  return 0;
}
