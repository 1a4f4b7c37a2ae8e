/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One native frame: push it, find its row in the unwind tables, compute the caller's registers. */
#pragma once
#include "flat_rows.h"
#include "mappings.h"
#include "stack_deltas.h"
#include "windows.h"

/* Values a rule yields; 0 stands for "not known". */

INLINE u64 base_of_rule(const UnwindState *state, u64 cfa, u8 opcode, s32 param) {
  switch (opcode & ~UNWIND_OPCODEF_DEREF) {
  case UNWIND_OPCODE_BASE_CFA:
    return cfa;
  case UNWIND_OPCODE_BASE_SP:
    return state->sp;
  case UNWIND_OPCODE_BASE_FP:
    return state->fp;
#if defined(__aarch64__)
  case UNWIND_OPCODE_BASE_LR:
    return state->lr;
#elif defined(__x86_64__)
  case UNWIND_OPCODE_BASE_REG:
    switch (param & UNWIND_REG_MASK) { /* DWARF register numbers */
    case 0:
      return state->rax;
    case 9:
      return state->r9;
    case 11:
      return state->r11;
    case 15:
      return state->r15;
    }
    return 0;
#endif
  }
  (void)param;
  return 0;
}

INLINE u64 evaluate_rule(const Walk *walk, u64 cfa, u8 opcode, s32 param) {
  const UnwindState *state = &walk->record->state;
  u64 base = base_of_rule(state, cfa, opcode, param);
  if (!base)
    return 0;
#if defined(__x86_64__)
  if (opcode == UNWIND_OPCODE_BASE_REG)
    return base + ((param & ~UNWIND_REG_MASK) >> 1);
#endif
  if (!(opcode & UNWIND_OPCODEF_DEREF))
    return base + (s64)param;

  s64 before = param & ~UNWIND_DEREF_MASK;
  s64 after = (param & UNWIND_DEREF_MASK) * UNWIND_DEREF_MULTIPLIER;
  u64 value = 0;
  if (read_stack_word(walk, &value, base + before))
    return 0;
  return value + after;
}

/* scratch_of gives the record's buffer for the registers a signal frame has saved. */
INLINE u64 *scratch_of(PerCPURecord *record) { return record->rubyUnwindScratch.signal_regs; }

#if defined(__x86_64__)

enum {
  /* struct rt_sigframe of x86_64: where uc_mcontext (struct sigcontext) lies above the stack
   * pointer of the trampoline, in bytes, and how many words of it we read (r8 .. flags). */
  SIGCONTEXT_OFFSET = 40,
  SIGCONTEXT_WORDS = 18
};

INLINE ErrorCode step_signal_frame(PerCPURecord *record) {
  UnwindState *state = &record->state;
  u64 *regs = scratch_of(record);
  if (read_user(regs, SIGCONTEXT_WORDS * sizeof(u64), state->sp + SIGCONTEXT_OFFSET)) {
    increment_metric(metricID_UnwindNativeErrPCRead);
    return ERR_NATIVE_PC_READ;
  }
  /* Order of struct sigcontext: r8..r15, di, si, bp, bx, dx, ax, cx, sp, ip, flags. */
  state->r9 = regs[1];
  state->r11 = regs[3];
  state->r13 = regs[5];
  state->r15 = regs[7];
  state->fp = regs[10];
  state->rax = regs[13];
  state->sp = regs[15];
  state->pc = regs[16];
  state->return_address = false; /* interrupted there, not called from there */
  return ERR_OK;
}

INLINE u64 plt_cfa(const UnwindState *state) {
  /* A PLT entry is 16 bytes: push of the index at 6, jump at 11; so one word more from 11 on. */
  return state->sp + 8 + (((state->pc & 15) >= 11) ? 8 : 0);
}

INLINE ErrorCode step_by_rule(const Walk *walk, const UnwindInfo *rule, s32 param) {
  UnwindState *state = &walk->record->state;
  u64 cfa = rule ? evaluate_rule(walk, 0, rule->opcode, param) : plt_cfa(state);
  u64 pc = 0;
  if (!cfa || read_stack_word(walk, &pc, cfa - 8))
    goto unreadable;
  if (rule) {
    u64 saved = evaluate_rule(walk, cfa, rule->fpOpcode, rule->fpParam);
    if (saved) {
      u64 fp = 0;
      if (read_stack_word(walk, &fp, saved))
        goto unreadable;
      state->fp = fp;
    } else if (rule->opcode == UNWIND_OPCODE_BASE_FP) {
      state->fp = 0; /* the frame used rbp and did not save it: outermost */
    }
  }
  state->pc = pc;
  state->sp = cfa;
  state->return_address = true;
  return ERR_OK;

unreadable:
  increment_metric(metricID_UnwindNativeErrPCRead);
  return ERR_NATIVE_PC_READ;
}

#elif defined(__aarch64__)

enum {
  /* struct rt_sigframe of arm64: siginfo (128), then uc_mcontext's regs at 184 of the ucontext. */
  SIGCONTEXT_OFFSET = 312,
  SIGCONTEXT_WORDS = 34
};

INLINE ErrorCode step_signal_frame(PerCPURecord *record) {
  UnwindState *state = &record->state;
  u64 *regs = scratch_of(record);
  if (read_user(regs, SIGCONTEXT_WORDS * sizeof(u64), state->sp + SIGCONTEXT_OFFSET)) {
    increment_metric(metricID_UnwindNativeErrPCRead);
    return ERR_NATIVE_PC_READ;
  }
  /* x0..x30, sp, pc, pstate. (struct sigcontext begins with fault_address, which the offset skips.)
   */
  state->r22 = regs[22];
  state->fp = regs[29];
  state->lr = regs[30];
  state->sp = regs[31];
  state->pc = regs[32];
  state->return_address = false;
  state->lr_invalid = false;
  return ERR_OK;
}

INLINE u64 strip_pac(u64 address) {
  const SystemConfig *config = map_element(&system_config, 0);
  return config && config->inverse_pac_mask ? address & config->inverse_pac_mask : address;
}

/*
 * On aarch64 fpOpcode and fpParam say where the return address is. With UNWIND_OPCODEF_FRAME, and
 * always eight bytes above a base, it is the second half of a frame record: the caller's frame
 * pointer lies below it.
 */
INLINE ErrorCode step_by_rule(const Walk *walk, const UnwindInfo *rule, s32 param) {
  UnwindState *state = &walk->record->state;
  if (!rule) { /* no PLT command here: its entries keep the return address in lr */
    increment_metric(metricID_UnwindNativeErrStackDeltaInvalid);
    return ERR_NATIVE_STACK_DELTA_INVALID;
  }
  u64 pc = 0;
  u64 cfa = evaluate_rule(walk, 0, rule->opcode, param);
  if (!cfa)
    goto unreadable;
  if (rule->fpOpcode == UNWIND_OPCODE_BASE_LR) {
    /* lr holds it: true in the leaf frame and in one that a signal interrupted, nowhere else. */
    if (state->lr_invalid) {
      increment_metric(metricID_UnwindNativeErrLrUnwindingMidTrace);
      return ERR_NATIVE_LR_UNWINDING_MID_TRACE;
    }
    if (state->lr == 0) {
      increment_metric(metricID_UnwindNativeLr0);
      goto unreadable;
    }
    pc = state->lr;
  } else {
    u8 opcode = rule->fpOpcode;
    u64 saved = evaluate_rule(walk, cfa, opcode & ~UNWIND_OPCODEF_FRAME, rule->fpParam);
    if (!saved || read_stack_word(walk, &pc, saved))
      goto unreadable;
    u64 fp = 0;
    if (((opcode & UNWIND_OPCODEF_FRAME) || rule->fpParam == 8) &&
        !read_stack_word(walk, &fp, saved - 8))
      state->fp = fp;
  }
  state->pc = strip_pac(pc);
  state->sp = cfa;
  state->return_address = true;
  state->lr_invalid = true;
  return ERR_OK;

unreadable:
  increment_metric(metricID_UnwindNativeErrPCRead);
  return ERR_NATIVE_PC_READ;
}

#endif

/* Code that a just-in-time compiler made has one rule for all of it, in place of a file. */
INLINE bool is_jit_code(u64 file_id) { return (file_id & ~JIT_RULE_MASK) == JIT_FILE_ID; }

/* step_out_of_frame replaces the state's registers by those of the caller; *stop: there is none. */
INLINE ErrorCode step_out_of_frame(const Walk *walk, bool *stop) {
  PerCPURecord *record = walk->record;
  UnwindState *state = &record->state;
  u32 info = 0;
  u32 distance = 0;
  u64 offset = state->text_section_offset - (state->return_address ? 1 : 0);
  ErrorCode error = ERR_OK;
  if (is_jit_code(state->text_section_id)) {
    info = state->text_section_id & JIT_RULE_MASK;
    goto found;
  }
#ifndef RUBYUNWIND_LEGACY
  if (walk->mapping)
    error = find_flat_row(walk, offset, &info, &distance);
  else
#endif
    error = find_stack_delta(&record->rubyUnwindScratch.row_search, state->text_section_id, offset,
                             &info, &distance);
  if (error)
    return error;

found:
  if (info & STACK_DELTA_COMMAND_FLAG) {
    switch (info & ~(u32)STACK_DELTA_COMMAND_FLAG) {
    case UNWIND_COMMAND_STOP:
      increment_metric(metricID_UnwindNativeStackDeltaStop);
      *stop = true;
      return ERR_OK;
    case UNWIND_COMMAND_SIGNAL:
      return step_signal_frame(record);
    case UNWIND_COMMAND_PLT:
      return step_by_rule(walk, NULL, 0);
    default:
      DEBUG_PRINT("invalid row for %llx of file %llx", offset, state->text_section_id);
      increment_metric(metricID_UnwindNativeErrStackDeltaInvalid);
      return ERR_NATIVE_STACK_DELTA_INVALID;
    }
  }
  const UnwindInfo *rule = map_element(&unwind_info_array, info);
  if (!rule) {
    increment_metric(metricID_UnwindNativeErrBadUnwindInfoIndex);
    return ERR_NATIVE_BAD_UNWIND_INFO_INDEX;
  }
  /* Two rows a byte or two apart (a push) were merged: behind the second address CFA is a word off.
   * Added unsigned: in a damaged rule the sum may not fit. */
  s32 param = rule->param;
  u8 merge = rule->mergeOpcode;
  if (merge && distance >= (merge & ~(u32)MERGEOPCODE_NEGATIVE))
    param = (s32)((u32)param + ((merge & MERGEOPCODE_NEGATIVE) ? -8 : 8));
  return step_by_rule(walk, rule, param);
}

/*
 * native_step pushes the frame that the state describes, steps out of it and names the unwinder of
 * the next one: PROG_UNWIND_NATIVE again, an interpreter, or PROG_UNWIND_STOP at the root or with
 * an error.
 */
INLINE ErrorCode native_step(const Walk *walk, u32 *unwinder) {
  PerCPURecord *record = walk->record;
  UnwindState *state = &record->state;
  Trace *trace = &record->trace;
  *unwinder = PROG_UNWIND_STOP;

  increment_metric(metricID_UnwindNativeAttempts);
  u8 marker = is_jit_code(state->text_section_id) ? FRAME_MARKER_RUBY_JIT : FRAME_MARKER_NATIVE;
  ErrorCode error = push_with_max_frames(walk, state->text_section_id, state->text_section_offset,
                                         marker, state->return_address, 0, walk->max_frames - 1);
  if (error)
    return error;
  increment_metric(metricID_UnwindNativeFrames);

  bool stop = false;
  error = step_out_of_frame(walk, &stop);
  if (error)
    return error;
  if (stop) {
    trace->flags |= TRACE_NATIVE_ROOT;
    return ERR_OK;
  }
  error = get_next_unwinder_after_native_frame(walk, unwinder);
#if defined(__x86_64__) && !defined(RUBYUNWIND_LEGACY)
  /* For some calls (of a Hash literal) YJIT has pushed a value twice, which its one rule does not
   * know: then what it leads to is no return address. */
  if (error == ERR_NATIVE_NO_PID_PAGE_MAPPING && marker == FRAME_MARKER_RUBY_JIT &&
      !read_stack_word(walk, &state->pc, state->sp + 8)) {
    state->sp += 16;
    state->error_metric = -1;
    error = get_next_unwinder_after_native_frame(walk, unwinder);
  }
#endif
  return error;
}
