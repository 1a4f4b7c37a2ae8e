/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what takes records off the perf buffers: any record, also with sizes that contradict each
 * other, is counted or copied whole, and nothing behind it is read. The same records are grouped as
 * traces: what comes out of the columns is what went in.
 *
 * Input: u8 initial size of the block, then events: struct perf_event_header (its size may be more
 * than what is left: the rest is zeros then) and what follows it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drain.h"
#include "group.h"
#include "types.h"

#include "cpu_limit.h"

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

/* The samples of a batch must be the traces among the records, each behind its thread's and stack's
 * number, in order. */
static void check_group(const group *g, const drain *d) {
  u32 sample = 0;
  REQUIRE(!g->error && g->samples <= g->size);
  for (size_t at = 0; at < d->used;) {
    drain_record head;
    Trace trace = {0}, key = {0}, kept = {0};
    memcpy(&head, d->data + at, sizeof head);
    const u8 *payload = d->data + at + sizeof head;
    at += sizeof head + ((head.length + 7u) & ~7u);
    size_t header = offsetof(Trace, frames);
    if (head.length < header)
      continue;
    memcpy(&trace, payload, header);
    size_t need = header + (size_t)trace.stack_len * sizeof(Frame);
    if (trace.stack_len > MAX_DEEP_FRAMES || head.length < need ||
        (head.length - need >= 8 &&
         (head.length < sizeof(Trace) || head.length >= sizeof(Trace) + 8)))
      continue;
    REQUIRE(sample < g->samples);
    REQUIRE(g->time[sample] == trace.ktime && g->offtime[sample] == trace.offtime);
    REQUIRE(g->cpu[sample] == head.cpu);
    REQUIRE(g->stack[sample] < g->stacks.count && g->thread[sample] < g->threads.count);
    const interned *stack = &g->stacks.strings[g->stack[sample]];
    const interned *thread = &g->threads.strings[g->thread[sample]];
    REQUIRE(stack->size == need && stack->at + need <= g->stacks.bytes_used && stack->count);
    REQUIRE(!memcmp(g->stacks.bytes + stack->at + header, payload + header, need - header));
    memcpy(&kept, g->stacks.bytes + stack->at, header);
    key.pid = trace.pid;
    key.kernel_stack_id = trace.kernel_stack_id;
    key.stack_len = trace.stack_len;
    key.origin = trace.origin;
    key.flags = trace.flags;
    REQUIRE(!memcmp(&kept, &key, header));
    REQUIRE(thread->size == 8 + COMM_LEN);
    REQUIRE(!memcmp(g->threads.bytes + thread->at, &trace.pid, 8));
    REQUIRE(!memcmp(g->threads.bytes + thread->at + 8, trace.comm, COMM_LEN));
    sample++;
  }
  REQUIRE(sample == g->samples);
  u64 counted = 0;
  for (u32 i = 0; i < g->stacks.count; i++)
    counted += g->stacks.strings[i].count;
  REQUIRE(counted == sample);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
  limit_cpu_time();
  if (!size)
    return 0;
  drain *d = drain_new(data[0]);
  group *g = group_new(data[0]);
  REQUIRE(d && g);
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
    REQUIRE(group_event(g, i, event) == -2);
    free(event);
    REQUIRE(d->counts.records - before <= 1);
    if (d->counts.records > before) {
      before = d->counts.records;
    }
    if (i == MAX_EVENTS / 2) {
      check_block(d, d->counts.records);
      check_group(g, d);
      drain_reset(d);
      group_clear(g);
      REQUIRE(!g->samples && !g->stacks.count);
      REQUIRE(!d->used);
      before = d->counts.records = 0;
    }
  }
  check_block(d, d->counts.records);
  check_group(g, d);
  drain_free(d);
  group_free(g);
  return 0;
}
