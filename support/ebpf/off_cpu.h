/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Threads that leave their CPU: the stack with which they go, and how long they were away. Included
 * by tracer.ebpf.c behind the walker, whose steps it takes.
 *
 * The stack is walked when the thread goes, since it is still the current one then, with its
 * memory. It stays in a map until the thread is back, and is sent with the time. To send it at once
 * and the time later would cost a second record per switch, and user space the work to join them,
 * also of threads that were away for too short a time to be shown. What is kept is found by the
 * thread's id in the pid namespace that user space is in: no two threads have one at a time, and
 * those that are not seen from there have none.
 *
 * A switch happens with interrupts off, so that the clock's program does not come in between where
 * the clock is a software one. An interrupt that cannot be masked would; so nothing that a walk
 * writes is shared with it.
 */
#pragma once

/*
 * ctx->args of sched_switch: preempt, previous, next and, from 5.18 on, the state of the previous
 * one. That is read from the task instead: a program that reads a fourth argument is not attached
 * where there are three.
 */
INLINE const struct task_struct *next_task(const struct raw_tracepoint_args *ctx) {
  return (const struct task_struct *)ctx->args[2];
}

/* Whether the current task could go on if it had a CPU: it has used up its time, or has been
 * preempted on its way into a wait. */
INLINE bool is_runnable(const struct raw_tracepoint_args *ctx) {
  struct task_struct *task = (struct task_struct *)bpf_get_current_task();
  if (ctx->args[0] & 0xff) /* bool preempt */
    return true;
  if (KERNEL_HAS_FIELD(task->__state)) {
    u32 state = 1;
    return !bpf_probe_read_kernel(&state, sizeof(state), &task->__state) && state == 0;
  }
  struct task_struct___before_5_14 *before = (void *)task;
  s64 state = 1;
  return !bpf_probe_read_kernel(&state, sizeof(state), &before->state) && state == 0;
}

/* Whether the current task is about to end: it will not come back, and has no memory any more. */
INLINE bool is_exiting(void) {
  struct task_struct *task = (struct task_struct *)bpf_get_current_task();
  u32 flags = 0;
  return !bpf_probe_read_kernel(&flags, sizeof(flags), &task->flags) && (flags & PF_EXITING);
}

/* forget_away takes a thread and its trace out of the maps. */
INLINE void forget_away(u32 tid, u32 room) {
  if (room == OFF_CPU_ROOM_FEW)
    bpf_map_delete_elem(&off_cpu_traces_few, &tid);
  else if (room == OFF_CPU_ROOM_SOME)
    bpf_map_delete_elem(&off_cpu_traces_some, &tid);
  else
    bpf_map_delete_elem(&off_cpu_traces_many, &tid);
  bpf_map_delete_elem(&off_cpu_threads, &tid);
}

/* send_away sends the trace of a thread that is back; `most` frames fit into it. */
INLINE void send_away(void *ctx, u64 *head, u64 away, u64 most) {
  enum { STACK_LEN_WORD = offsetof(Trace, stack_len) / sizeof(u64) };
  head[offsetof(Trace, offtime) / sizeof(u64)] = away;
  u64 length = head[STACK_LEN_WORD] >> 32;
  asm volatile("" : "+r"(length));
  if (length > most)
    return; /* cannot be: it was kept where it fits */
  long error = bpf_perf_event_output(ctx, &trace_events, BPF_F_CURRENT_CPU, head,
                                     offsetof(Trace, frames) + sizeof(Frame) * length);
  increment_counter(error ? COUNTER_OFF_CPU_OUTPUT_FAILED : COUNTER_OFF_CPU_SENT);
}

/* come_back ends the absence of a thread, if it is one that is waited for; returns whether it is.
 */
static __attribute__((noinline)) bool come_back(void *ctx, u32 tid, u64 now) {
  const OffCPUThread *thread = map_element(&off_cpu_threads, tid);
  if (!thread)
    return false;
  const WalkerConfig *config = map_element(&walker_config, 0);
  u64 away = now > thread->since ? now - thread->since : 0;
  u32 room = thread->room;
  if (config && away < config->off_cpu_shortest) {
    increment_counter(COUNTER_OFF_CPU_SHORT);
    u64 *sum = map_element(&counters, COUNTER_OFF_CPU_SHORT_NS);
    if (sum)
      *sum += away;
  } else if (room == OFF_CPU_ROOM_FEW) {
    struct off_cpu_traces_few_value *trace = map_element(&off_cpu_traces_few, tid);
    if (trace)
      send_away(ctx, trace->head, away, OFF_CPU_FEW_FRAMES);
  } else if (room == OFF_CPU_ROOM_SOME) {
    struct off_cpu_traces_some_value *trace = map_element(&off_cpu_traces_some, tid);
    if (trace)
      send_away(ctx, trace->head, away, OFF_CPU_SOME_FRAMES);
  } else {
    struct off_cpu_traces_many_value *trace = map_element(&off_cpu_traces_many, tid);
    if (trace)
      send_away(ctx, trace->head, away, MAX_DEEP_FRAMES);
  }
  forget_away(tid, room);
  return true;
}

/*
 * come_back_late does so for the current thread. Not every switch is shown to us: it may have come
 * back at any time since the last one on this CPU that was, to which its wait is counted.
 */
INLINE void come_back_late(void *ctx, u32 tid, u64 last) {
  if (come_back(ctx, tid, last))
    increment_counter(COUNTER_OFF_CPU_LATE);
}

/* The time of the last switch on this CPU, and puts that of this one in its place. */
INLINE u64 last_switch(u64 now) {
  u64 *time = map_element(&off_cpu_last, 0);
  u64 last = now;
  if (time) {
    last = *time;
    *time = now;
  }
  return last;
}

/* Whether this switch is to be recorded; those of a process that is to be sampled are counted. */
INLINE bool is_chosen(void *ctx, u64 id, u64 last) {
  u32 pid = id >> 32;
  if (pid == 0 || !is_followed(pid) || is_exiting())
    return false;
  come_back_late(ctx, (u32)id, last);
  increment_counter(COUNTER_OFF_CPU_SWITCHES);
  const SystemConfig *config = map_element(&system_config, 0);
  u32 threshold = config ? config->off_cpu_threshold : 0;
  if (threshold < OFF_CPU_THRESHOLD_MAX &&
      bpf_get_prandom_u32() % OFF_CPU_THRESHOLD_MAX >= threshold) {
    increment_counter(COUNTER_OFF_CPU_NOT_CHOSEN);
    return false;
  }
  if (!pid_information_exists(pid)) {
    /* There will be no user frames. But the wait may be a long one: it is sent all the same. */
    increment_counter(COUNTER_OFF_CPU_UNKNOWN_PID);
    if (report_pid(ctx, pid, true))
      increment_metric(metricID_NumProcNew);
  }
  return true;
}

/* begin_leave begins the trace of the thread that goes; false if there is none to be taken. */
INLINE bool begin_leave(struct raw_tracepoint_args *ctx, u64 last, u32 *slot, Walk *walk) {
  u64 id = current_ids();
  const WalkerConfig *config = map_element(&walker_config, 0);
  if (!config || !is_chosen(ctx, id, last))
    return false;
  *slot = config->off_cpu_slot + bpf_get_smp_processor_id();
  if (!walk_of(*slot, walk)) {
    increment_counter(COUNTER_OFF_CPU_NO_ROOM);
    return false;
  }
  WalkRecord *record = (WalkRecord *)walk->record;
  clear_walk(record);
  begin_head(&record->record, id, TRACE_ORIGIN_OFF_CPU);
  record->record.trace.flags |= TRACE_KERNEL_MODE;
  if (is_runnable(ctx))
    record->record.trace.flags |= TRACE_RUNNABLE;
  push_kernel_stack(ctx, walk);
  bool found = false;
  ErrorCode error = get_saved_user_registers(&record->record, &found);
  begin_steps(walk, record, begin_user_frames(walk, found, error));
  return true;
}

/* keep puts the trace of the record into the smallest room that takes it; the room, or -1. */
INLINE int keep(WalkRecord *record, u32 tid) {
  u32 length = record->record.trace.stack_len;
  __builtin_memcpy(record->head, &record->record.trace, sizeof(record->head));
  if (length <= OFF_CPU_FEW_FRAMES &&
      !bpf_map_update_elem(&off_cpu_traces_few, &tid, record->head, BPF_ANY))
    return OFF_CPU_ROOM_FEW;
  if (length <= OFF_CPU_SOME_FRAMES &&
      !bpf_map_update_elem(&off_cpu_traces_some, &tid, record->head, BPF_ANY))
    return OFF_CPU_ROOM_SOME;
  if (!bpf_map_update_elem(&off_cpu_traces_many, &tid, record->head, BPF_ANY))
    return OFF_CPU_ROOM_MANY;
  return -1;
}

/* end_leave keeps the trace. The time begins now: that of the walk is ours, not the thread's. */
INLINE void end_leave(void *ctx, const Walk *walk) {
  if (!complete_trace(ctx, walk))
    return;
  u32 tid = walk->record->trace.tid;
  OffCPUThread thread = {};
  int room = keep((WalkRecord *)walk->record, tid);
  if (room < 0) {
    increment_counter(COUNTER_OFF_CPU_NO_ROOM);
    return;
  }
  thread.room = room;
  thread.since = bpf_ktime_get_ns();
  if (bpf_map_update_elem(&off_cpu_threads, &tid, &thread, BPF_ANY)) {
    increment_counter(COUNTER_OFF_CPU_NO_ROOM);
    forget_away(tid, room);
  }
}

/* The thread that comes is back when the switch begins: what the other's walk takes is not its
 * wait.
 */
INLINE u64 begin_switch(struct raw_tracepoint_args *ctx) {
  u64 now = bpf_ktime_get_ns();
  u32 tid = (u32)ids_of(next_task(ctx));
  if (tid)
    come_back(ctx, tid, now);
  return last_switch(now);
}

SEC("?raw_tp/sched_switch")
int off_cpu_walker(struct raw_tracepoint_args *ctx) {
  Walk walk;
  u32 slot = 0;
  u64 last = begin_switch(ctx);
  if (!begin_leave(ctx, last, &slot, &walk))
    return 0;
  take_all_steps(&walk, slot);
  end_leave(ctx, &walk);
  return 0;
}

/* Takes the place of off_cpu_walker where the kernel has bpf_loop. */
SEC("?raw_tp/sched_switch")
int off_cpu_walker_loop(struct raw_tracepoint_args *ctx) {
  Walk walk;
  u32 slot = 0;
  u64 last = begin_switch(ctx);
  if (!begin_leave(ctx, last, &slot, &walk))
    return 0;
  loop_over_all_steps(&walk, slot);
  end_leave(ctx, &walk);
  return 0;
}

/* A thread that ends does not wait any more, whatever was seen of it. */
SEC("?raw_tp/sched_process_exit")
int off_cpu_exit(struct raw_tracepoint_args *ctx) {
  u32 tid = (u32)current_ids();
  u64 last = last_switch(bpf_ktime_get_ns());
  if (tid)
    come_back_late(ctx, tid, last);
  return 0;
}
