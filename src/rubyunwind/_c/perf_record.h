/* SPDX-License-Identifier: Apache-2.0 */
/* What libbpf hands over for each record of a perf buffer: a lost count, or a payload. */
#pragma once
#include <string.h>

#include "prelude.h"

#include "perf_record.cdef"

enum {
  /* include/uapi/linux/perf_event.h: enum perf_event_type */
  PERF_RECORD_LOST = 2,
  PERF_RECORD_SAMPLE = 9,
  /* LIBBPF_PERF_EVENT_CONT, LIBBPF_PERF_EVENT_ERROR of libbpf.h */
  CONTINUE = -2,
  FAIL = -1,
};

/* struct perf_event_header, then for a sample with PERF_SAMPLE_RAW alone: u32 size, bytes. */
struct perf_header {
  u32 type;
  u16 misc, size;
};

/* Returns the payload of a sample and its length as the kernel gave it (padded); NULL for any other
 * record. Counts losses, and records whose sizes contradict each other. */
static inline const u8 *perf_payload(const void *event, perf_counts *counts, u32 *length) {
  const u8 *bytes = event;
  struct perf_header head;

  memcpy(&head, bytes, sizeof head);
  if (head.type == PERF_RECORD_LOST) {
    u64 lost; /* header, u64 id, u64 lost */
    if (head.size >= 24) {
      memcpy(&lost, bytes + 16, sizeof lost);
      counts->lost += lost;
    }
    return NULL;
  }
  if (head.type != PERF_RECORD_SAMPLE)
    return NULL;
  if (head.size >= sizeof head + sizeof *length) {
    memcpy(length, bytes + sizeof head, sizeof *length);
    if (*length <= head.size - sizeof head - sizeof *length)
      return bytes + sizeof head + sizeof *length;
    /* The kernel's u16 record size wrapped: the raw size points past the record. */
  }
  counts->malformed++;
  return NULL;
}
