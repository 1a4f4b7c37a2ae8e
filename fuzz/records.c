/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what takes records off the perf buffers: any record, also with sizes that contradict each
 * other, is counted or copied whole, and nothing behind it is read.
 *
 * Input: u8 initial size of the block, then events: struct perf_event_header (its size may be more
 * than what is left: the rest is zeros then) and what follows it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drain.h"

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);               \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

enum { HEADER = 8, SIZE_AT = 6, MAX_EVENTS = 64 };

static void check_block(const drain *d, u64 records) {
  size_t at = 0;
  u64 found = 0;
  REQUIRE(d->used <= d->size && !d->error);
  while (at < d->used) {
    drain_record head;
    REQUIRE(d->used - at >= sizeof head);
    memcpy(&head, d->data + at, sizeof head);
    at += sizeof head + ((head.length + 7u) & ~7u);
    found++;
  }
  REQUIRE(at == d->used && found == records);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
  if (!size)
    return 0;
  drain *d = drain_new(data[0]);
  REQUIRE(d);
  const u8 *end = data + size;
  data++;
  u64 before = 0;
  for (int i = 0; i < MAX_EVENTS && end - data >= HEADER; i++) {
    u16 length;
    memcpy(&length, data + SIZE_AT, sizeof length);
    if (length < HEADER) /* the kernel's records have at least their header */
      length = HEADER;
    size_t there = (size_t)(end - data) < length ? (size_t)(end - data) : length;
    /* Of its very size, and aligned as in a ring buffer. */
    u8 *event = calloc(1, length);
    REQUIRE(event);
    memcpy(event, data, there);
    memcpy(event + SIZE_AT, &length, sizeof length);
    data += there;
    REQUIRE(drain_event(d, i, event) == -2); /* LIBBPF_PERF_EVENT_CONT */
    free(event);
    REQUIRE(d->records - before <= 1);
    if (d->records > before) {
      before = d->records;
    }
    if (i == MAX_EVENTS / 2) {
      check_block(d, d->records);
      drain_reset(d);
      REQUIRE(!d->used);
      before = d->records = 0;
    }
  }
  check_block(d, d->records);
  drain_free(d);
  return 0;
}
