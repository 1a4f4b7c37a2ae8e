/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Finding the row of the native unwind table that rules at an address of a file. */
#pragma once
#include "maps.h"
#include "records.h"

INLINE void *stack_delta_bucket(u32 map_id) {
  switch (map_id) {
  case 8:
    return &exe_id_to_8_stack_deltas;
  case 9:
    return &exe_id_to_9_stack_deltas;
  case 10:
    return &exe_id_to_10_stack_deltas;
  case 11:
    return &exe_id_to_11_stack_deltas;
  case 12:
    return &exe_id_to_12_stack_deltas;
  case 13:
    return &exe_id_to_13_stack_deltas;
  case 14:
    return &exe_id_to_14_stack_deltas;
  case 15:
    return &exe_id_to_15_stack_deltas;
  case 16:
    return &exe_id_to_16_stack_deltas;
  case 17:
    return &exe_id_to_17_stack_deltas;
  case 18:
    return &exe_id_to_18_stack_deltas;
  case 19:
    return &exe_id_to_19_stack_deltas;
  case 20:
    return &exe_id_to_20_stack_deltas;
  case 21:
    return &exe_id_to_21_stack_deltas;
  case 22:
    return &exe_id_to_22_stack_deltas;
  case 23:
    return &exe_id_to_23_stack_deltas;
  default:
    return NULL;
  }
}

/*
 * find_stack_delta finds the row for `offset` (ELF virtual address) in file `file_id`: its unwind
 * info index or command in *info, and in *distance how far offset lies behind the address of the
 * row.
 *
 * Written for the verifier, which follows every way through the loop, for every bucket: the place
 * of the search lives in map memory (it knows nothing of what is loaded from there, so all ways end
 * alike), and failures leave through one door.
 */
INLINE ErrorCode find_stack_delta(volatile RowSearch *search, u64 file_id, u64 offset, u32 *info,
                                  u32 *distance) {
  ErrorCode error = ERR_NATIVE_LOOKUP_TEXT_SECTION;
  u32 metric = metricID_UnwindNativeErrLookupTextSection;

  StackDeltaPageKey key = {};
  key.fileID = file_id;
  key.page = offset & ~(u64)STACK_DELTA_PAGE_MASK;
  const StackDeltaPageInfo *page = bpf_map_lookup_elem(&stack_delta_page_to_info, &key);
  if (!page)
    goto fail;
  search->first = page->firstDelta;
  search->left = page->firstDelta;
  search->right = page->firstDelta + page->numDeltas;

  error = ERR_NATIVE_LOOKUP_STACK_DELTA_OUTER_MAP;
  metric = metricID_UnwindNativeErrLookupStackDeltaOuterMap;
  void *bucket = stack_delta_bucket(page->mapID);
  if (!bucket)
    goto fail;
  error = ERR_NATIVE_LOOKUP_STACK_DELTA_INNER_MAP;
  metric = metricID_UnwindNativeErrLookupStackDeltaInnerMap;
  void *rows = bpf_map_lookup_elem(bucket, &file_id);
  if (!rows)
    goto fail;

  /* Finds the first row behind the offset. numDeltas is a u16, so 16 steps, each half as wide, are
   * enough. In 64 bits: before -mcpu=v3 a number of 32 takes two more instructions each time. */
  error = ERR_NATIVE_LOOKUP_RANGE;
  metric = metricID_UnwindNativeErrLookupRange;
  u64 low = offset & STACK_DELTA_PAGE_MASK;
  UNROLL_LEGACY
  for (int bit = 15; bit >= 0; bit--) {
    u64 reach = search->left + (1ULL << bit);
    if (reach > search->right)
      continue;
    const StackDelta *row = map_element(rows, reach - 1);
    if (!row)
      goto fail;
    if (row->addrLow <= low)
      search->left = reach;
  }
  /* The row before it rules; it may be the last of an earlier page. */
  u64 index = (u64)search->left - 1;
  const StackDelta *row = map_element(rows, index);
  if (!row)
    goto fail;
  *info = row->unwindInfo;
  *distance = low - row->addrLow;
  if (index < search->first)
    *distance += STACK_DELTA_PAGE_MASK + 1;
  return ERR_OK;

fail:
  DEBUG_PRINT("no row for %llx of file %llx: error %d", offset, file_id, error);
  increment_metric(metric);
  return error;
}
