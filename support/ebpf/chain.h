/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Handing a walk from program to program through the tail-call array, and how it ends. */
#pragma once
#include "events.h"

/* complete_trace says how the walk has ended, in the trace; false if that is not to be sent. */
INLINE bool complete_trace(void *ctx, const Walk *walk) {
  PerCPURecord *record = walk->record;
  Trace *trace = &record->trace;
  UnwindState *state = &record->state;

  if (trace->stack_len == 0 && trace->kernel_stack_id < 0 && state->unwind_error == ERR_OK) {
    state->unwind_error = ERR_EMPTY_STACK;
    increment_metric(metricID_ErrEmptyStack);
  }
  if (state->unwind_error != ERR_OK)
    push_error(walk, state->unwind_error);

  if (state->error_metric == metricID_UnwindNativeErrWrongTextSection) {
    /* Code we know nothing of: a mapping made since user space looked. */
    if (report_pid(ctx, trace->pid, true))
      increment_metric(metricID_NumUnknownPC);
  }
  if (state->error_metric >= 0)
    increment_metric(state->error_metric);

  if (trace->stack_len == 1 && trace->kernel_stack_id < 0 &&
      (walk->frames[0].kind & FRAME_MARKER_ERROR_BIT)) {
    const SystemConfig *config = map_element(&system_config, 0);
    if (config && config->drop_error_only_traces) {
      increment_counter(COUNTER_DROPPED_ERROR_ONLY);
      return false;
    }
  }
  return true;
}

/* finish_trace completes the record and sends it: the body of unwind_stop. */
INLINE void finish_trace(void *ctx, const Walk *walk) {
  if (complete_trace(ctx, walk))
    send_trace(ctx, walk);
}

/*
 * tail_call goes on with another program, within the limit that leaves room for unwind_stop. It
 * comes back only when slots are empty: the trace is then finished here, so that no sample gets
 * lost.
 */
INLINE void tail_call(void *ctx, PerCPURecord *record, u32 next) {
  if (record->tailCalls >= MAX_TAIL_CALLS && next != PROG_UNWIND_STOP) {
    next = PROG_UNWIND_STOP;
    record->state.unwind_error = ERR_MAX_TAIL_CALLS;
    increment_metric(metricID_MaxTailCalls);
  }
  record->tailCalls += 1;
  bpf_tail_call(ctx, &progs, next);

  DEBUG_PRINT("slot %d of progs is empty", next);
  increment_counter(COUNTER_EMPTY_SLOT);
  record->trace.flags |= TRACE_EMPTY_SLOT;
  if (next != PROG_UNWIND_STOP) {
    if (record->state.unwind_error == ERR_OK)
      record->state.unwind_error = ERR_UNREACHABLE;
    bpf_tail_call(ctx, &progs, PROG_UNWIND_STOP);
  }
  const Walk walk = chain_walk(record);
  finish_trace(ctx, &walk);
}
