/* SPDX-License-Identifier: Apache-2.0 */
/* The walker's maps of an image, made from the ABI's: the seeds hold those. Included by steps.c. */
#pragma once
#include "cfi.h"

enum { MAX_PLACES = 64, UNKNOWN_ROW = STACK_DELTA_COMMAND_FLAG | UNWIND_COMMAND_INVALID };

typedef struct place {
  u64 file_id, text_from;
  u32 pages_first, pages_count;
} place;

typedef struct walker_maps {
  host *host;
  place places[MAX_PLACES];
  u32 place_count, rows_used, pages_used;
} walker_maps;

/* The rows of a file in its bucket, NULL if it has none. */
static const StackDelta *rows_of(host *h, u64 file_id, u32 *count) {
  for (int bits = STACK_DELTA_BUCKET_SMALLEST; bits <= STACK_DELTA_BUCKET_LARGEST; bits++) {
    char name[32];
    host_map *inner = NULL;
    snprintf(name, sizeof name, "exe_id_to_%d_stack_deltas", bits);
    if (host_map_lookup(host_map_find(h, name), &file_id, &inner))
      continue;
    *count = inner->max_entries;
    return host_map_values(inner);
  }
  return NULL;
}

typedef struct file_page {
  u64 address;
  StackDeltaPageInfo info;
} file_page;

static int by_address(const void *a, const void *b) {
  const file_page *one = a, *other = b;
  return one->address < other->address ? -1 : one->address > other->address;
}

/*
 * The rows of a file that a page leads to, with their addresses, of which a row has the low bits:
 * the seeds have all rows, and the pages that a walk comes to. Returns how many.
 */
static u32 take_rows(host *h, u64 file_id, const StackDelta *rows, u32 count, u64 *addresses,
                     StackDelta *taken) {
  host_map *map = host_map_find(h, "stack_delta_page_to_info");
  file_page *pages = calloc(map->room, sizeof *pages);
  u32 page_count = 0, used = 0;
  REQUIRE(pages);
  for (u32 slot = 0; slot < map->room; slot++) {
    StackDeltaPageKey key;
    memcpy(&key, map->keys + (size_t)slot * sizeof key, sizeof key);
    if (map->state[slot] != 1 || key.fileID != file_id)
      continue;
    pages[page_count].address = key.page;
    memcpy(&pages[page_count++].info, map->values + (size_t)slot * sizeof(StackDeltaPageInfo),
           sizeof(StackDeltaPageInfo));
  }
  qsort(pages, page_count, sizeof *pages, by_address);
  for (u32 page = 0; page < page_count; page++)
    for (u32 i = 0; i < pages[page].info.numDeltas; i++) {
      u32 row = pages[page].info.firstDelta + i;
      REQUIRE(row < count);
      addresses[used] = pages[page].address | rows[row].addrLow;
      taken[used++] = rows[row];
    }
  free(pages);
  return used;
}

static place place_of(walker_maps *w, u64 file_id) {
  for (u32 i = 0; i < w->place_count; i++)
    if (w->places[i].file_id == file_id)
      return w->places[i];
  REQUIRE(w->place_count < MAX_PLACES);
  place *made = &w->places[w->place_count++];
  made->file_id = file_id;
  u32 count = 0;
  const StackDelta *rows = rows_of(w->host, file_id, &count);
  if (!rows)
    return *made;
  StackDelta *flat =
      (StackDelta *)host_map_values(host_map_find(w->host, "flat_rows")) + w->rows_used;
  FlatPage *pages =
      (FlatPage *)host_map_values(host_map_find(w->host, "flat_pages")) + w->pages_used;
  u64 *addresses = calloc(count, sizeof *addresses);
  REQUIRE(addresses);
  flat[0] = (StackDelta){.addrLow = 0, .unwindInfo = UNKNOWN_ROW};
  count = take_rows(w->host, file_id, rows, count, addresses, flat + 1);
  if (count) {
    size_t number = cfi_flat_page_count(addresses, count);
    REQUIRE(number <= CFI_MAX_FLAT_PAGES);
    cfi_flat_pages(addresses, count, w->rows_used + 1, pages, number);
    made->text_from = addresses[0] >> FLAT_PAGE_BITS << FLAT_PAGE_BITS;
    made->pages_first = w->pages_used;
    made->pages_count = (u32)number;
    w->rows_used += (count + 2) & ~1u;
    w->pages_used += (u32)number;
  }
  free(addresses);
  return *made;
}

static void fill_walker(host *h) {
  walker_maps w = {.host = h};
  host_map *mappings = host_map_find(h, "pid_page_to_mapping_info");
  for (u32 slot = 0; slot < mappings->room; slot++) {
    PIDPage key;
    PIDPageMappingInfo info;
    if (mappings->state[slot] != 1)
      continue;
    memcpy(&key, mappings->keys + (size_t)slot * sizeof key, sizeof key);
    memcpy(&info, mappings->values + (size_t)slot * sizeof info, sizeof info);
    place at = place_of(&w, info.file_id);
    NativeMapping mapping = {.start = HOST_TO_BE64(key.page),
                             .end = HOST_TO_BE64(key.page) +
                                    (1ULL << (BIT_WIDTH_PID + BIT_WIDTH_PAGE - key.prefixLen)),
                             .file_id = info.file_id,
                             .bias_and_unwind_program = info.bias_and_unwind_program,
                             .text_from = at.text_from,
                             .pages_first = at.pages_first,
                             .pages_count = at.pages_count};
    if (key.page) /* page 0 says that the process is known */
      REQUIRE(!host_map_update(host_map_find(h, "pid_mappings"), &key, &mapping, BPF_ANY));
  }
}
