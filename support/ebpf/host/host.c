/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs themselves, compiled for the host from the same files, and what runs them. */
#include "../tracer.ebpf.c"

#include <errno.h>
#include <stdlib.h>

#include "host.h"

typedef int (*program_fn)(void *);

/* Programs by name; their position + 1 is what a slot of progs holds. */
static const struct {
  const char *name;
  program_fn run;
} programs[] = {
    {"native_tracer_entry", (program_fn)native_tracer_entry},
    {"unwind_stop", (program_fn)unwind_stop},
    {"unwind_native", (program_fn)unwind_native},
    {"unwind_ruby", (program_fn)unwind_ruby},
    {"native_tracer_walker", (program_fn)native_tracer_walker},
};
/* Those of the chain come first: only they are ever in progs. */
enum { PROGRAMS = sizeof programs / sizeof *programs, CHAIN_PROGRAMS = 4 };

#define MAP(name)                                                                                  \
  { #name, (host_handle *)&name }
#define BUCKET(bits) MAP(exe_id_to_##bits##_stack_deltas)
/* Maps by name. Those that no program uses are not here. */
static const struct {
  const char *name;
  host_handle *handle;
} maps[] = {
    MAP(progs),
    MAP(per_cpu_records),
    MAP(metrics),
    MAP(report_events),
    MAP(trace_events),
    MAP(reported_pids),
    MAP(pid_events),
    MAP(inhibit_events),
    MAP(kernel_stackmap),
    MAP(pid_page_to_mapping_info),
    MAP(interpreter_offsets),
    MAP(interpreter_cold_offsets),
    MAP(ruby_procs),
    MAP(system_config),
    MAP(stack_delta_page_to_info),
    MAP(unwind_info_array),
    BUCKET(8),
    BUCKET(9),
    BUCKET(10),
    BUCKET(11),
    BUCKET(12),
    BUCKET(13),
    BUCKET(14),
    BUCKET(15),
    BUCKET(16),
    BUCKET(17),
    BUCKET(18),
    BUCKET(19),
    BUCKET(20),
    BUCKET(21),
    BUCKET(22),
    BUCKET(23),
    MAP(ruby_tls),
    MAP(ruby_vms),
    MAP(counters),
    MAP(followed_pids),
    MAP(pid_namespace),
    MAP(kernel_stack_scratch),
    MAP(walk_records),
    MAP(iseq_cache),
    MAP(walker_config),
    MAP(pid_mappings),
    MAP(flat_rows),
    MAP(flat_pages),
};
enum { MAPS = sizeof maps / sizeof *maps };

struct host {
  host_map *maps[MAPS];
  u8 output[offsetof(Trace, frames) + sizeof(Frame) * MAX_DEEP_FRAMES];
  size_t output_length;
  u64 events;
};

host *host_new(void) { return calloc(1, sizeof(host)); }

void host_free(host *h) {
  if (!h)
    return;
  for (int i = 0; i < MAPS; i++)
    host_map_free(h->maps[i]);
  free(h);
}

static int index_of(const char *name) {
  for (int i = 0; i < MAPS; i++)
    if (!strcmp(maps[i].name, name))
      return i;
  return -1;
}

host_map *host_map_find(host *h, const char *name) {
  int index = index_of(name);
  return index < 0 ? NULL : h->maps[index];
}

int host_map_create(host *h, const char *name, u32 type, u32 key_size, u32 value_size,
                    u32 max_entries) {
  int index = index_of(name);
  if (index < 0)
    return -ENOENT;
  if (h->maps[index])
    return -EEXIST;
  h->maps[index] = host_map_new(type, key_size, value_size, max_entries);
  return h->maps[index] ? 0 : -ENOMEM;
}

int (*host_program(host *h, u32 slot))(void *) {
  (void)h;
  return slot && slot <= CHAIN_PROGRAMS ? programs[slot - 1].run : NULL;
}

int host_send(host *h, const void *map, const void *data, u64 size) {
  if (map == &report_events) {
    h->events++;
    return 0;
  }
  if (map != &trace_events || size > sizeof h->output)
    return -EINVAL;
  memcpy(h->output, data, size);
  h->output_length = size;
  return 0;
}

static program_fn program_called(const char *name) {
  for (int i = 0; i < PROGRAMS; i++)
    if (!strcmp(programs[i].name, name))
      return programs[i].run;
  return NULL;
}

/* Returns when the last program of the chain does: a tail call never comes back to its caller. */
static void run_to_the_end(program_fn run, host_run_state *state, struct bpf_perf_event_data *ctx) {
  host_run_state *outer = host_current;
  host_current = state;
  if (!setjmp(state->done))
    run(ctx);
  host_current = outer;
}

/* As many as the walker looks at: frames that Ruby does not show are not counted by the trace's own
 * limit, and a stack of nothing else, in memory that is no stack, might have no end. */
enum { MAX_CONTROL_FRAMES = STEPS_PER_CALL * MAX_CALLS };

/*
 * The Ruby steps by themselves, from an execution context that user space has found. No BPF
 * program: a thread that is not stopped has no registers to begin a native walk with.
 */
static int unwind_context(u64 ec) {
  PerCPURecord *record = get_per_cpu_record();
  const host_task *task = host_current->task;
  const RubyProcInfo *ruby = map_element(&ruby_procs, task->pid);
  u32 unwinder = PROG_UNWIND_STOP;
  if (!record || !ruby)
    return -ENOENT;
  const Walk walk = chain_walk(record);
  make_pristine(record);
  Trace *trace = &record->trace;
  trace->pid = task->pid;
  trace->tid = task->tid;
  trace->ktime = task->ktime;
  trace->origin = TRACE_ORIGIN_SAMPLING;
  bpf_get_current_comm(trace->comm, sizeof(trace->comm));
  /* There is no native walk to hand over to: all frames come in one go. */
  trace->flags = TRACE_NATIVE_ROOT | TRACE_RUBY_MET;
  ErrorCode error = push_garbage_collection(&walk, ruby, ec);
  if (!error)
    error = ruby_enter(&walk, ruby, ec);
  if (!error)
    unwinder = PROG_UNWIND_RUBY;
  for (int i = 0; i < MAX_CONTROL_FRAMES && unwinder == PROG_UNWIND_RUBY; i++)
    error = ruby_step(&walk, ruby, &unwinder);
  if (unwinder == PROG_UNWIND_RUBY)
    error = ERR_STACK_LENGTH_EXCEEDED;
  record->state.unwind_error = error;
  finish_trace(NULL, &walk);
  return 0;
}

static void begin_run(host *h, host_memory *memory) {
  for (int i = 0; i < MAPS; i++)
    maps[i].handle->map = h->maps[i];
  h->output_length = 0;
  memory->run++;
}

int host_run_context(host *h, u64 ec, const host_task *task, host_memory *memory) {
  host_run_state state = {.host = h, .task = task, .memory = memory};
  host_run_state *outer = host_current;
  begin_run(h, memory);
  host_current = &state;
  int error = unwind_context(ec);
  host_current = outer;
  return error;
}

int host_run(host *h, const char *program, const host_task *task, host_memory *memory) {
  program_fn run = program_called(program);
  if (!run)
    return -ENOENT;
  begin_run(h, memory);
  host_run_state state = {.host = h, .task = task, .memory = memory};
  struct bpf_perf_event_data ctx = {0};
  _Static_assert(sizeof ctx.regs <= sizeof task->registers, "host_task holds the registers");
  memcpy(&ctx.regs, task->registers, sizeof ctx.regs);
  run_to_the_end(run, &state, &ctx);
  return 0;
}

const u8 *host_output(host *h, size_t *length) {
  *length = h->output_length;
  return h->output;
}

u64 host_events(host *h) { return h->events; }
