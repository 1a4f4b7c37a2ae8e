/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of unwind rows: gathering them (neighbours merged, rules stored once), and laying them
 * out for the kernel's maps. Where rows come from is in cfi_frames.c, what they mean in
 * cfi_rules.c.
 */
#include "cfi_internal.h"

#include <errno.h>
#include <stdlib.h>

enum { SLOTS = 4 * UNWIND_INFO_MAX_ENTRIES };

_Static_assert(sizeof(UnwindInfo) == 12, "infos are handed out as 12 bytes each");
_Static_assert(sizeof(StackDelta) == 4, "rows are handed out as 4 bytes each");

void cfi_release(cfi_table *table) {
  free(table->addresses);
  free(table->rows);
  free(table->infos);
  memset(table, 0, sizeof *table);
}

static bool grow(void **block, size_t *capacity, size_t element) {
  void *bigger = realloc(*block, *capacity * 2 * element);
  if (!bigger)
    return false;
  *block = bigger;
  return true;
}

bool rows_begin(row_builder *b, cfi_table *table, size_t expected) {
  memset(b, 0, sizeof *b);
  b->table = table;
  b->row_capacity = expected < 64 ? 64 : expected > CFI_MAX_ROWS ? CFI_MAX_ROWS : expected;
  b->info_capacity = 512;
  table->addresses = malloc(b->row_capacity * sizeof *table->addresses);
  table->rows = malloc(b->row_capacity * sizeof *table->rows);
  table->infos = malloc(b->info_capacity * sizeof *table->infos);
  b->slots = calloc(SLOTS, sizeof *b->slots);
  return table->addresses && table->rows && table->infos && b->slots;
}

/* Field by field: nothing keeps the padding byte of a copied struct as it was. */
static bool same(const UnwindInfo *a, const UnwindInfo *b) {
  return a->opcode == b->opcode && a->fpOpcode == b->fpOpcode && a->mergeOpcode == b->mergeOpcode &&
         a->param == b->param && a->fpParam == b->fpParam;
}

/* Index of an info, which is stored when it is new; -1 without memory or room. */
static int intern(row_builder *b, const UnwindInfo *info) {
  cfi_table *t = b->table;
  u32 opcodes = info->opcode | (u32)info->fpOpcode << 8 | (u32)info->mergeOpcode << 16;
  u32 hash = (opcodes * 0x9e3779b1u) ^ ((u32)info->param * 0x85ebca6bu) ^
             ((u32)info->fpParam * 0xc2b2ae35u);
  u32 slot = (hash ^ hash >> 15) % SLOTS;
  /* At most a quarter of the slots is ever taken, so an empty one ends every search. */
  for (; b->slots[slot]; slot = (slot + 1) % SLOTS)
    if (same(&t->infos[b->slots[slot] - 1], info))
      return b->slots[slot] - 1;
  if (t->info_count == UNWIND_INFO_MAX_ENTRIES)
    return -1;
  if (t->info_count == b->info_capacity) {
    if (!grow((void **)&t->infos, &b->info_capacity, sizeof *t->infos)) {
      b->error = ENOMEM;
      return -1;
    }
    b->info_capacity *= 2;
  }
  t->infos[t->info_count] = *info;
  b->slots[slot] = (u16)++t->info_count;
  return (int)t->info_count - 1;
}

static void store(row_builder *b, u64 address, UnwindInfo info) {
  cfi_table *t = b->table;
  if (b->full || b->error)
    return;
  if (t->count >= CFI_MAX_ROWS - 1) {
    info = cfi_command(UNWIND_COMMAND_INVALID);
    t->truncated = 1;
    b->full = true;
  }
  if (t->count == b->row_capacity) {
    if (!grow((void **)&t->addresses, &b->row_capacity, sizeof *t->addresses) ||
        !grow((void **)&t->rows, &b->row_capacity, sizeof *t->rows)) {
      b->error = ENOMEM;
      return;
    }
    b->row_capacity *= 2;
  }
  int index = intern(b, &info);
  if (index < 0 && !b->error) {
    /* More distinct rules than the kernel's table holds: no rule. Index 0 was kept for that. */
    index = 0;
    t->truncated = 1;
  }
  if (b->error)
    return;
  t->addresses[t->count] = address;
  t->rows[t->count++] = (u16)index;
}

/* A push or pop of one register, one or two bytes long, is stored as one row with the one before
 * it. */
static u8 merge_opcode(const UnwindInfo *first, const UnwindInfo *second, u64 distance) {
  s64 step = (s64)second->param - first->param;
  if (distance > 2 || first->opcode == UNWIND_OPCODE_COMMAND || first->opcode != second->opcode ||
      first->fpOpcode != second->fpOpcode || first->fpParam != second->fpParam ||
      (step != 8 && step != -8))
    return 0;
  return (u8)distance | (step < 0 ? MERGEOPCODE_NEGATIVE : 0);
}

void rows_add(row_builder *b, u64 address, UnwindInfo info) {
  if (b->pending) {
    if (same(&b->tail, &info))
      return;
    if (!b->info.mergeOpcode) {
      u8 merge = merge_opcode(&b->info, &info, address - b->address);
      if (merge) {
        b->info.mergeOpcode = merge;
        b->tail = info;
        return;
      }
    }
    store(b, b->address, b->info);
  } else {
    UnwindInfo invalid = cfi_command(UNWIND_COMMAND_INVALID);
    intern(b, &invalid);
  }
  b->pending = true;
  b->address = address;
  b->info = b->tail = info;
}

int rows_end(row_builder *b) {
  if (b->pending)
    store(b, b->address, b->info);
  free(b->slots);
  b->slots = NULL;
  return b->error;
}

size_t cfi_page_count(const u64 *addresses, size_t count) {
  if (!count)
    return 0;
  u64 pages =
      (addresses[count - 1] >> STACK_DELTA_PAGE_BITS) - (addresses[0] >> STACK_DELTA_PAGE_BITS);
  return pages >= CFI_MAX_PAGES ? CFI_MAX_PAGES + 1 : (size_t)pages + 1;
}

void cfi_pages(const u64 *addresses, size_t count, cfi_page *pages, size_t page_count) {
  size_t row = 0;
  for (size_t i = 0; i < page_count; i++) {
    u64 number = (addresses[0] >> STACK_DELTA_PAGE_BITS) + i;
    size_t first = row;
    while (row < count && addresses[row] >> STACK_DELTA_PAGE_BITS == number)
      row++;
    pages[i].address = number << STACK_DELTA_PAGE_BITS;
    pages[i].first = (u32)first;
    /* 65,536 rows in one page do not fit the count; the last byte then has its neighbour's rule. */
    pages[i].count = row - first > UINT16_MAX ? UINT16_MAX : (u16)(row - first);
  }
}

size_t cfi_flat_page_count(const u64 *addresses, size_t count) {
  if (!count)
    return 0;
  u64 pages = (addresses[count - 1] >> FLAT_PAGE_BITS) - (addresses[0] >> FLAT_PAGE_BITS);
  return pages >= CFI_MAX_FLAT_PAGES ? CFI_MAX_FLAT_PAGES + 1 : (size_t)pages + 1;
}

void cfi_flat_pages(const u64 *addresses, size_t count, u32 base, FlatPage *pages,
                    size_t page_count) {
  size_t next = 0; /* the first row behind where the page begins */
  for (size_t i = 0; i < page_count; i++) {
    u64 number = (addresses[0] >> FLAT_PAGE_BITS) + i;
    while (next < count && addresses[next] <= number << FLAT_PAGE_BITS)
      next++;
    size_t first = next;
    while (next < count && addresses[next] >> FLAT_PAGE_BITS == number)
      next++;
    pages[i].first = base + (u32)first - 1;
    pages[i].last = base + (u32)next - 1;
  }
}

void cfi_pack(const u64 *addresses, const u16 *rows, size_t count, const u16 *values,
              StackDelta *out) {
  for (size_t i = 0; i < count; i++) {
    out[i].addrLow = (u16)(addresses[i] & STACK_DELTA_PAGE_MASK);
    out[i].unwindInfo = values[rows[i]];
  }
}
