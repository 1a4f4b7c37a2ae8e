/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the kernel does for BPF programs, done for the run of this thread. */
#include "helpers.h"

#include <errno.h>

#include "../kernel.h"

__thread host_run_state *host_current;

/* kernel/bpf/core.c: MAX_TAIL_CALL_CNT */
enum { KERNEL_TAIL_CALLS = 33 };

static host_map *map_of(void *map) { return ((host_handle *)map)->map; }

void *bpf_map_lookup_elem(void *map, const void *key) {
  host_map *found = map_of(map);
  return found ? host_map_element(found, key) : NULL;
}

long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags) {
  host_map *found = map_of(map);
  return found ? host_map_update(found, key, value, flags) : -EINVAL;
}

long bpf_map_delete_elem(void *map, const void *key) {
  host_map *found = map_of(map);
  return found ? host_map_delete(found, key) : -EINVAL;
}

u64 bpf_ktime_get_ns(void) { return host_current->task->ktime; }

u32 bpf_get_smp_processor_id(void) { return 0; }

u64 bpf_get_current_pid_tgid(void) {
  return (u64)host_current->task->pid << 32 | host_current->task->tid;
}

long bpf_get_current_comm(void *buffer, u32 size) {
  const host_task *task = host_current->task;
  memcpy(buffer, task->comm, size < sizeof task->comm ? size : sizeof task->comm);
  return 0;
}

/* Comes back only if the slot is empty or the kernel would refuse: as there. */
long bpf_tail_call(void *ctx, void *prog_array, u32 index) {
  host_map *table = map_of(prog_array);
  u32 slot = 0;
  if (!table || index >= table->max_entries || host_current->tail_calls >= KERNEL_TAIL_CALLS)
    return -1;
  memcpy(&slot, table->values + (size_t)index * table->value_size, sizeof slot);
  int (*program)(void *) = host_program(host_current->host, slot);
  if (!program)
    return -1;
  host_current->tail_calls++;
  program(ctx);
  longjmp(host_current->done, 1);
}

long bpf_perf_event_output(void *ctx, void *map, u64 flags, void *data, u64 size) {
  (void)ctx;
  (void)flags;
  return host_send(host_current->host, map, data, size);
}

/* User space has no kernel stack. */
long bpf_get_stackid(void *ctx, void *map, u64 flags) {
  (void)ctx;
  (void)map;
  (void)flags;
  return -EFAULT;
}

long bpf_get_stack(void *ctx, void *buffer, u32 size, u64 flags) {
  (void)ctx;
  (void)buffer;
  (void)size;
  (void)flags;
  return -EFAULT;
}

long bpf_probe_read_user(void *to, u32 size, const void *from) {
  return host_read_memory(host_current->memory, to, size, (u64)(uintptr_t)from);
}

/* The kernel's memory is ours: the task below. */
long bpf_probe_read_kernel(void *to, u32 size, const void *from) {
  memcpy(to, from, size);
  return 0;
}

static __thread struct task_struct task;

u64 bpf_get_current_task(void) {
  memset(&task, 0, sizeof task);
  task.pid = (s32)host_current->task->tid;
  task.tgid = (s32)host_current->task->pid;
#if defined(__x86_64__)
  task.thread.fsbase = host_current->task->thread_pointer;
#elif defined(__aarch64__)
  task.thread.uw.tp_value = host_current->task->thread_pointer;
#endif
  return (u64)(uintptr_t)&task;
}

void *bpf_get_current_task_btf(void) { return (void *)(uintptr_t)bpf_get_current_task(); }

long bpf_task_pt_regs(void *of) {
  (void)of;
  return (long)(uintptr_t)host_current->task->registers;
}
