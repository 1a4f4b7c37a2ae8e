/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The record of a walk, its metrics, and how frames get into a trace and a trace to user space. */
#pragma once
#include "maps.h"

/*
 * What the steps of a walk work on; all steps are inline, so nothing of this is there when they
 * run. The chain has the frozen record, of 128 frames. The walker has room for more, reads windows
 * instead of single words, and keeps the mapping and the instruction sequences that it met.
 */
typedef struct Walk {
  PerCPURecord *record;
  Frame *frames;
  u32 max_frames; /* there is room for; the last one is for an error */
  Windows *windows;
  MappingCache *mapping;
  IseqCache *cache;
} Walk;

INLINE Walk chain_walk(PerCPURecord *record) {
  return (Walk){.record = record, .frames = record->trace.frames, .max_frames = MAX_FRAME_UNWINDS};
}

INLINE void increment_metric(u32 id) {
  u64 *count = map_element(&metrics, id);
  if (count)
    ++*count;
}

INLINE void increment_counter(u32 id) {
  u64 *count = map_element(&counters, id);
  if (count)
    ++*count;
}

/* Never NULL: the map has its one entry. The check that callers make is for the verifier. */
INLINE PerCPURecord *get_per_cpu_record(void) { return map_element(&per_cpu_records, 0); }

/* Sets back all that a walk reads, so that no register of the last sample is left. */
INLINE void make_pristine(PerCPURecord *record) {
  UnwindState *state = &record->state;
  state->pc = 0;
  state->sp = 0;
  state->fp = 0;
#if defined(__x86_64__)
  state->rax = 0;
  state->r9 = 0;
  state->r11 = 0;
  state->r13 = 0;
  state->r15 = 0;
#elif defined(__aarch64__)
  state->lr = 0;
  state->r22 = 0;
  state->lr_invalid = false;
#endif
  state->text_section_id = 0;
  state->text_section_offset = 0;
  state->text_section_bias = 0;
  state->error_metric = -1;
  state->unwind_error = ERR_OK;
  state->return_address = false;

  record->perlUnwindState.stackinfo = NULL;
  record->perlUnwindState.cop = NULL;
  record->perlUnwindState.cxbase = NULL;
  record->perlUnwindState.cxcur = NULL;
  record->pythonUnwindState.py_frame = NULL;
  record->phpUnwindState.zend_execute_data = NULL;
  record->rubyUnwindState.stack_ptr = NULL;
  record->rubyUnwindState.last_stack_frame = NULL;
  record->unwindersDone = 0;
  record->tailCalls = 0;
  record->ratelimitAction = RATELIMIT_ACTION_DEFAULT;

  Trace *trace = &record->trace;
  trace->pid = 0;
  trace->tid = 0;
  trace->ktime = 0;
  trace->apm_transaction_id.as_int = 0;
  trace->apm_trace_id.as_int.lo = 0;
  trace->apm_trace_id.as_int.hi = 0;
  trace->kernel_stack_id = -1;
  trace->stack_len = 0;
  trace->origin = TRACE_ORIGIN_UNKNOWN;
  trace->flags = 0;
  trace->offtime = 0;
}

INLINE bool unwinder_is_done(const PerCPURecord *record, u32 unwinder) {
  return (record->unwindersDone & (1U << (unwinder & 31))) != 0;
}

INLINE void unwinder_mark_done(PerCPURecord *record, u32 unwinder) {
  record->unwindersDone |= 1U << (unwinder & 31);
}

/* push_with_max_frames appends a frame unless the trace has max_frames already. */
INLINE ErrorCode push_with_max_frames(const Walk *walk, u64 file_id, u64 addr_or_line, u8 kind,
                                      u8 return_address, u64 method_entry, u32 max_frames) {
  Trace *trace = &walk->record->trace;
  u64 length = trace->stack_len;
  /* Keeps clang from checking one copy of the length and indexing with another. */
  asm volatile("" : "+r"(length));
#ifndef RUBYUNWIND_LEGACY
  if (walk->windows && kind != FRAME_MARKER_ABORT &&
      length + 1 >= ((WalkRecord *)walk->record)->max_frames)
    max_frames = 0; /* fewer were asked for */
#endif
  if (length >= max_frames) {
    increment_metric(metricID_UnwindErrStackLengthExceeded);
    return ERR_STACK_LENGTH_EXCEEDED;
  }
  Frame *frame = &walk->frames[length];
  frame->file_id = file_id;
  frame->addr_or_line = addr_or_line;
  /* The last word at once: kind, return_address, and 48 bits of pad. */
  *(u64 *)&frame->kind = (u64)kind | (u64)return_address << 8 | method_entry << 16;
  trace->stack_len = length + 1;
  return ERR_OK;
}

INLINE ErrorCode push(const Walk *walk, u64 file_id, u64 addr_or_line, u8 kind) {
  return push_with_max_frames(walk, file_id, addr_or_line, kind, 0, 0, walk->max_frames - 1);
}

/* The abort frame has the last place, which no other frame may take. */
INLINE ErrorCode push_error(const Walk *walk, ErrorCode error) {
  return push_with_max_frames(walk, UNKNOWN_FILE, error, FRAME_MARKER_ABORT, 0, 0,
                              walk->max_frames);
}

/* output sends a trace: `head` bytes, and `length` frames behind them. */
INLINE void output(void *ctx, void *trace, u64 head, u64 length, u64 most) {
  asm volatile("" : "+r"(length));
  if (length > most)
    return; /* cannot be: pushing is bounded */
  long error = bpf_perf_event_output(ctx, &trace_events, BPF_F_CURRENT_CPU, trace,
                                     head + sizeof(Frame) * length);
  /* Records that the kernel reports as lost come late; this is the count that holds. */
  increment_counter(error ? COUNTER_OUTPUT_FAILED : COUNTER_SENT);
}

/* send_trace hands over the trace, cut after its last frame. */
INLINE void send_trace(void *ctx, const Walk *walk) {
  Trace *trace = &walk->record->trace;
#ifndef RUBYUNWIND_LEGACY
  if (walk->windows) {
    WalkRecord *deep = (WalkRecord *)walk->record;
    __builtin_memcpy(deep->head, trace, sizeof(deep->head));
    output(ctx, deep->head, sizeof(deep->head), trace->stack_len, MAX_DEEP_FRAMES);
    return;
  }
#endif
  output(ctx, trace, offsetof(Trace, frames), trace->stack_len, MAX_FRAME_UNWINDS);
}
