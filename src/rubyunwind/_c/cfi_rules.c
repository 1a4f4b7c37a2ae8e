/* SPDX-License-Identifier: Apache-2.0 */
/* From DWARF register rules to the words of the native unwinder (UnwindInfo in types.h). */
#include "cfi_internal.h"

/* DWARF version 5, section 7.7.1. */
enum {
  OP_DEREF = 0x06,
  OP_CONST1U = 0x08,
  OP_CONST8S = 0x0f,
  OP_CONSTU = 0x10,
  OP_CONSTS = 0x11,
  OP_AND = 0x1a,
  OP_MINUS = 0x1c,
  OP_PLUS = 0x22,
  OP_PLUS_UCONST = 0x23,
  OP_SHL = 0x24,
  OP_GE = 0x2a,
  OP_LIT0 = 0x30,
  OP_LIT3 = 0x33,
  OP_LIT11 = 0x3b,
  OP_LIT15 = 0x3f,
  OP_LIT31 = 0x4f,
  OP_BREG0 = 0x70,
  OP_BREG31 = 0x8f,
  OP_BREGX = 0x92,
};

/*
 * Linkers describe all entries of a lazy PLT with one rule: an entry pushes its index with an
 * instruction that ends 11 bytes after the entry's start.
 *     rsp + 8 + ((rip & 15) >= 11) << 3
 */
static const u8 plt_expression[] = {
    OP_BREG0 + X86_SP, 8,     OP_BREG0 + X86_PC, 0,      OP_LIT15, OP_AND,
    OP_LIT11,          OP_GE, OP_LIT3,           OP_SHL, OP_PLUS,
};

static s64 add(s64 a, s64 b) { return (s64)((u64)a + (u64)b); }

/* A constant and the operation that adds it to the top of the stack. */
static bool take_addend(cursor *c, s64 *addend) {
  u8 op = (u8)take(c, 1);
  if (op == OP_PLUS_UCONST) {
    *addend = (s64)take_uleb(c);
    return !c->failed;
  }
  if (op >= OP_LIT0 && op <= OP_LIT31) {
    *addend = op - OP_LIT0;
  } else if (op >= OP_CONST1U && op <= OP_CONST8S) {
    /* 1u 1s 2u 2s 4u 4s 8u 8s */
    size_t bytes = (size_t)1 << ((op - OP_CONST1U) / 2);
    *addend = (op - OP_CONST1U) % 2 ? take_signed(c, bytes) : (s64)take(c, bytes);
  } else if (op == OP_CONSTU) {
    *addend = (s64)take_uleb(c);
  } else if (op == OP_CONSTS) {
    *addend = take_sleb(c);
  } else {
    return false;
  }
  op = (u8)take(c, 1);
  if (op == OP_MINUS)
    *addend = (s64)(0 - (u64)*addend);
  else if (op != OP_PLUS)
    return false;
  return !c->failed;
}

rule cfi_expression(cursor code) {
  const rule other = {.kind = RULE_OTHER, .base = NO_REGISTER};
  rule result = {.kind = RULE_REGISTER};

  if (left(&code) == sizeof plt_expression &&
      !memcmp(code.at, plt_expression, sizeof plt_expression)) {
    result.kind = RULE_PLT;
    return result;
  }
  u8 op = (u8)take(&code, 1);
  if (op >= OP_BREG0 && op <= OP_BREG31) {
    result.base = op - OP_BREG0;
  } else if (op == OP_BREGX) {
    u64 number = take_uleb(&code);
    result.base = number < NO_REGISTER ? (u16)number : NO_REGISTER;
  } else {
    return other;
  }
  result.offset = take_sleb(&code);
  while (left(&code)) {
    s64 addend;
    if (*code.at == OP_DEREF) {
      if (result.kind == RULE_DEREF)
        return other;
      result.kind = RULE_DEREF;
      code.at++;
      continue;
    }
    if (!take_addend(&code, &addend))
      return other;
    if (result.kind == RULE_DEREF)
      result.post = add(result.post, addend);
    else
      result.offset = add(result.offset, addend);
  }
  return code.failed ? other : result;
}

UnwindInfo cfi_command(UnwindCommand command) {
  return (UnwindInfo){.opcode = UNWIND_OPCODE_COMMAND, .param = (s32)command};
}

static bool fits(s64 value) { return value >= INT32_MIN && value <= INT32_MAX; }

/* base + offset, or *(base + offset) + post, packed as the unwinder wants it. */
static bool pack_based(UnwindOpcode base, const rule *r, u8 *opcode, s32 *param) {
  if (!fits(r->offset))
    return false;
  *opcode = (u8)base;
  *param = (s32)r->offset;
  if (r->kind != RULE_DEREF)
    return true;
  if (r->offset % UNWIND_DEREF_MULTIPLIER || r->post % UNWIND_DEREF_MULTIPLIER || r->post < 0 ||
      r->post / UNWIND_DEREF_MULTIPLIER > UNWIND_DEREF_MASK)
    return false;
  *opcode |= UNWIND_OPCODEF_DEREF;
  *param += (s32)(r->post / UNWIND_DEREF_MULTIPLIER);
  return true;
}

static bool pack_register(const rule *r, u8 *opcode, s32 *param) {
  if (r->kind != RULE_REGISTER || (r->base != 0 && r->base != 9 && r->base != 11 && r->base != 15))
    return false;
  /* Twice a multiple of eight leaves the low four bits to the register number. */
  if (r->offset % 8 || r->offset > INT32_MAX / 2 || r->offset < INT32_MIN / 2)
    return false;
  *opcode = UNWIND_OPCODE_BASE_REG;
  *param = (s32)(r->offset * 2) + r->base;
  return true;
}

/* Where a register was saved, if the unwinder has a word for it. */
static bool pack_slot(const rule *r, u16 sp, u16 fp, u8 *opcode, s32 *param) {
  if (r->kind == RULE_OFFSET)
    return pack_based(UNWIND_OPCODE_BASE_CFA, r, opcode, param);
  if (r->kind != RULE_ADDRESS && r->kind != RULE_DEREF)
    return false;
  if (r->base == sp)
    return pack_based(UNWIND_OPCODE_BASE_SP, r, opcode, param);
  return r->base == fp && pack_based(UNWIND_OPCODE_BASE_FP, r, opcode, param);
}

static bool pack_cfa(const rule *r, u16 sp, u16 fp, UnwindInfo *info) {
  if (r->kind != RULE_REGISTER && r->kind != RULE_DEREF)
    return false;
  if (r->base == sp)
    return pack_based(UNWIND_OPCODE_BASE_SP, r, &info->opcode, &info->param);
  return r->base == fp && pack_based(UNWIND_OPCODE_BASE_FP, r, &info->opcode, &info->param);
}

static UnwindInfo x86_info(u32 flags, const frame_state *s) {
  const UnwindInfo invalid = cfi_command(UNWIND_COMMAND_INVALID);
  UnwindInfo info = invalid;

  /* The unwinder reads the return address below the CFA and nowhere else. */
  if (s->ra.kind != RULE_OFFSET)
    return invalid;
  /* Code that has popped its own return address has no caller: musl's thread start does. */
  if (s->cfa.kind == RULE_REGISTER && s->cfa.base == X86_SP && add(s->cfa.offset, s->ra.offset) < 0)
    return cfi_command(UNWIND_COMMAND_STOP);
  if (s->ra.offset != -8)
    return invalid;
  if (s->cfa.kind == RULE_PLT)
    return cfi_command(UNWIND_COMMAND_PLT);
  if (!pack_cfa(&s->cfa, X86_SP, X86_FP, &info) &&
      !((flags & CFI_ALLOW_REGISTERS) && pack_register(&s->cfa, &info.opcode, &info.param)))
    return invalid;
  if (!pack_slot(&s->fp, X86_SP, X86_FP, &info.fpOpcode, &info.fpParam)) {
    info.fpOpcode = UNWIND_OPCODE_COMMAND;
    info.fpParam = 0;
  }
  return info;
}

/*
 * Here the second half of a row says where the return address is, and by a flag whether the
 * caller's frame pointer lies below it (a frame record). Without the flag too the unwinder takes a
 * return address at base + 8 for a part of one: that place is named relative to the CFA where it is
 * none.
 */
static UnwindInfo arm_info(const frame_state *s) {
  const UnwindInfo invalid = cfi_command(UNWIND_COMMAND_INVALID);
  UnwindInfo info = invalid;
  rule ra = s->ra;

  if (!pack_cfa(&s->cfa, ARM_SP, ARM_FP, &info))
    return invalid;
  if (ra.kind == RULE_UNSET || ra.kind == RULE_SAME ||
      (ra.kind == RULE_REGISTER && ra.base == ARM_LR && ra.offset == 0)) {
    info.fpOpcode = UNWIND_OPCODE_BASE_LR;
    return info;
  }
  bool record =
      ra.kind == RULE_OFFSET && s->fp.kind == RULE_OFFSET && s->fp.offset == add(ra.offset, -8);
  if (ra.kind == RULE_OFFSET && s->cfa.kind == RULE_REGISTER) {
    s64 from_base = add(s->cfa.offset, ra.offset);
    if (record || from_base != 8) {
      ra.kind = RULE_ADDRESS;
      ra.base = s->cfa.base;
      ra.offset = from_base;
    }
  }
  if (!pack_slot(&ra, ARM_SP, ARM_FP, &info.fpOpcode, &info.fpParam))
    return invalid;
  if (record)
    info.fpOpcode |= UNWIND_OPCODEF_FRAME;
  return info;
}

UnwindInfo cfi_info(u16 machine, u32 flags, const frame_state *s) {
  if (s->cfa.kind == RULE_UNSET || s->cfa.kind == RULE_UNDEFINED || s->ra.kind == RULE_UNDEFINED)
    return cfi_command(UNWIND_COMMAND_STOP);
  return machine == EM_X86_64 ? x86_info(flags, s) : arm_info(s);
}
