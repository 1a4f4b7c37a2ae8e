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

INLINE u64 ids_of(const void *task) {
  const TaskOffsets *offsets = map_element(&task_offsets, 0);
  if (!offsets)
    return 0;
  return (u64)(u32)task_word(task, offsets->tgid) << 32 | (u32)task_word(task, offsets->pid);
}

/* User space refuses to work in a pid namespace of its own. */
INLINE u64 current_ids(void) { return bpf_get_current_pid_tgid(); }

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

/* A kernel has at most 32 below the initial one (MAX_PID_NS_LEVEL of linux/pid_namespace.h). */
enum { MAX_PID_LEVELS = 33 };

/* include/linux/pid.h: struct upid is an int and a pointer, 16 bytes since 2.6.24. */
INLINE const struct upid *number_at(const struct pid *pid, u32 level) {
  return (const void *)((u64)&pid->numbers[0] + level * sizeof(struct upid));
}

/*
 * The ids of a task (its address) as a pid namespace sees them: that of its process in the upper
 * half, of the thread in the lower, as bpf_get_current_pid_tgid has them. 0 if it is not seen from
 * there. A global function, which the verifier looks at once. What cannot be read is zero.
 */
__attribute__((noinline)) u64 ids_in(u64 of, u32 inode) {
  const struct task_struct *task = (const void *)of;
  struct task_struct *leader = NULL;
  struct pid *thread = NULL;
  struct pid *process = NULL;
  u32 level = 0;
  bpf_probe_read_kernel(&thread, sizeof(thread), &task->thread_pid);
  bpf_probe_read_kernel(&leader, sizeof(leader), &task->group_leader);
  bpf_probe_read_kernel(&process, sizeof(process), &leader->thread_pid);
  bpf_probe_read_kernel(&level, sizeof(level), &thread->level);
  /* Innermost first: most of what is seen from a namespace is in it. */
  for (u32 i = 0; i < MAX_PID_LEVELS; i++) {
    struct pid_namespace *namespace = NULL;
    u32 found = 0;
    bpf_probe_read_kernel(&namespace, sizeof(namespace), &number_at(thread, level)->ns);
    bpf_probe_read_kernel(&found, sizeof(found), &namespace->ns.inum);
    if (found == inode) {
      s32 tid = 0;
      s32 tgid = 0;
      bpf_probe_read_kernel(&tid, sizeof(tid), &number_at(thread, level)->nr);
      bpf_probe_read_kernel(&tgid, sizeof(tgid), &number_at(process, level)->nr);
      return (u64)(u32)tgid << 32 | (u32)tid;
    }
    if (level == 0)
      break;
    level--;
  }
  return 0;
}

/* The namespace that is asked for; 0: the initial one, of which the kernel tells directly. */
INLINE u32 pid_namespace_inode(void) {
  const PIDNamespace *namespace = map_element(&pid_namespace, 0);
  return namespace ? namespace->inode : 0;
}

/* The ids of the current task; 0 for one that user space does not see, and for the idle task. */
INLINE u64 current_ids(void) {
  u32 inode = pid_namespace_inode();
  return inode ? ids_in(bpf_get_current_task(), inode) : bpf_get_current_pid_tgid();
}

/* The ids of another one, in the same form. */
INLINE u64 ids_of(const void *of) {
  const struct task_struct *task = of;
  u32 inode = pid_namespace_inode();
  if (inode)
    return ids_in((u64)of, inode);
  s32 pid = 0;
  s32 tgid = 0;
  bpf_probe_read_kernel(&pid, sizeof(pid), &task->pid);
  bpf_probe_read_kernel(&tgid, sizeof(tgid), &task->tgid);
  return (u64)(u32)tgid << 32 | (u32)pid;
}

#endif
