/* SPDX-License-Identifier: Apache-2.0 */
/* The call frame machine: DWARF version 5 section 6.4.2, with the GNU and Arm additions. */
#include "cfi_program.h"

enum {
  REMEMBER_DEPTH = 32,

  /* DWARF version 5, section 7.24 */
  CFA_ADVANCE_LOC = 0x40,
  CFA_OFFSET = 0x80,
  CFA_RESTORE = 0xc0,
  CFA_NOP = 0x00,
  CFA_SET_LOC = 0x01,
  CFA_ADVANCE_LOC1 = 0x02,
  CFA_ADVANCE_LOC2 = 0x03,
  CFA_ADVANCE_LOC4 = 0x04,
  CFA_OFFSET_EXTENDED = 0x05,
  CFA_RESTORE_EXTENDED = 0x06,
  CFA_UNDEFINED = 0x07,
  CFA_SAME_VALUE = 0x08,
  CFA_REGISTER = 0x09,
  CFA_REMEMBER_STATE = 0x0a,
  CFA_RESTORE_STATE = 0x0b,
  CFA_DEF_CFA = 0x0c,
  CFA_DEF_CFA_REGISTER = 0x0d,
  CFA_DEF_CFA_OFFSET = 0x0e,
  CFA_DEF_CFA_EXPRESSION = 0x0f,
  CFA_EXPRESSION = 0x10,
  CFA_OFFSET_EXTENDED_SF = 0x11,
  CFA_DEF_CFA_SF = 0x12,
  CFA_DEF_CFA_OFFSET_SF = 0x13,
  CFA_VAL_OFFSET = 0x14,
  CFA_VAL_OFFSET_SF = 0x15,
  CFA_VAL_EXPRESSION = 0x16,
  /* binutils include/dwarf2.def; DWARF for the Arm 64-bit Architecture, table of call frame
     instructions */
  CFA_MIPS_ADVANCE_LOC8 = 0x1d,
  CFA_AARCH64_NEGATE_RA_STATE_WITH_PC = 0x2c,
  CFA_AARCH64_NEGATE_RA_STATE = 0x2d,
  CFA_GNU_ARGS_SIZE = 0x2e,
  CFA_GNU_NEGATIVE_OFFSET_EXTENDED = 0x2f,

  /* LSB Core Specification, section 10.5.1: DWARF exception header encoding */
  PE_FORMAT = 0x0f,
  PE_APPLICATION = 0x70,
  PE_PCREL = 0x10,
  PE_DATAREL = 0x30,
  PE_INDIRECT = 0x80,
};

bool cfi_pointer(cursor *c, const cfi_section *section, u8 encoding, u64 data_base, u64 *value) {
  u64 base = 0;

  switch (encoding & (PE_APPLICATION | PE_INDIRECT)) {
  case 0:
    break;
  case PE_PCREL:
    base = section->address + (u64)(c->at - section->data);
    break;
  case PE_DATAREL:
    if (!data_base)
      return false;
    base = data_base;
    break;
  default:
    return false;
  }
  switch (encoding & PE_FORMAT) {
  case 0x00: /* absptr */
  case 0x04: /* udata8 */
  case 0x08: /* signed absptr */
  case 0x0c: /* sdata8 */
    *value = take(c, 8);
    break;
  case 0x01:
    *value = take_uleb(c);
    break;
  case 0x02:
    *value = take(c, 2);
    break;
  case 0x03:
    *value = take(c, 4);
    break;
  case 0x09:
    *value = (u64)take_sleb(c);
    break;
  case 0x0a:
    *value = (u64)take_signed(c, 2);
    break;
  case 0x0b:
    *value = (u64)take_signed(c, 4);
    break;
  default:
    return false;
  }
  *value += base;
  return !c->failed;
}

static u16 take_register(cursor *c) {
  u64 number = take_uleb(c);
  return number < NO_REGISTER ? (u16)number : NO_REGISTER;
}

static void set(const program *p, frame_state *s, u16 column, rule r) {
  if (column == p->fp_column)
    s->fp = r;
  else if (column == p->cie->ra_column)
    s->ra = r;
}

static void set_offset(const program *p, frame_state *s, u16 column, u64 factored) {
  set(p, s, column,
      (rule){.kind = RULE_OFFSET, .offset = (s64)(factored * (u64)p->cie->data_align)});
}

static void restore(const program *p, frame_state *s, u16 column) {
  if (column == p->fp_column)
    s->fp = p->cie->initial.fp;
  else if (column == p->cie->ra_column)
    s->ra = p->cie->initial.ra;
}

/* The expression of a register's save slot. */
static rule slot_expression(cursor *c) {
  rule r = cfi_expression(take_block(c, take_uleb(c)));
  if (r.kind == RULE_REGISTER)
    r.kind = RULE_ADDRESS;
  return r;
}

/* DW_CFA_def_cfa_register and _offset are meant for a CFA of that form; others are left unknown. */
static void change_cfa(frame_state *s, const u16 *base, const s64 *offset) {
  if (s->cfa.kind != RULE_REGISTER) {
    s->cfa = (rule){.kind = RULE_OTHER};
    return;
  }
  if (base)
    s->cfa.base = *base;
  if (offset)
    s->cfa.offset = *offset;
}

static void emit(program *p, const frame_state *s) {
  if (p->rows && p->location < p->limit)
    rows_add(p->rows, p->location, cfi_info(p->machine, p->flags, s));
}

/* The rules so far hold up to `location`. False when that is behind the end: nothing more matters.
 */
static bool advance(program *p, const frame_state *s, u64 location) {
  if (!p->rows || location == p->location)
    return true;
  emit(p, s);
  p->location = location;
  return location < p->limit;
}

bool cfi_run(program *p, cursor code, frame_state *s) {
  frame_state remembered[REMEMBER_DEPTH];
  unsigned depth = 0;

  while (left(&code)) {
    u8 op = (u8)take(&code, 1);
    u64 step = 0;
    u16 column;
    s64 offset;

    if (op & 0xc0) {
      if ((op & 0xc0) == CFA_ADVANCE_LOC)
        step = op & 0x3f;
      else if ((op & 0xc0) == CFA_OFFSET)
        set_offset(p, s, op & 0x3f, take_uleb(&code));
      else
        restore(p, s, op & 0x3f);
    } else {
      switch (op) {
      case CFA_NOP:
        break;
      case CFA_SET_LOC: {
        u64 target;
        if (!cfi_pointer(&code, p->cie->section, p->cie->pointer_encoding, p->data_base, &target) ||
            (p->rows && target < p->location))
          return false;
        if (!advance(p, s, target))
          return true;
        break;
      }
      case CFA_ADVANCE_LOC1:
        step = take(&code, 1);
        break;
      case CFA_ADVANCE_LOC2:
        step = take(&code, 2);
        break;
      case CFA_ADVANCE_LOC4:
        step = take(&code, 4);
        break;
      case CFA_MIPS_ADVANCE_LOC8:
        step = take(&code, 8);
        break;
      case CFA_OFFSET_EXTENDED:
        column = take_register(&code);
        set_offset(p, s, column, take_uleb(&code));
        break;
      case CFA_OFFSET_EXTENDED_SF:
        column = take_register(&code);
        set_offset(p, s, column, (u64)take_sleb(&code));
        break;
      case CFA_GNU_NEGATIVE_OFFSET_EXTENDED:
        column = take_register(&code);
        set_offset(p, s, column, 0 - take_uleb(&code));
        break;
      case CFA_RESTORE_EXTENDED:
        restore(p, s, take_register(&code));
        break;
      case CFA_UNDEFINED:
        set(p, s, take_register(&code), (rule){.kind = RULE_UNDEFINED});
        break;
      case CFA_SAME_VALUE:
        set(p, s, take_register(&code), (rule){.kind = RULE_SAME});
        break;
      case CFA_REGISTER:
        column = take_register(&code);
        set(p, s, column, (rule){.kind = RULE_REGISTER, .base = take_register(&code)});
        break;
      case CFA_REMEMBER_STATE:
        if (depth == REMEMBER_DEPTH)
          return false;
        remembered[depth++] = *s;
        break;
      case CFA_RESTORE_STATE:
        if (!depth)
          return false;
        *s = remembered[--depth];
        break;
      case CFA_DEF_CFA:
        column = take_register(&code);
        s->cfa = (rule){.kind = RULE_REGISTER, .base = column, .offset = (s64)take_uleb(&code)};
        break;
      case CFA_DEF_CFA_SF:
        column = take_register(&code);
        offset = (s64)((u64)take_sleb(&code) * (u64)p->cie->data_align);
        s->cfa = (rule){.kind = RULE_REGISTER, .base = column, .offset = offset};
        break;
      case CFA_DEF_CFA_REGISTER:
        column = take_register(&code);
        change_cfa(s, &column, NULL);
        break;
      case CFA_DEF_CFA_OFFSET:
        offset = (s64)take_uleb(&code);
        change_cfa(s, NULL, &offset);
        break;
      case CFA_DEF_CFA_OFFSET_SF:
        offset = (s64)((u64)take_sleb(&code) * (u64)p->cie->data_align);
        change_cfa(s, NULL, &offset);
        break;
      case CFA_DEF_CFA_EXPRESSION:
        s->cfa = cfi_expression(take_block(&code, take_uleb(&code)));
        break;
      case CFA_EXPRESSION:
        column = take_register(&code);
        set(p, s, column, slot_expression(&code));
        break;
      case CFA_VAL_OFFSET:
      case CFA_VAL_OFFSET_SF:
        column = take_register(&code);
        take_uleb(&code);
        set(p, s, column, (rule){.kind = RULE_OTHER});
        break;
      case CFA_VAL_EXPRESSION:
        column = take_register(&code);
        take_block(&code, take_uleb(&code));
        set(p, s, column, (rule){.kind = RULE_OTHER});
        break;
      case CFA_GNU_ARGS_SIZE:
        take_uleb(&code);
        break;
      case CFA_AARCH64_NEGATE_RA_STATE:
      case CFA_AARCH64_NEGATE_RA_STATE_WITH_PC:
        /* The return address is signed or not; the unwinder strips the signature either way. */
        if (p->machine != EM_AARCH64)
          return false;
        break;
      default:
        return false;
      }
    }
    if (code.failed)
      return false;
    if (step) {
      u64 distance, target;
      if (__builtin_mul_overflow(step, p->cie->code_align, &distance) ||
          __builtin_add_overflow(p->location, distance, &target))
        return false;
      if (!advance(p, s, target))
        return true;
    }
  }
  emit(p, s);
  return true;
}
