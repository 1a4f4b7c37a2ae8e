/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the unwind table extractor share. Inputs are hostile: every read is bounded. */
#pragma once
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cfi.h"

enum {
  EM_X86_64 = 62, /* elf.h */
  EM_AARCH64 = 183,

  /* DWARF register numbers: System V psABI for AMD64, figure 3.36; DWARF for the Arm 64-bit
     Architecture */
  X86_FP = 6,
  X86_SP = 7,
  X86_PC = 16,
  ARM_FP = 29,
  ARM_LR = 30,
  ARM_SP = 31,
  NO_REGISTER = 0xffff,
};

/* A bounded reader. After a read past the end it stays failed, and every read gives 0. */
typedef struct cursor {
  const u8 *at, *end;
  bool failed;
} cursor;

static inline size_t left(const cursor *c) { return (size_t)(c->end - c->at); }

static inline u64 fail(cursor *c) {
  c->failed = true;
  c->at = c->end;
  return 0;
}

/* `bytes` (1..8) little-endian bytes. */
static inline u64 take(cursor *c, size_t bytes) {
  u64 value = 0;
  if (left(c) < bytes)
    return fail(c);
  memcpy(&value, c->at, bytes);
  c->at += bytes;
  return le64toh(value);
}

static inline s64 take_signed(cursor *c, size_t bytes) {
  unsigned shift = 64 - 8 * (unsigned)bytes;
  return (s64)(take(c, bytes) << shift) >> shift;
}

static inline u64 take_uleb(cursor *c) {
  u64 value = 0;
  for (unsigned shift = 0; c->at < c->end; shift += shift < 70 ? 7 : 0) {
    u8 byte = *c->at++;
    if (shift < 64)
      value |= (u64)(byte & 0x7f) << shift;
    if (!(byte & 0x80))
      return value;
  }
  return fail(c);
}

static inline s64 take_sleb(cursor *c) {
  u64 value = 0;
  for (unsigned shift = 0; c->at < c->end;) {
    u8 byte = *c->at++;
    if (shift < 64)
      value |= (u64)(byte & 0x7f) << shift;
    shift += shift < 70 ? 7 : 0;
    if (!(byte & 0x80)) {
      if (shift < 64 && (byte & 0x40))
        value |= ~(u64)0 << shift;
      return (s64)value;
    }
  }
  return (s64)fail(c);
}

/* The next `bytes` bytes as a reader of their own; an empty failed one when there are fewer. */
static inline cursor take_block(cursor *c, u64 bytes) {
  cursor block = {c->at, c->at, false};
  if (left(c) < bytes) {
    fail(c);
    block.failed = true;
    return block;
  }
  block.end = c->at += bytes;
  return block;
}

/* How a register, or the CFA, of the caller is found. */
typedef enum rule_kind {
  RULE_UNSET,     /* nothing was said */
  RULE_UNDEFINED, /* it is gone */
  RULE_SAME,
  RULE_OFFSET,   /* saved at CFA + offset */
  RULE_REGISTER, /* the value is base + offset */
  RULE_ADDRESS,  /* saved at base + offset */
  RULE_DEREF,    /* CFA: *(base + offset) + post; register: saved at that address */
  RULE_PLT,      /* CFA of a lazy PLT entry */
  RULE_OTHER,    /* something this table has no word for */
} rule_kind;

typedef struct rule {
  u8 kind;
  u16 base;
  s64 offset, post;
} rule;

typedef struct frame_state {
  rule cfa, fp, ra;
} frame_state;

/* The rule of a CFA expression (a value); PLT and unknown shapes included. Never RULE_ADDRESS. */
rule cfi_expression(cursor code);
UnwindInfo cfi_info(u16 machine, u32 flags, const frame_state *state);
UnwindInfo cfi_command(UnwindCommand command);

/* Rows on their way into the table: neighbours that say the same, or differ by one push, become
 * one. */
typedef struct row_builder {
  cfi_table *table;
  size_t row_capacity, info_capacity;
  u16 *slots; /* hash of infos: index + 1, 0 is empty */
  u64 address;
  UnwindInfo info, tail; /* the row not yet stored, and the rule at its end */
  bool pending, full;
  int error;
} row_builder;

bool rows_begin(row_builder *b, cfi_table *table, size_t expected);
void rows_add(row_builder *b, u64 address, UnwindInfo info); /* addresses ascend */
int rows_end(row_builder *b);
