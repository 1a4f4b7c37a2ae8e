/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the extractor of native unwind tables: whatever .eh_frame and .debug_frame hold, the rows
 * ascend, name rules that exist, and lie in the pages that are said to have them.
 *
 * Input: u8 flags, u8 more flags, u16 where the second section begins, u16 entry, then the
 * sections.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cfi_internal.h"

#include "cpu_limit.h"

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);               \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

enum {
  ARM = 1,
  SECOND = 2,
  FIRST_IS_EH = 4,
  SECOND_IS_EH = 8,
  REGISTERS = 16,
  RELOCATABLE = 32,
  SPANS = 64,
  DATA_BASE = 128,
  HEAD = 6,
};

static void check_info(const UnwindInfo *info, u16 machine) {
  u32 base = info->opcode & ~(u32)UNWIND_OPCODEF_DEREF;
  if (info->opcode == UNWIND_OPCODE_COMMAND) {
    REQUIRE(info->param >= UNWIND_COMMAND_INVALID && info->param <= UNWIND_COMMAND_SIGNAL);
    REQUIRE(!info->mergeOpcode && !info->fpOpcode && !info->fpParam);
    return;
  }
  REQUIRE(base == UNWIND_OPCODE_BASE_SP || base == UNWIND_OPCODE_BASE_FP ||
          (info->opcode == UNWIND_OPCODE_BASE_REG && machine == EM_X86_64));
  u32 saved = info->fpOpcode & ~(u32)UNWIND_OPCODEF_DEREF;
  if (machine == EM_AARCH64)
    saved &= ~(u32)UNWIND_OPCODEF_FRAME;
  REQUIRE(saved <= UNWIND_OPCODE_BASE_LR &&
          (saved != UNWIND_OPCODE_BASE_LR || machine == EM_AARCH64));
  REQUIRE((info->mergeOpcode & ~(u32)MERGEOPCODE_NEGATIVE) <= 2);
}

static void check_pages(const cfi_table *table) {
  size_t count = cfi_page_count(table->addresses, table->count);
  REQUIRE(!table->count == !count);
  if (!count || count > CFI_MAX_PAGES)
    return;
  cfi_page *pages = malloc(count * sizeof *pages);
  REQUIRE(pages);
  cfi_pages(table->addresses, table->count, pages, count);
  size_t next = 0;
  for (size_t i = 0; i < count; i++) {
    REQUIRE(pages[i].first == next);
    for (size_t row = next; row < next + pages[i].count; row++)
      REQUIRE((table->addresses[row] & ~(u64)STACK_DELTA_PAGE_MASK) == pages[i].address);
    next += pages[i].count;
  }
  REQUIRE(next == table->count); /* inputs are too small for a page of 65,536 rows */
  free(pages);
}

static void check_table(const cfi_table *table, u16 machine) {
  REQUIRE(table->count <= CFI_MAX_ROWS && table->info_count <= UNWIND_INFO_MAX_ENTRIES);
  for (size_t i = 0; i < table->count; i++) {
    REQUIRE(!i || table->addresses[i - 1] < table->addresses[i]);
    REQUIRE(table->rows[i] < table->info_count);
  }
  for (size_t i = 0; i < table->info_count; i++)
    check_info(&table->infos[i], machine);
  check_pages(table);
  u16 *values = calloc(table->info_count + 1, sizeof *values);
  StackDelta *packed = malloc((table->count + 1) * sizeof *packed);
  REQUIRE(values && packed);
  for (size_t i = 0; i < table->info_count; i++)
    values[i] = (u16)(i ^ 0x8000);
  cfi_pack(table->addresses, table->rows, table->count, values, packed);
  for (size_t i = 0; i < table->count; i++)
    REQUIRE(packed[i].unwindInfo == (u16)(table->rows[i] ^ 0x8000) &&
            packed[i].addrLow == (u16)table->addresses[i]);
  free(values);
  free(packed);
}

/* A copy of its very size. */
static u8 *copy(const u8 *data, size_t size) {
  u8 *made = malloc(size ? size : 1);
  REQUIRE(made);
  memcpy(made, data, size);
  return made;
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
  limit_cpu_time();
  if (size < HEAD)
    return 0;
  u8 flags = data[0], more = data[1];
  u16 split, entry;
  memcpy(&split, data + 2, sizeof split);
  memcpy(&entry, data + 4, sizeof entry);
  data += HEAD;
  size -= HEAD;
  size_t first = flags & SECOND ? split % (size + 1) : size;
  u8 *one = copy(data, first), *other = copy(data + first, size - first);
  u64 base = more & 1 ? 0xffffffff80000000ULL : more & 2 ? 0x7ffffffffffffff0ULL : 0x1000;
  cfi_section sections[] = {
      {.data = one, .size = first, .address = base, .eh = !!(flags & FIRST_IS_EH)},
      {.data = other,
       .size = size - first,
       .address = base + 0x10000,
       .eh = !!(flags & SECOND_IS_EH)},
  };
  /* Code is the section itself, so that inputs may hold a trampoline. */
  cfi_span spans[] = {
      {.start = 0, .end = 0x8000, .code = one, .code_size = first},
      {.start = 0x8000, .end = more & 4 ? ~(u64)0 : 0x100000, .code = NULL},
  };
  cfi_span stubs[] = {
      {.start = split, .end = (u64)split + entry},
      {.start = 0x10, .end = more & 16 ? ~(u64)0 : 0x30},
  };
  cfi_source source = {
      .machine = flags & ARM ? EM_AARCH64 : EM_X86_64,
      .flags = (flags & REGISTERS ? CFI_ALLOW_REGISTERS : 0) |
               (flags & RELOCATABLE ? CFI_RELOCATABLE : 0),
      .entry = entry,
      .data_base = flags & DATA_BASE ? base + 0x400 : 0,
      .sections = sections,
      .section_count = flags & SECOND ? 2 : 1,
      .spans = spans,
      .span_count = flags & SPANS ? 2 : 0,
      .stubs = stubs,
      .stub_count = more & 8 ? 2 : 0,
  };
  cfi_table table = {0};
  int error = cfi_extract(&source, &table);
  REQUIRE(!error);
  check_table(&table, source.machine);
  cfi_release(&table);
  free(one);
  free(other);
  return 0;
}
