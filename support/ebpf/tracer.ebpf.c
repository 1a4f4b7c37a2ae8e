/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs. Each is found by its function name; all perf programs share one section name. */
#include "chain.h"
#include "native_step.h"
#include "ruby_step.h"
#include "user_regs.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* push_kernel_stack puts kernel frames into the record itself; they are its first. */
INLINE void push_kernel_stack(struct bpf_perf_event_data *ctx, Trace *trace) {
  struct kernel_stack *stack = map_element(&kernel_stack_scratch, 0);
  if (!stack)
    return;
  long bytes = bpf_get_stack(ctx, stack, sizeof(*stack), 0);
  if (bytes <= 0)
    return;
  UNROLL_LEGACY
  for (u32 i = 0; i < PERF_MAX_STACK_DEPTH; i++) /* all that a trace has room for */
    trace->frames[i] = (Frame){.addr_or_line = stack->pcs[i], .kind = FRAME_MARKER_KERNEL};
  trace->stack_len = (u64)bytes / sizeof(u64);
  trace->flags |= TRACE_KERNEL_INLINE;
}

/*
 * collect_kernel_stack stores the kernel stack under an id. Without BPF_F_REUSE_STACKID the kernel
 * keeps what is there when two stacks collide, so an id never changes its meaning; the newcomer's
 * frames travel in its own record instead.
 */
INLINE void collect_kernel_stack(struct bpf_perf_event_data *ctx, Trace *trace) {
  enum { EEXIST = 17 };
  long id = bpf_get_stackid(ctx, &kernel_stackmap, 0);
  if (id == -EEXIST) {
    increment_counter(COUNTER_KERNEL_STACK_COLLISION);
    push_kernel_stack(ctx, trace);
    id = -1;
  }
  trace->kernel_stack_id = id;
}

SEC("perf_event")
int native_tracer_entry(struct bpf_perf_event_data *ctx) {
  u64 id = bpf_get_current_pid_tgid();
  u32 pid = id >> 32;
  if (pid == 0 || !is_followed(pid))
    return 0;
  increment_counter(COUNTER_SAMPLES);

  PerCPURecord *record = get_pristine_per_cpu_record();
  if (!record)
    return -1;
  if (!pid_information_exists(pid)) {
    increment_counter(COUNTER_UNKNOWN_PID);
    if (report_pid(ctx, pid, true))
      increment_metric(metricID_NumProcNew);
    return 0;
  }

  Trace *trace = &record->trace;
  trace->pid = pid;
  trace->tid = id & 0xffffffff;
  trace->ktime = bpf_ktime_get_ns();
  trace->origin = TRACE_ORIGIN_SAMPLING;
  if (bpf_get_current_comm(trace->comm, sizeof(trace->comm)) < 0)
    increment_metric(metricID_ErrBPFCurrentComm);
  if (!is_user_mode(&ctx->regs)) {
    trace->flags |= TRACE_KERNEL_MODE;
    collect_kernel_stack(ctx, trace);
  }

  u32 unwinder = PROG_UNWIND_STOP;
  bool found = false;
  ErrorCode error = get_user_registers(ctx, &record->state, &found);
  if (!error) {
    if (found)
      error = get_next_unwinder_after_native_frame(record, &unwinder);
    else
      increment_counter(COUNTER_NO_USER_REGS);
  }
  record->state.unwind_error = error;
  tail_call(ctx, record, unwinder);
  return 0;
}

#ifdef RUBYUNWIND_LEGACY

/* As many as fit 4096 instructions, and as many as a verifier walks in 100,000. */
enum { NATIVE_STEPS_PER_RUN = 4, NATIVE_STEPS_PER_LONG_RUN = 8, RUBY_STEPS_PER_RUN = 12 };
#define NATIVE_STEP INLINE

#else

enum { NATIVE_STEPS_PER_RUN = MAX_FRAME_UNWINDS, RUBY_STEPS_PER_RUN = FRAMES_PER_WALK_RUBY_STACK };

/*
 * One native step as a global function: the verifier looks at it once, however often it is called,
 * so that all native frames between two Ruby stacks are unwound in one run. Each bounce between
 * Ruby and C takes two of the few tail calls there are; native frames must not take more. Returns
 * the next unwinder; the error is in the record.
 */
#define NATIVE_STEP __attribute__((noinline))

#endif

NATIVE_STEP int take_native_step(void) {
  u32 unwinder = PROG_UNWIND_STOP;
  PerCPURecord *record = get_per_cpu_record();
  if (record)
    record->state.unwind_error = native_step(record, &unwinder);
  return unwinder;
}

/* What comes after native frames that led to `unwinder`. */
INLINE void leave_native(void *ctx, PerCPURecord *record, u32 unwinder) {
  Trace *trace = &record->trace;
  if (record->state.unwind_error == ERR_NATIVE_ZERO_PC)
    trace->flags |= TRACE_NATIVE_ROOT;
  /* The interpreter may have pushed a frame and not entered its loop for it: what is left of the
   * Ruby stack has no native frame then, and comes now. */
  if ((trace->flags & TRACE_NATIVE_ROOT) && (trace->flags & TRACE_RUBY_MET) &&
      !unwinder_is_done(record, PROG_UNWIND_RUBY))
    unwinder = PROG_UNWIND_RUBY;
  tail_call(ctx, record, unwinder);
}

SEC("perf_event")
int unwind_native(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  u32 unwinder = PROG_UNWIND_NATIVE;
  UNROLL_LEGACY
  for (int i = 0; i < NATIVE_STEPS_PER_RUN; i++) {
    unwinder = take_native_step();
    if (unwinder != PROG_UNWIND_NATIVE)
      break;
  }
  leave_native(ctx, record, unwinder);
  return 0;
}

#ifdef RUBYUNWIND_LEGACY

/* Takes the place of unwind_native from 5.2 on, where a program may be longer. */
SEC("?perf_event") /* the mark of what is loaded on request only */
int unwind_native_long(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  u32 unwinder = PROG_UNWIND_NATIVE;
  UNROLL_LEGACY
  for (int i = 0; i < NATIVE_STEPS_PER_LONG_RUN; i++) {
    unwinder = take_native_step();
    if (unwinder != PROG_UNWIND_NATIVE)
      break;
  }
  leave_native(ctx, record, unwinder);
  return 0;
}

#endif

SEC("perf_event")
int unwind_ruby(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  Trace *trace = &record->trace;
  u32 unwinder = get_next_unwinder_after_interpreter();
  ErrorCode error = ERR_OK;
  const RubyProcInfo *ruby = map_element(&ruby_procs, trace->pid);
  if (!ruby) {
    DEBUG_PRINT("no information on the Ruby of pid %d", trace->pid);
    increment_metric(metricID_UnwindRubyErrNoProcInfo);
    unwinder_mark_done(record, PROG_UNWIND_RUBY);
    error = ERR_RUBY_NO_PROC_INFO;
    unwinder = PROG_UNWIND_STOP;
    goto next;
  }
  increment_metric(metricID_UnwindRubyAttempts);
  trace->flags |= TRACE_RUBY_MET;

  if (!record->rubyUnwindState.stack_ptr) {
    u64 ec = 0;
    error = ruby_start(record, ruby, &ec);
    if (error) {
      unwinder = PROG_UNWIND_STOP;
      goto next;
    }
    if (!ec) {
      unwinder_mark_done(record, PROG_UNWIND_RUBY);
      goto next;
    }
  }
  UNROLL_LEGACY
  for (int i = 0; i < RUBY_STEPS_PER_RUN; i++) {
    error = ruby_step(record, ruby, &unwinder);
    if (unwinder != PROG_UNWIND_RUBY)
      break;
  }

next:
  /* An error of the native walk stands unless this one brought its own. */
  if (error)
    record->state.unwind_error = error;
  tail_call(ctx, record, unwinder);
  return 0;
}

SEC("perf_event")
int unwind_stop(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (record)
    finish_trace(ctx, record);
  return 0;
}

SEC("raw_tp/sched_process_exit")
int process_exit(struct raw_tracepoint_args *ctx) {
  u32 pid = bpf_get_current_pid_tgid() >> 32;
  if (!is_last_thread())
    return 0;
  stop_following(pid);
  if (pid_information_exists(pid) && report_pid(ctx, pid, false))
    increment_metric(metricID_NumProcExit);
  return 0;
}

/* After exec nothing of what user space knows about a process holds. */
SEC("raw_tp/sched_process_exec")
int process_exec(struct raw_tracepoint_args *ctx) {
  u32 pid = bpf_get_current_pid_tgid() >> 32;
  u32 *flags = map_element(&followed_pids, pid);
  if (flags)
    *flags &= ~(u32)FOLLOW_FROM_EXEC;
  if (pid_information_exists(pid))
    report_pid(ctx, pid, false);
  return 0;
}

/* A child is followed like its parent, and announced before its first sample. args: parent, child.
 */
SEC("raw_tp/sched_process_fork")
int process_fork(struct raw_tracepoint_args *ctx) {
  u32 parent = bpf_get_current_pid_tgid() >> 32;
  u32 flags = 0;
  const u32 *parent_flags = map_element(&followed_pids, parent);
  if (parent_flags)
    flags = *parent_flags;
  else if (!pid_information_exists(parent))
    return 0;
  u32 pid = 0;
  u32 tgid = 0;
  ids_of((const void *)ctx->args[1], &pid, &tgid);
  if (pid != tgid) /* a thread */
    return 0;
  if (flags) {
    if (!(flags & FOLLOW_CHILDREN))
      return 0;
    if (bpf_map_update_elem(&followed_pids, &pid, &flags, BPF_ANY)) {
      increment_counter(COUNTER_NOT_FOLLOWED);
      return 0;
    }
  }
  if (report_pid(ctx, pid, false))
    increment_metric(metricID_NumProcNew);
  return 0;
}

#ifdef RUBYUNWIND_LEGACY

/*
 * analyze_system shows user space a piece of kernel memory, at system_analysis.address (0: the
 * task_struct of the thread that runs this), when the process that asks runs it. User space looks
 * for known values there, to learn where this kernel keeps them. Loaded alone, for that moment.
 */
SEC("?perf_event")
int analyze_system(struct bpf_perf_event_data *ctx) {
  (void)ctx;
  SystemAnalysis *analysis = map_element(&system_analysis, 0);
  if (!analysis || analysis->pid != bpf_get_current_pid_tgid() >> 32)
    return 0;
  if (!analysis->address)
    analysis->address = bpf_get_current_task();
  if (!bpf_probe_read_kernel(analysis->code, sizeof(analysis->code),
                             (const void *)analysis->address))
    analysis->pid = 0; /* answered */
  return 0;
}

#endif
