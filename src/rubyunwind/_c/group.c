/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes traces off perf buffers and groups them: of equal stacks one is kept, and of each sample
 * what only it has, in columns. A batch begins and ends where Python takes it.
 */
#include "group.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "types.h"

enum {
  HEADER = offsetof(Trace, frames),
  FIRST_SAMPLES = 1024,
  THREAD_KEY = 8 + COMM_LEN,
};

group *group_new(u64 seed) {
  group *g = calloc(1, sizeof *g);
  if (!g)
    return NULL;
  if (!intern_init(&g->stacks, seed) && !intern_init(&g->threads, ~seed))
    return g;
  group_free(g);
  return NULL;
}

void group_free(group *g) {
  if (!g)
    return;
  intern_release(&g->stacks);
  intern_release(&g->threads);
  free(g->time);
  free(g->offtime);
  free(g->stack);
  free(g->thread);
  free(g->cpu);
  free(g);
}

void group_clear(group *g) {
  g->samples = 0;
  g->error = 0;
  intern_clear(&g->stacks);
  intern_clear(&g->threads);
}

static bool resize(void *column, u32 size, size_t width) {
  void **place = column;
  void *data = realloc(*place, size * width);
  if (data)
    *place = data;
  return data;
}

static bool grow(group *g) {
  u32 size = g->size ? 2 * g->size : FIRST_SAMPLES;
  if (size <= g->size || !resize(&g->time, size, sizeof *g->time) ||
      !resize(&g->offtime, size, sizeof *g->offtime) ||
      !resize(&g->stack, size, sizeof *g->stack) || !resize(&g->thread, size, sizeof *g->thread) ||
      !resize(&g->cpu, size, sizeof *g->cpu))
    return false;
  g->size = size;
  return true;
}

/* Bytes of the trace in a payload; 0 if the payload is none. The rules are decode_trace's. */
static size_t trace_size(const Trace *head, u32 length) {
  if (head->stack_len > MAX_DEEP_FRAMES)
    return 0;
  size_t need = HEADER + head->stack_len * sizeof(Frame);
  bool uncut = length >= sizeof(Trace) && length < sizeof(Trace) + 8;
  return length >= need && (length - need < 8 || uncut) ? need : 0;
}

int group_event(void *ctx, int cpu, void *event) {
  group *g = ctx;
  u32 length;
  const u8 *payload = perf_payload(event, &g->counts, &length);
  if (!payload)
    return CONTINUE;

  union {
    Trace trace; /* only its header is filled */
    u8 bytes[HEADER];
  } head = {.bytes = {0}}, key = {.bytes = {0}};
  size_t size = 0;
  if (length >= HEADER) {
    memcpy(head.bytes, payload, HEADER);
    size = trace_size(&head.trace, length);
  }
  if (!size) {
    g->counts.malformed++;
    return CONTINUE;
  }
  key.trace.pid = head.trace.pid;
  key.trace.kernel_stack_id = head.trace.kernel_stack_id;
  key.trace.stack_len = head.trace.stack_len;
  key.trace.origin = head.trace.origin;
  key.trace.flags = head.trace.flags;
  u8 thread[THREAD_KEY];
  memcpy(thread, &head.trace.pid, 8); /* and tid */
  memcpy(thread + 8, head.trace.comm, COMM_LEN);

  s64 in_threads = intern_add(&g->threads, thread, sizeof thread, thread, 0);
  s64 in_stacks = intern_add(&g->stacks, key.bytes, HEADER, payload + HEADER, size - HEADER);
  if (in_threads < 0 || in_stacks < 0 || (g->samples == g->size && !grow(g))) {
    g->error = ENOMEM;
    return FAIL;
  }
  g->time[g->samples] = head.trace.ktime;
  g->offtime[g->samples] = head.trace.offtime;
  g->stack[g->samples] = (u32)in_stacks;
  g->thread[g->samples] = (u32)in_threads;
  g->cpu[g->samples] = (u32)cpu;
  g->samples++;
  g->counts.records++;
  return CONTINUE;
}
