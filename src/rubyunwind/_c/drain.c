/* SPDX-License-Identifier: Apache-2.0 */
/* Takes records off perf buffers into one block, so that Python is not called for each of them. */
#include "drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
  /* include/uapi/linux/perf_event.h: enum perf_event_type */
  PERF_RECORD_LOST = 2,
  PERF_RECORD_SAMPLE = 9,
  /* LIBBPF_PERF_EVENT_CONT, LIBBPF_PERF_EVENT_ERROR of libbpf.h */
  CONTINUE = -2,
  FAIL = -1,
};

/* struct perf_event_header, then for a sample with PERF_SAMPLE_RAW alone: u32 size, bytes. */
struct header {
  u32 type;
  u16 misc, size;
};

drain *drain_new(size_t size) {
  drain *d = calloc(1, sizeof *d);
  if (!d)
    return NULL;
  d->data = malloc(size);
  d->size = size;
  if (!d->data) {
    free(d);
    return NULL;
  }
  return d;
}

void drain_free(drain *d) {
  if (d) {
    free(d->data);
    free(d);
  }
}

void drain_reset(drain *d) {
  d->used = 0;
  d->error = 0;
}

int drain_event(void *ctx, int cpu, void *event) {
  drain *d = ctx;
  const u8 *bytes = event;
  struct header head;
  u32 length;

  memcpy(&head, bytes, sizeof head);
  if (head.type == PERF_RECORD_LOST) {
    u64 lost; /* header, u64 id, u64 lost */
    if (head.size >= 24) {
      memcpy(&lost, bytes + 16, sizeof lost);
      d->lost += lost;
    }
    return CONTINUE;
  }
  if (head.type != PERF_RECORD_SAMPLE)
    return CONTINUE;
  if (head.size < sizeof head + sizeof length) {
    d->malformed++;
    return CONTINUE;
  }
  memcpy(&length, bytes + sizeof head, sizeof length);
  if (length > head.size - sizeof head - sizeof length) {
    /* The kernel's u16 record size wrapped: the raw size points past the record. */
    d->malformed++;
    return CONTINUE;
  }

  size_t need = sizeof(drain_record) + ((length + 7u) & ~7u);
  if (d->size - d->used < need) {
    size_t size = d->size * 2 > d->used + need ? d->size * 2 : d->used + need;
    u8 *data = realloc(d->data, size);
    if (!data) {
      d->error = ENOMEM;
      return FAIL;
    }
    d->data = data;
    d->size = size;
  }
  drain_record *record = (drain_record *)(d->data + d->used);
  record->length = length;
  record->cpu = (u32)cpu;
  memcpy(record + 1, bytes + sizeof head + sizeof length, length);
  d->used += need;
  d->records++;
  return CONTINUE;
}
