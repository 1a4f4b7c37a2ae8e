/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The registers that user code had when the CPU was sampled, wherever the CPU was. */
#pragma once
#include "task.h"

#if defined(__x86_64__)

enum {
  /* arch/x86/include/asm/segment.h: privilege level in cs; code segment of 32-bit programs */
  CS_PRIVILEGE_MASK = 3,
  USER32_CS = 0x23
};

INLINE bool is_user_mode(const struct pt_regs *regs) { return (regs->cs & CS_PRIVILEGE_MASK) == 3; }

INLINE ErrorCode take_registers(UnwindState *state, const struct pt_regs *regs) {
  if (regs->cs == USER32_CS)
    return ERR_NATIVE_X64_32BIT_COMPAT_MODE;
  state->pc = regs->ip;
  state->sp = regs->sp;
  state->fp = regs->bp;
  state->rax = regs->ax;
  state->r9 = regs->r9;
  state->r11 = regs->r11;
  state->r13 = regs->r13;
  state->r15 = regs->r15;
  return ERR_OK;
}

#elif defined(__aarch64__)

enum {
  /* arch/arm64/include/uapi/asm/ptrace.h: PSR_MODE_MASK, PSR_MODE_EL0t, PSR_MODE32_BIT */
  PSR_MODE_MASK = 0xf,
  PSR_MODE_EL0t = 0,
  PSR_MODE32_BIT = 0x10
};

INLINE bool is_user_mode(const struct pt_regs *regs) {
  return (regs->pstate & PSR_MODE_MASK) == PSR_MODE_EL0t;
}

INLINE ErrorCode take_registers(UnwindState *state, const struct pt_regs *regs) {
  if (regs->pstate & PSR_MODE32_BIT)
    return ERR_NATIVE_AARCH64_32BIT_COMPAT_MODE;
  state->pc = regs->pc;
  state->sp = regs->sp;
  state->fp = regs->regs[29];
  state->lr = regs->regs[30];
  state->r22 = regs->regs[22];
  return ERR_OK;
}

#endif

/* Fills the state with what the current task had when it entered the kernel. */
INLINE ErrorCode get_saved_user_registers(PerCPURecord *record, bool *found) {
  struct pt_regs *regs = (struct pt_regs *)record->rubyUnwindScratch.signal_regs;
  *found = false;
  if (read_saved_registers(regs)) {
    increment_metric(metricID_UnwindNativeErrReadKernelModeRegs);
    return ERR_NATIVE_READ_KERNELMODE_REGS;
  }
  if (!is_user_mode(regs))
    return ERR_OK;
  *found = true;
  return take_registers(&record->state, regs);
}

/* get_user_registers fills the state; *found is false for a task that has no user side. */
INLINE ErrorCode get_user_registers(struct bpf_perf_event_data *ctx, PerCPURecord *record,
                                    bool *found) {
  UnwindState *state = &record->state;
  /* On the stack, of which there are 512 bytes for all functions together, they would take half. */
  struct pt_regs *regs = (struct pt_regs *)record->rubyUnwindScratch.signal_regs;
  *found = false;
  if (is_user_mode(&ctx->regs)) {
    *found = true;
#if defined(__x86_64__)
    regs->cs = ctx->regs.cs;
    regs->ip = ctx->regs.ip;
    regs->sp = ctx->regs.sp;
    regs->bp = ctx->regs.bp;
    regs->ax = ctx->regs.ax;
    regs->r9 = ctx->regs.r9;
    regs->r11 = ctx->regs.r11;
    regs->r13 = ctx->regs.r13;
    regs->r15 = ctx->regs.r15;
#elif defined(__aarch64__)
    regs->pstate = ctx->regs.pstate;
    regs->pc = ctx->regs.pc;
    regs->sp = ctx->regs.sp;
    regs->regs[29] = ctx->regs.regs[29];
    regs->regs[30] = ctx->regs.regs[30];
    regs->regs[22] = ctx->regs.regs[22];
#endif
    return take_registers(state, regs);
  }
  return get_saved_user_registers(record, found);
}
