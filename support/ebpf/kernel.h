/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel structs we look into, with only the fields we read. Those marked KERNEL_STRUCT are
 * relocated when the object is loaded (CO-RE), so their offsets here mean nothing.
 */
#pragma once
#include "prelude.h"

#ifdef __bpf__
#define KERNEL_STRUCT __attribute__((preserve_access_index))

/* Does the running kernel know this enumerator? (BPF_ENUMVAL_EXISTS; clang takes no parentheses
 * here.) */
#define KERNEL_HAS_ENUM(type, value) __builtin_preserve_enum_value(*(type *)value, 0)
#else
#define KERNEL_STRUCT
#define KERNEL_HAS_ENUM(type, value) 1
#endif

enum bpf_func_id { BPF_FUNC_task_pt_regs = 175 };

#if defined(__x86_64__)

/* arch/x86/include/uapi/asm/ptrace.h: also what a perf_event program gets, layout is UAPI. */
struct pt_regs {
  u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp,
      ss;
};

struct thread_struct {
  u64 fsbase;
} KERNEL_STRUCT;

#elif defined(__aarch64__)

/* arch/arm64/include/uapi/asm/ptrace.h: struct user_pt_regs, the head of the kernel's pt_regs. */
struct pt_regs {
  u64 regs[31], sp, pc, pstate;
};

struct uw_of_thread_struct {
  u64 tp_value;
} KERNEL_STRUCT;

struct thread_struct {
  struct uw_of_thread_struct uw;
} KERNEL_STRUCT;

#endif

/* What the threads of a process share; `live` counts those that have not begun to exit (atomic_t).
 */
struct thread_count {
  s32 counter;
} KERNEL_STRUCT;

struct signal_struct {
  struct thread_count live;
} KERNEL_STRUCT;

/* A process's id in each pid namespace that sees it, the initial one (level 0) first. */
struct ns_common {
  u32 inum;
} KERNEL_STRUCT;

struct pid_namespace {
  struct ns_common ns;
} KERNEL_STRUCT;

struct upid {
  s32 nr;
  struct pid_namespace *ns;
} KERNEL_STRUCT;

struct pid {
  u32 level;
  struct upid numbers[1];
} KERNEL_STRUCT;

struct task_struct {
  u32 __state; /* 5.14; `state` before */
  u32 flags;
  s32 pid, tgid;
  struct task_struct *group_leader;
  struct pid *thread_pid;
  void *stack;
  struct signal_struct *signal;
  struct thread_struct thread;
} KERNEL_STRUCT;

/* include/linux/sched.h: the thread is on its way out. */
enum { PF_EXITING = 0x4 };

#ifdef __bpf__
/* What follows three underscores is not part of the name. */
struct task_struct___before_5_14 {
  s64 state;
} KERNEL_STRUCT;

/* Does the running kernel have this member? (BPF_FIELD_EXISTS) */
#define KERNEL_HAS_FIELD(field) __builtin_preserve_field_info(field, 2)
#endif

/* include/uapi/linux/bpf_perf_event.h */
struct bpf_perf_event_data {
  struct pt_regs regs;
  u64 sample_period;
  u64 addr;
};

/* include/uapi/linux/bpf.h: struct bpf_raw_tracepoint_args */
struct raw_tracepoint_args {
  u64 args[3];
};
