/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What is read from the kernel's task_struct. The CO-RE flavour has its offsets relocated when it
 * is loaded; the legacy flavour, for kernels that have no type information, takes them from
 * system_config and task_offsets, where user space puts what analyze_system let it find.
 */
#pragma once
#include "kernel.h"
#include "records.h"

#ifdef RUBYUNWIND_LEGACY

/* Eight bytes at `offset` of a task_struct; 0 for an offset that is not known. */
INLINE u64 task_word(const void *task, u64 offset) {
  u64 word = 0;
  if (!offset || bpf_probe_read_kernel(&word, sizeof(word), (const void *)((u64)task + offset)))
    return 0;
  return word;
}

INLINE u64 thread_pointer(void) {
  const SystemConfig *config = map_element(&system_config, 0);
  return config ? task_word((const void *)bpf_get_current_task(), config->tpbase_offset) : 0;
}

INLINE long read_saved_registers(struct pt_regs *regs) {
  const SystemConfig *config = map_element(&system_config, 0);
  if (!config)
    return -1;
  u64 stack = task_word((const void *)bpf_get_current_task(), config->task_stack_offset);
  if (!stack)
    return -1;
  return bpf_probe_read_kernel(regs, sizeof(*regs),
                               (const void *)(stack + config->stack_ptregs_offset));
}

/* Whether the process ends with the current thread. Its leader may go first: user space looks. */
INLINE bool is_last_thread(void) {
  u64 id = bpf_get_current_pid_tgid();
  return (u32)id == id >> 32;
}

/* That look is also what takes it out of followed_pids, once nothing of it runs. */
INLINE void stop_following(u32 pid) { (void)pid; }

INLINE void ids_of(const void *task, u32 *pid, u32 *tgid) {
  const TaskOffsets *offsets = map_element(&task_offsets, 0);
  if (!offsets)
    return;
  *pid = task_word(task, offsets->pid);
  *tgid = task_word(task, offsets->tgid);
}

#else

/* The thread pointer of the current task. */
INLINE u64 thread_pointer(void) {
  struct task_struct *task = (struct task_struct *)bpf_get_current_task();
  u64 tp = 0;
#if defined(__x86_64__)
  bpf_probe_read_kernel(&tp, sizeof(tp), &task->thread.fsbase);
#elif defined(__aarch64__)
  bpf_probe_read_kernel(&tp, sizeof(tp), &task->thread.uw.tp_value);
#endif
  return tp;
}

/* The registers that the current task left at the top of its kernel stack when it entered the
 * kernel. */
INLINE long read_saved_registers(struct pt_regs *regs) {
  if (KERNEL_HAS_ENUM(enum bpf_func_id, BPF_FUNC_task_pt_regs)) { /* 5.15 */
    const void *saved = (const void *)bpf_task_pt_regs(bpf_get_current_task_btf());
    return bpf_probe_read_kernel(regs, sizeof(*regs), saved);
  }
  const SystemConfig *config = map_element(&system_config, 0);
  if (!config || !config->stack_ptregs_offset)
    return -1;
  struct task_struct *task = (struct task_struct *)bpf_get_current_task();
  u64 stack = 0;
  long error = bpf_probe_read_kernel(&stack, sizeof(stack), &task->stack);
  if (error)
    return error;
  return bpf_probe_read_kernel(regs, sizeof(*regs),
                               (const void *)(stack + config->stack_ptregs_offset));
}

/* Whether the process ends with the current thread, which need not be the leader. */
INLINE bool is_last_thread(void) {
  struct task_struct *task = (struct task_struct *)bpf_get_current_task();
  struct signal_struct *shared = NULL;
  s32 live = 0;
  return !bpf_probe_read_kernel(&shared, sizeof(shared), &task->signal) &&
         !bpf_probe_read_kernel(&live, sizeof(live), &shared->live.counter) && live <= 0;
}

/* The next process of that number is another one. */
INLINE void stop_following(u32 pid) { bpf_map_delete_elem(&followed_pids, &pid); }

/* The ids of a task: of the thread (which the kernel calls pid) and of its process (tgid). */
INLINE void ids_of(const void *task, u32 *pid, u32 *tgid) {
  const struct task_struct *of = task;
  bpf_probe_read_kernel(pid, sizeof(*pid), &of->pid);
  bpf_probe_read_kernel(tgid, sizeof(*tgid), &of->tgid);
}

#endif
