/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's helpers for the host build, with the names and meanings they have in BPF programs.
 */
#pragma once
#include <string.h>

#include "../map_definitions.h"
#include "host.h"

#define SEC(name) __attribute__((unused))

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
u64 bpf_ktime_get_ns(void);
long bpf_tail_call(void *ctx, void *prog_array, u32 index);
u64 bpf_get_current_pid_tgid(void);
u32 bpf_get_smp_processor_id(void);
long bpf_get_current_comm(void *buffer, u32 size);
long bpf_perf_event_output(void *ctx, void *map, u64 flags, void *data, u64 size);
long bpf_get_stackid(void *ctx, void *map, u64 flags);
u64 bpf_get_current_task(void);
long bpf_get_stack(void *ctx, void *buffer, u32 size, u64 flags);
long bpf_probe_read_user(void *to, u32 size, const void *from);
long bpf_probe_read_kernel(void *to, u32 size, const void *from);
void *bpf_get_current_task_btf(void);
long bpf_task_pt_regs(void *task);
