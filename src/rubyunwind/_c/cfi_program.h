/* SPDX-License-Identifier: Apache-2.0 */
/* Call frame programs: what CIEs and FDEs hold, and the machine that runs it. */
#pragma once
#include "cfi_internal.h"

typedef struct cie {
  const cfi_section *section;
  u64 offset; /* of the record in its section */
  u64 code_align;
  s64 data_align;
  u16 ra_column;
  u8 pointer_encoding;
  bool augmented, signal, usable;
  frame_state initial;
} cie;

typedef struct program {
  const cie *cie;
  u16 fp_column;
  u64 data_base;
  u64 location, limit; /* rows are made for [location, limit) */
  row_builder *rows;   /* NULL: a CIE, which makes none */
  u16 machine;
  u32 flags;
} program;

/* DW_EH_PE_*: a pointer of .eh_frame. False when it cannot be read here. */
bool cfi_pointer(cursor *c, const cfi_section *section, u8 encoding, u64 data_base, u64 *value);
/* Run `code` on `state`. False: the code is damaged, and rows stop where it was noticed. */
bool cfi_run(program *p, cursor code, frame_state *state);
