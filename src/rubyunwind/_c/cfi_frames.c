/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From sections to rows. First all CIEs and FDEs are gathered, then the FDEs are put in order of
 * address, and each one's program is run up to where the next one begins.
 */
#include "cfi_program.h"

#include <errno.h>
#include <stdlib.h>

enum {
  PE_OMIT = 0xff,
  PE_FORMAT = 0x0f,
  /* A function that does nothing but rt_sigreturn is at most this long. */
  TRAMPOLINE_MAX = 64,
  /* Records are as small as 8 bytes, what is kept of them is not: bounds for made-up sections. */
  MAX_CIES = 1 << 16,
  MAX_FDES = 1 << 21,
};

typedef struct fde {
  const cfi_section *section;
  u64 start, end, cie_offset;
  const u8 *code; /* behind its addresses: augmentation data, then the program */
  const u8 *code_end;
  const cie *cie;
} fde;

typedef struct reader {
  const cfi_source *source;
  cfi_table *table;
  cie *cies;
  fde *fdes;
  size_t cie_count, cie_capacity, fde_count, fde_capacity;
} reader;

static void *append(void **items, size_t *count, size_t *capacity, size_t size) {
  if (*count == *capacity) {
    size_t bigger = *capacity ? *capacity * 2 : 64;
    void *block = realloc(*items, bigger * size);
    if (!block)
      return NULL;
    *items = block;
    *capacity = bigger;
  }
  void *item = (u8 *)*items + (*count)++ * size;
  memset(item, 0, size);
  return item;
}

static bool skip_string(cursor *c, const char **text) {
  const u8 *end = memchr(c->at, 0, left(c));
  if (!end)
    return false;
  *text = (const char *)c->at;
  c->at = end + 1;
  return true;
}

/* What stands in the augmentation's letters; data of letters nobody knows is stepped over. */
static bool read_augmentation(cie *c, const char *letters, cursor *body) {
  cursor data;
  u64 ignored;

  if (!letters[0])
    return true;
  if (letters[0] != 'z')
    return false;
  c->augmented = true;
  data = take_block(body, take_uleb(body));
  for (letters++; *letters; letters++) {
    switch (*letters) {
    case 'R':
      c->pointer_encoding = (u8)take(&data, 1);
      break;
    case 'L':
      take(&data, 1);
      break;
    case 'P': {
      /* Only its size matters; where it leads may be as relative or indirect as it likes. */
      u8 encoding = (u8)take(&data, 1);
      if (encoding != PE_OMIT && !cfi_pointer(&data, c->section, encoding & PE_FORMAT, 0, &ignored))
        return false;
      break;
    }
    case 'S':
      c->signal = true;
      break;
    case 'B': /* return addresses are signed with the B key */
    case 'G': /* the frame's stack memory is tagged */
      break;
    default:
      return !body->failed && !data.failed;
    }
  }
  return !body->failed && !data.failed;
}

static void read_cie(const reader *r, cie *c, cursor body) {
  const char *letters;
  u8 version = (u8)take(&body, 1);

  if (version != 1 && version != 3 && version != 4)
    return;
  if (!skip_string(&body, &letters))
    return;
  if (version == 4 && !c->section->eh) {
    u8 address_size = (u8)take(&body, 1), segment_size = (u8)take(&body, 1);
    if (address_size != 8 || segment_size != 0)
      return;
  }
  if (!strcmp(letters, "eh")) {
    /* GCC before 3.0: a pointer for the exception handler. */
    take(&body, 8);
    letters = "";
  }
  c->code_align = take_uleb(&body);
  c->data_align = take_sleb(&body);
  u64 column = version == 1 ? take(&body, 1) : take_uleb(&body);
  c->ra_column = column < NO_REGISTER ? (u16)column : NO_REGISTER;
  if (body.failed || !read_augmentation(c, letters, &body))
    return;
  program p = {
      .cie = c,
      .fp_column = r->source->machine == EM_X86_64 ? X86_FP : ARM_FP,
      .data_base = r->source->data_base,
      .machine = r->source->machine,
      .flags = r->source->flags,
  };
  frame_state state = {0};
  c->usable = cfi_run(&p, body, &state);
  c->initial = state;
}

static bool gather(reader *r, const cfi_section *section) {
  cursor c = {section->data, section->data + section->size, false};

  while (left(&c) >= 4) {
    u64 offset = (u64)(c.at - section->data);
    u64 length = take(&c, 4);
    bool wide = length == 0xffffffff;
    if (wide)
      length = take(&c, 8);
    if (c.failed || (!length && section->eh))
      break; /* .eh_frame ends with a length of zero */
    cursor body = take_block(&c, length);
    if (body.failed) {
      r->table->skipped++;
      break;
    }
    u64 id_at = (u64)(body.at - section->data);
    /* The id is 4 bytes wide in .eh_frame even behind a 64-bit length: LSB Core, section 10.6.1 */
    size_t id_size = wide && !section->eh ? 8 : 4;
    u64 id = take(&body, id_size);
    u64 cie_id = section->eh ? 0 : id_size == 8 ? ~(u64)0 : 0xffffffff;
    if (body.failed || (id == cie_id ? r->cie_count == MAX_CIES : r->fde_count == MAX_FDES)) {
      r->table->skipped++;
    } else if (id == cie_id) {
      cie *item = append((void **)&r->cies, &r->cie_count, &r->cie_capacity, sizeof *item);
      if (!item)
        return false;
      item->section = section;
      item->offset = offset;
      read_cie(r, item, body);
    } else {
      fde *item = append((void **)&r->fdes, &r->fde_count, &r->fde_capacity, sizeof *item);
      if (!item)
        return false;
      item->section = section;
      item->cie_offset = section->eh ? id_at - id : id; /* may wrap: then no CIE is there */
      item->code = body.at;
      item->code_end = body.end;
    }
  }
  return true;
}

/* CIEs were gathered in order of section and offset. */
static const cie *find_cie(const reader *r, const fde *f) {
  size_t low = 0, high = r->cie_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    const cie *c = &r->cies[middle];
    if (c->section < f->section || (c->section == f->section && c->offset < f->cie_offset))
      low = middle + 1;
    else
      high = middle;
  }
  if (low == r->cie_count || r->cies[low].section != f->section ||
      r->cies[low].offset != f->cie_offset)
    return NULL;
  return &r->cies[low];
}

static const cfi_span *find_span(const cfi_source *source, u64 address) {
  for (size_t i = 0; i < source->span_count; i++)
    if (address >= source->spans[i].start && address < source->spans[i].end)
      return &source->spans[i];
  return NULL;
}

/* A linkage table counts as a function of a section of its own, which comes last. */
static const cfi_section *stub_section(const cfi_source *source) {
  return source->sections + source->section_count;
}

static bool gather_stubs(reader *r) {
  const cfi_source *source = r->source;

  for (size_t i = 0; i < source->stub_count; i++) {
    const cfi_span *stubs = &source->stubs[i];
    const cfi_span *span = find_span(source, stubs->start);
    if (source->machine != EM_AARCH64 || !span || stubs->end <= stubs->start)
      continue;
    fde *item = append((void **)&r->fdes, &r->fde_count, &r->fde_capacity, sizeof *item);
    if (!item)
      return false;
    item->section = stub_section(source);
    item->start = stubs->start;
    item->end = stubs->end < span->end ? stubs->end : span->end;
  }
  return true;
}

/* The FDE's addresses and program; false when there is nothing to be had from it. */
static bool resolve(const reader *r, fde *f) {
  const cfi_source *source = r->source;
  cursor body = {f->code, f->code_end, false};
  u64 length;

  if (f->section == stub_section(source))
    return true;
  f->cie = find_cie(r, f);
  if (!f->cie || !f->cie->usable)
    return false;
  u8 encoding = f->section->eh ? f->cie->pointer_encoding : 0;
  if (!cfi_pointer(&body, f->section, encoding, source->data_base, &f->start) ||
      !cfi_pointer(&body, f->section, encoding & PE_FORMAT, 0, &length))
    return false;
  if (f->cie->augmented)
    take_block(&body, take_uleb(&body));
  /* Linkers leave functions they threw away at address 0. */
  if (body.failed || !length || (!f->start && !(source->flags & CFI_RELOCATABLE)) ||
      __builtin_add_overflow(f->start, length, &f->end))
    return false;
  if (source->span_count) {
    const cfi_span *span = find_span(source, f->start);
    if (!span)
      return false;
    if (f->end > span->end)
      f->end = span->end;
  }
  f->code = body.at;
  return true;
}

static int compare(const void *a, const void *b) {
  const fde *x = a, *y = b;
  if (x->start != y->start)
    return x->start < y->start ? -1 : 1;
  if (x->section != y->section)
    return x->section < y->section ? -1 : 1;
  return x->code < y->code ? -1 : x->code > y->code;
}

/*
 * Resolved FDEs in order of address, each cut where the next one begins. Of two for one address the
 * first counts; a later section gives only functions that an earlier one does not reach into.
 */
static void arrange(reader *r) {
  size_t kept = 0;
  bool sorted = true;

  for (size_t i = 0; i < r->fde_count; i++) {
    if (!resolve(r, &r->fdes[i])) {
      r->table->skipped++;
      continue;
    }
    sorted = sorted && (!kept || compare(&r->fdes[kept - 1], &r->fdes[i]) < 0);
    r->fdes[kept++] = r->fdes[i];
  }
  if (!sorted)
    qsort(r->fdes, kept, sizeof *r->fdes, compare);
  r->fde_count = 0;
  u64 reach = 0; /* end of what the first section describes */
  for (size_t i = 0; i < kept; i++) {
    const fde f = r->fdes[i];
    fde *last = r->fde_count ? &r->fdes[r->fde_count - 1] : NULL;
    if ((last && last->start == f.start) || (f.section != r->source->sections && f.start < reach))
      continue;
    if (last && last->end > f.start)
      last->end = f.start;
    if (f.section == r->source->sections && f.end > reach)
      reach = f.end;
    r->fdes[r->fde_count++] = f;
  }
}

/* mov $__NR_rt_sigreturn, %rax; syscall   and   mov x8, #__NR_rt_sigreturn; svc #0 */
static bool is_trampoline(const cfi_source *source, const fde *f) {
  static const u8 x86[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
  static const u8 arm[] = {0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4};
  const u8 *code = source->machine == EM_X86_64 ? x86 : arm;
  size_t size = source->machine == EM_X86_64 ? sizeof x86 : sizeof arm;
  const cfi_span *span = find_span(source, f->start);

  if (!span || f->end - f->start > TRAMPOLINE_MAX || f->end - f->start < size)
    return false;
  u64 offset = f->start - span->start;
  return span->code && offset < span->code_size && span->code_size - offset >= size &&
         !memcmp(span->code + offset, code, size);
}

/*
 * Entries of a linkage table (AAPCS64, "Use of IP0 and IP1 by the linker") leave lr as it is, so
 * that it holds the return address; those for the dynamic linker push two registers before they
 * jump.
 */
static void add_stub_rows(const cfi_source *source, const fde *f, row_builder *rows) {
  const cfi_span *span = find_span(source, f->start);
  UnwindInfo info = {.opcode = UNWIND_OPCODE_BASE_SP, .fpOpcode = UNWIND_OPCODE_BASE_LR};
  u64 offset = f->start - span->start;
  u64 room = span->code && offset < span->code_size ? span->code_size - offset : 0;
  u64 size = f->end - f->start < room ? f->end - f->start : room;

  for (u64 at = 0; size - at >= 4; at += 4) {
    u32 word;
    memcpy(&word, span->code + offset + at, sizeof word);
    rows_add(rows, f->start + at, info);
    if ((word & 0xffff83e0) == 0xa9bf03e0) /* stp xN, xM, [sp, #-16]! */
      info.param = 16;
    else if ((word & 0xfffffc1f) == 0xd61f0000) /* br xN */
      info.param = 0;
  }
}

static void add_rows(const reader *r, const fde *f, row_builder *rows) {
  const cfi_source *source = r->source;

  if (f->section == stub_section(source)) {
    add_stub_rows(source, f, rows);
    return;
  }
  program p = {
      .cie = f->cie,
      .fp_column = source->machine == EM_X86_64 ? X86_FP : ARM_FP,
      .data_base = source->data_base,
      .location = f->start,
      .limit = f->end,
      .rows = rows,
      .machine = source->machine,
      .flags = source->flags,
  };
  frame_state state = f->cie->initial;

  if (f->cie->signal || is_trampoline(source, f)) {
    rows_add(rows, f->start, cfi_command(UNWIND_COMMAND_SIGNAL));
    return;
  }
  if (!cfi_run(&p, (cursor){f->code, f->code_end, false}, &state) && p.location < p.limit)
    rows_add(rows, p.location, cfi_command(UNWIND_COMMAND_INVALID));
}

/* Between functions there is no rule; small holes are padding, and a program's entry has no caller.
 */
static void add_gap(const cfi_source *source, u64 end, const fde *next, row_builder *rows) {
  if (next && next->start == end)
    return;
  bool entry = source->entry >= end && source->entry - end <= CFI_GAP &&
               (!next || source->entry < next->start);
  if (entry)
    rows_add(rows, end, cfi_command(UNWIND_COMMAND_STOP));
  else if (!next || next->start - end > CFI_GAP)
    rows_add(rows, end, cfi_command(UNWIND_COMMAND_INVALID));
}

int cfi_extract(const cfi_source *source, cfi_table *table) {
  reader r = {.source = source, .table = table};
  row_builder rows = {0};
  int error = ENOMEM;

  if (source->machine != EM_X86_64 && source->machine != EM_AARCH64)
    return EINVAL;
  for (size_t i = 0; i < source->section_count; i++)
    if (source->sections[i].size && !gather(&r, &source->sections[i]))
      goto out;
  if (!gather_stubs(&r))
    goto out;
  arrange(&r);
  if (!rows_begin(&rows, table, r.fde_count * 10))
    goto out;
  for (size_t i = 0; i < r.fde_count && !rows.full && !rows.error; i++) {
    add_rows(&r, &r.fdes[i], &rows);
    add_gap(source, r.fdes[i].end, i + 1 < r.fde_count ? &r.fdes[i + 1] : NULL, &rows);
  }
  table->functions = r.fde_count;
  error = 0;
out:
  error = rows_end(&rows) ? rows.error : error;
  free(r.cies);
  free(r.fdes);
  return error;
}
