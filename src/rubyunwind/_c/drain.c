/* SPDX-License-Identifier: Apache-2.0 */
/* Takes records off perf buffers into one block, so that Python is not called for each of them. */
#include "drain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
  u32 length;
  const u8 *payload = perf_payload(event, &d->counts, &length);
  if (!payload)
    return CONTINUE;

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
  memcpy(record + 1, payload, length);
  d->used += need;
  d->counts.records++;
  return CONTINUE;
}
