/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The host's side of the kernel: maps, memory and the task that programs see. */
#pragma once
#include <setjmp.h>
#include <stddef.h>

#include "../prelude.h"
#include "../types.h"
#include "host.cdef"

void *host_map_element(struct host_map *map, const void *key);
long host_read_memory(host_memory *memory, void *to, u32 length, u64 address);

/* The run that the helpers of this thread serve. */
typedef struct host_run_state {
  host *host;
  const host_task *task;
  host_memory *memory;
  jmp_buf done;
  u32 tail_calls;
} host_run_state;

extern __thread host_run_state *host_current;
int (*host_program(host *h, u32 slot))(void *);
int host_send(host *h, const void *map, const void *data, u64 size);
