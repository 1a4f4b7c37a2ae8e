/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs. Each is found by its function name; all perf programs share one section name. */
#include "chain.h"
#include "native_step.h"
#include "ruby_step.h"
#include "user_regs.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* push_kernel_stack puts kernel frames into the record itself; they are its first. They come
 * through a window that holds nothing yet, where there is one. */
INLINE void push_kernel_stack(void *ctx, const Walk *walk) {
  Trace *trace = &walk->record->trace;
  struct kernel_stack *stack = walk->windows ? (struct kernel_stack *)walk->windows->stack
                                             : map_element(&kernel_stack_scratch, 0);
  if (!stack)
    return;
  long bytes = bpf_get_stack(ctx, stack, sizeof(*stack), 0);
  if (bytes <= 0)
    return;
  UNROLL_LEGACY
  for (u32 i = 0; i < PERF_MAX_STACK_DEPTH; i++) /* all that a trace has room for */
    walk->frames[i] = (Frame){.addr_or_line = stack->pcs[i], .kind = FRAME_MARKER_KERNEL};
  trace->stack_len = (u64)bytes / sizeof(u64);
  trace->flags |= TRACE_KERNEL_INLINE;
}

/*
 * collect_kernel_stack stores the kernel stack under an id. Without BPF_F_REUSE_STACKID the kernel
 * keeps what is there when two stacks collide, so an id never changes its meaning; the newcomer's
 * frames travel in its own record instead.
 */
INLINE void collect_kernel_stack(struct bpf_perf_event_data *ctx, const Walk *walk) {
  Trace *trace = &walk->record->trace;
  enum { EEXIST = 17 };
  long id = bpf_get_stackid(ctx, &kernel_stackmap, 0);
  if (id == -EEXIST) {
    increment_counter(COUNTER_KERNEL_STACK_COLLISION);
    push_kernel_stack(ctx, walk);
    id = -1;
  }
  trace->kernel_stack_id = id;
}

/* begin_sample counts a sample and says whether its stack is to be taken: not of a process that
 * user space has yet to register, and is told about. */
INLINE bool begin_sample(struct bpf_perf_event_data *ctx, u64 id) {
  u32 pid = id >> 32;
  if (pid == 0 || !is_followed(pid))
    return false;
  increment_counter(COUNTER_SAMPLES);
  if (pid_information_exists(pid))
    return true;
  increment_counter(COUNTER_UNKNOWN_PID);
  if (report_pid(ctx, pid, true))
    increment_metric(metricID_NumProcNew);
  return false;
}

/*
 * Whether the Ruby stack of the sampled thread may be walked although no native frame has led to
 * it: where its execution context is the thread's own.
 */
INLINE bool ruby_needs_no_native_frame(const Trace *trace) {
#ifndef RUBYUNWIND_LEGACY /* there is no room for it */
  const RubyTLSInfo *tls = map_element(&ruby_tls, trace->pid);
  if (tls && tls->kind != RUBY_TLS_NONE)
    return true;
#endif
  return trace->flags & TRACE_RUBY_MET;
}

/*
 * leave_native returns what comes after native frames that led to `unwinder`. The interpreter may
 * have pushed a frame and not entered its loop for it: what is left of the Ruby stack at the native
 * root has no native frame then, and comes now. So does all of it where the native walk has failed.
 */
INLINE u32 leave_native(PerCPURecord *record, u32 unwinder) {
  Trace *trace = &record->trace;
  ErrorCode error = record->state.unwind_error;
  bool met = trace->flags & TRACE_RUBY_MET;
  if (error == ERR_NATIVE_ZERO_PC) {
    trace->flags |= TRACE_NATIVE_ROOT;
  } else if (error != ERR_OK && error != ERR_STACK_LENGTH_EXCEEDED &&
             ruby_needs_no_native_frame(trace)) {
    trace->flags |= TRACE_NATIVE_LOST;
    met = true;
  }
  if (met && (trace->flags & NATIVE_WALK_IS_OVER) && !unwinder_is_done(record, PROG_UNWIND_RUBY))
    unwinder = PROG_UNWIND_RUBY;
  return unwinder;
}

/* An error of the Ruby walk. That of a native walk which failed before it stands. */
INLINE void ruby_failed(PerCPURecord *record, ErrorCode error) {
  if (!(record->trace.flags & TRACE_NATIVE_LOST))
    record->state.unwind_error = error;
}

/* begin_head fills the head of a trace. */
INLINE void begin_head(PerCPURecord *record, u64 id, TraceOrigin origin) {
  make_pristine(record);
  Trace *trace = &record->trace;
  trace->pid = id >> 32;
  trace->tid = id & 0xffffffff;
  trace->ktime = bpf_ktime_get_ns();
  trace->origin = origin;
  if (bpf_get_current_comm(trace->comm, sizeof(trace->comm)) < 0)
    increment_metric(metricID_ErrBPFCurrentComm);
}

/* begin_user_frames returns the unwinder of the innermost one; `found` are registers of it. */
INLINE u32 begin_user_frames(const Walk *walk, bool found, ErrorCode error) {
  PerCPURecord *record = walk->record;
  u32 unwinder = PROG_UNWIND_STOP;
  if (!error) {
    if (found)
      error = get_next_unwinder_after_native_frame(walk, &unwinder);
    else
      increment_counter(COUNTER_NO_USER_REGS);
  }
  record->state.unwind_error = error;
  return error ? leave_native(record, unwinder) : unwinder;
}

/* begin_trace begins the trace of a sample and returns the unwinder of the innermost user frame. */
INLINE u32 begin_trace(struct bpf_perf_event_data *ctx, const Walk *walk, u64 id) {
  PerCPURecord *record = walk->record;
  begin_head(record, id, TRACE_ORIGIN_SAMPLING);
  Trace *trace = &record->trace;
  if (!is_user_mode(&ctx->regs)) {
    trace->flags |= TRACE_KERNEL_MODE;
    if (walk->windows) /* a deep trace has room for them */
      push_kernel_stack(ctx, walk);
    else
      collect_kernel_stack(ctx, walk);
  }

  bool found = false;
  ErrorCode error = get_user_registers(ctx, record, &found);
  return begin_user_frames(walk, found, error);
}

SEC("perf_event")
int native_tracer_entry(struct bpf_perf_event_data *ctx) {
  u64 id = current_ids();
  if (!begin_sample(ctx, id))
    return 0;
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  const Walk walk = chain_walk(record);
  tail_call(ctx, record, begin_trace(ctx, &walk, id));
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
  if (record) {
    const Walk walk = chain_walk(record);
    record->state.unwind_error = native_step(&walk, &unwinder);
  }
  return unwinder;
}

/* take_native_steps goes on until another unwinder is due, or `most` steps are taken; returns the
 * next one. */
INLINE u32 take_native_steps(int most) {
  u32 unwinder = PROG_UNWIND_NATIVE;
  UNROLL_LEGACY
  for (int i = 0; i < most; i++) {
    unwinder = take_native_step();
    if (unwinder != PROG_UNWIND_NATIVE)
      break;
  }
  return unwinder;
}

SEC("perf_event")
int unwind_native(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  tail_call(ctx, record, leave_native(record, take_native_steps(NATIVE_STEPS_PER_RUN)));
  return 0;
}

#ifdef RUBYUNWIND_LEGACY

/* Takes the place of unwind_native from 5.2 on, where a program may be longer. */
SEC("?perf_event") /* the mark of what is loaded on request only */
int unwind_native_long(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  tail_call(ctx, record, leave_native(record, take_native_steps(NATIVE_STEPS_PER_LONG_RUN)));
  return 0;
}

#endif

/*
 * begin_ruby begins, or goes on with, the Ruby stack of the sampled thread. Returns
 * PROG_UNWIND_RUBY if there is a control frame to step to, else who goes on; the error is in the
 * record.
 */
INLINE u32 begin_ruby(const Walk *walk, const RubyProcInfo *ruby) {
  PerCPURecord *record = walk->record;
  increment_metric(metricID_UnwindRubyAttempts);
  record->trace.flags |= TRACE_RUBY_MET;
  if (record->rubyUnwindState.stack_ptr)
    return PROG_UNWIND_RUBY;
  u64 ec = 0;
  ErrorCode error = ruby_start(walk, ruby, &ec);
  if (error) {
    ruby_failed(record, error);
    return PROG_UNWIND_STOP;
  }
  if (ec)
    return PROG_UNWIND_RUBY;
  unwinder_mark_done(record, PROG_UNWIND_RUBY);
  return get_next_unwinder_after_interpreter(record);
}

/* A process whose Ruby user space has told nothing about. */
INLINE void no_ruby_info(PerCPURecord *record) {
  DEBUG_PRINT("no information on the Ruby of pid %d", record->trace.pid);
  increment_metric(metricID_UnwindRubyErrNoProcInfo);
  unwinder_mark_done(record, PROG_UNWIND_RUBY);
  record->state.unwind_error = ERR_RUBY_NO_PROC_INFO;
}

SEC("perf_event")
int unwind_ruby(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (!record)
    return -1;
  const Walk walk = chain_walk(record);
  u32 unwinder = PROG_UNWIND_STOP;
  const RubyProcInfo *ruby = map_element(&ruby_procs, record->trace.pid);
  if (!ruby) {
    no_ruby_info(record);
    goto next;
  }
  unwinder = begin_ruby(&walk, ruby);
  if (unwinder != PROG_UNWIND_RUBY)
    goto next;
  UNROLL_LEGACY
  for (int i = 0; i < RUBY_STEPS_PER_RUN; i++) {
    ErrorCode error = ruby_step(&walk, ruby, &unwinder);
    /* An error of the native walk stands unless this one brought its own. */
    if (error)
      ruby_failed(record, error);
    if (unwinder != PROG_UNWIND_RUBY)
      break;
  }

next:
  tail_call(ctx, record, unwinder);
  return 0;
}

SEC("perf_event")
int unwind_stop(struct bpf_perf_event_data *ctx) {
  PerCPURecord *record = get_per_cpu_record();
  if (record) {
    const Walk walk = chain_walk(record);
    finish_trace(ctx, &walk);
  }
  return 0;
}

#ifndef RUBYUNWIND_LEGACY

/* ---- the walker: entry, unwinders and stop in one ---- */

/* Steps a call of take_steps takes, and how many calls there are: more frames than a trace holds.
 */
enum { STEPS_PER_CALL = 4, MAX_CALLS = 1500 };

/* The walk that a slot of walk_records and iseq_cache is for: one of a CPU. */
INLINE bool walk_of(u32 slot, Walk *walk) {
  WalkRecord *record = map_element(&walk_records, slot);
  IseqCache *cache = map_element(&iseq_cache, slot);
  if (!record || !cache)
    return false;
  *walk = (Walk){.record = &record->record,
                 .frames = record->frames,
                 .max_frames = MAX_DEEP_FRAMES,
                 .windows = &record->windows,
                 .mapping = &record->mapping,
                 .cache = cache};
  return true;
}

/* Ruby frames begin or go on: the process's layout is copied, as looking it up costs as much as a
 * frame. */
INLINE u32 enter_ruby(const Walk *walk, WalkRecord *record) {
  const RubyProcInfo *ruby = map_element(&ruby_procs, record->record.trace.pid);
  if (!ruby) {
    no_ruby_info(&record->record);
    return PROG_UNWIND_STOP;
  }
  record->ruby = *ruby;
  return begin_ruby(walk, &record->ruby);
}

/* One frame, native or Ruby; the unwinder of the next one is in the record. */
INLINE u32 take_step(const Walk *walk, WalkRecord *record) {
  u32 unwinder = record->unwinder;
  if (unwinder == PROG_UNWIND_NATIVE) {
    record->record.state.unwind_error = native_step(walk, &unwinder);
    if (unwinder != PROG_UNWIND_NATIVE) {
      unwinder = leave_native(walk->record, unwinder);
      if (unwinder == PROG_UNWIND_RUBY)
        unwinder = enter_ruby(walk, record);
    }
  } else {
    ErrorCode error = ruby_step(walk, &record->ruby, &unwinder);
    if (error)
      ruby_failed(&record->record, error);
  }
  record->unwinder = unwinder;
  return unwinder;
}

/*
 * Some steps, as a global function, which the verifier looks at once, however often it is called:
 * so the loop around it may have as many rounds as the deepest stack takes. Returns the next
 * unwinder.
 */
__attribute__((noinline)) int take_steps(u32 slot) {
  Walk walk;
  u32 unwinder = PROG_UNWIND_STOP;
  if (!walk_of(slot, &walk))
    return unwinder;
  for (int i = 0; i < STEPS_PER_CALL; i++) {
    unwinder = take_step(&walk, (WalkRecord *)walk.record);
    if (unwinder == PROG_UNWIND_STOP)
      break;
  }
  return unwinder;
}

/* Nothing of the last walk is left that this one would believe. */
INLINE void clear_walk(WalkRecord *record) {
  const WalkerConfig *config = map_element(&walker_config, 0);
  u32 max_frames = config ? config->max_frames : 0;
  record->max_frames = max_frames ? max_frames : MAX_DEEP_FRAMES;
  record->mapping.mapping.start = record->mapping.mapping.end = 0;
  record->windows.control_frames_bounds.bytes = 0;
  record->windows.env_bounds.bytes = 0;
  record->windows.stack_bounds.bytes = 0;
}

/* `unwinder` is that of the innermost user frame. */
INLINE void begin_steps(const Walk *walk, WalkRecord *record, u32 unwinder) {
  record->unwinder = unwinder == PROG_UNWIND_RUBY ? enter_ruby(walk, record) : unwinder;
}

/* begin_walk begins a trace; false if there is none to be taken. */
INLINE bool begin_walk(struct bpf_perf_event_data *ctx, u32 slot, Walk *walk) {
  u64 id = current_ids();
  if (!begin_sample(ctx, id) || !walk_of(slot, walk))
    return false;
  WalkRecord *record = (WalkRecord *)walk->record;
  clear_walk(record);
  begin_steps(walk, record, begin_trace(ctx, walk, id));
  return true;
}

/* A walk that has not ended by now has taken more steps than there are frames. */
INLINE void end_walk(const Walk *walk) {
  WalkRecord *record = (WalkRecord *)walk->record;
  if (record->unwinder != PROG_UNWIND_STOP)
    record->record.state.unwind_error = ERR_STACK_LENGTH_EXCEEDED;
}

INLINE void take_all_steps(const Walk *walk, u32 slot) {
  if (((WalkRecord *)walk->record)->unwinder != PROG_UNWIND_STOP)
    for (int i = 0; i < MAX_CALLS; i++)
      if (take_steps(slot) == PROG_UNWIND_STOP)
        break;
  end_walk(walk);
}

SEC("?perf_event")
int native_tracer_walker(struct bpf_perf_event_data *ctx) {
  Walk walk;
  u32 slot = bpf_get_smp_processor_id();
  if (!begin_walk(ctx, slot, &walk))
    return 0;
  take_all_steps(&walk, slot);
  finish_trace(ctx, &walk);
  return 0;
}

#ifdef __bpf__

static long take_step_in_loop(u64 index, void *context) {
  (void)index;
  Walk walk;
  return !walk_of(*(u32 *)context, &walk) ||
         take_step(&walk, (WalkRecord *)walk.record) == PROG_UNWIND_STOP;
}

INLINE void loop_over_all_steps(const Walk *walk, u32 slot) {
  if (((WalkRecord *)walk->record)->unwinder != PROG_UNWIND_STOP)
    bpf_loop(STEPS_PER_CALL * MAX_CALLS, take_step_in_loop, &slot, 0);
  end_walk(walk);
}

/* Takes the place of native_tracer_walker where the kernel has bpf_loop (5.17): it is verified, and
 * so loaded, in half the time. */
SEC("?perf_event")
int native_tracer_walker_loop(struct bpf_perf_event_data *ctx) {
  Walk walk;
  u32 slot = bpf_get_smp_processor_id();
  if (!begin_walk(ctx, slot, &walk))
    return 0;
  loop_over_all_steps(&walk, slot);
  finish_trace(ctx, &walk);
  return 0;
}

#include "off_cpu.h"

#endif

#endif

SEC("raw_tp/sched_process_exit")
int process_exit(struct raw_tracepoint_args *ctx) {
  u32 pid = current_ids() >> 32;
  if (!pid || !is_last_thread()) /* 0: user space does not see it */
    return 0;
  stop_following(pid);
  bpf_map_delete_elem(&reported_pids, &pid);
  if (pid_information_exists(pid) && report_pid(ctx, pid, false))
    increment_metric(metricID_NumProcExit);
  return 0;
}

/* After exec nothing of what user space knows about a process holds. */
SEC("raw_tp/sched_process_exec")
int process_exec(struct raw_tracepoint_args *ctx) {
  u32 pid = current_ids() >> 32;
  u32 *flags = pid ? map_element(&followed_pids, pid) : NULL;
  if (flags)
    *flags &= ~(u32)(FOLLOW_FROM_EXEC | FOLLOW_NEVER);
  if (pid_information_exists(pid))
    report_pid(ctx, pid, false);
  return 0;
}

/*
 * A child is followed like its parent, and announced before its first sample. Where all processes
 * are sampled, that is done for what a Ruby forks: anything else is announced when it is sampled.
 * args: parent, child.
 */
SEC("raw_tp/sched_process_fork")
int process_fork(struct raw_tracepoint_args *ctx) {
  u32 parent = current_ids() >> 32;
  u32 flags = 0;
  if (!parent)
    return 0;
  const u32 *parent_flags = map_element(&followed_pids, parent);
  if (parent_flags)
    flags = *parent_flags & ~(u32)FOLLOW_NEVER;
  if (!flags && !map_element(&ruby_procs, parent))
    return 0;
  u64 ids = ids_of((const void *)ctx->args[1]);
  u32 pid = ids >> 32;
  if (!pid || pid != (u32)ids) /* not seen, or a thread */
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
