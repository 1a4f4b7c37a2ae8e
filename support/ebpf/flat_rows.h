/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The walker's way to the row that rules at an address: by an index of small pages. */
#pragma once
#include "maps.h"
#include "records.h"

#ifndef RUBYUNWIND_LEGACY

INLINE const StackDelta *flat_row(u64 index) {
  const StackDelta *rows = map_element(&flat_rows, index / 2);
  return rows ? rows + (index & 1) : NULL;
}

/*
 * find_flat_row does what find_stack_delta does, for an offset in the file of the walk's mapping. A
 * page has 512 bytes, so no more rows, and 9 steps find one. The first of them rules where the page
 * begins, and may lie in an earlier one; addresses are compared with those behind it.
 */
INLINE ErrorCode find_flat_row(const Walk *walk, u64 offset, u32 *info, u32 *distance) {
  const NativeMapping *mapping = &walk->mapping->mapping;
  volatile RowSearch *search = &walk->record->rubyUnwindScratch.row_search;
  ErrorCode error = ERR_NATIVE_LOOKUP_TEXT_SECTION;
  u32 metric = metricID_UnwindNativeErrLookupTextSection;
  u64 number = (offset - mapping->text_from) >> FLAT_PAGE_BITS;
  if (number >= mapping->pages_count)
    goto fail;
  const FlatPage *page = map_element(&flat_pages, mapping->pages_first + number);
  if (!page)
    goto fail;
  search->left = page->first;
  search->right = page->last;
  u64 low = offset & STACK_DELTA_PAGE_MASK;
  for (int bit = FLAT_PAGE_BITS - 1; bit >= 0; bit--) {
    u64 reach = search->left + (1ULL << bit);
    if (reach > search->right)
      continue;
    const StackDelta *row = flat_row(reach);
    if (row && row->addrLow <= low)
      search->left = reach;
  }
  const StackDelta *row = flat_row(search->left);
  if (!row)
    goto fail;
  *info = row->unwindInfo;
  *distance = (low - row->addrLow) & STACK_DELTA_PAGE_MASK;
  return ERR_OK;

fail:
  DEBUG_PRINT("no row for %llx of file %llx: error %d", offset, mapping->file_id, error);
  increment_metric(metric);
  return error;
}

#endif
