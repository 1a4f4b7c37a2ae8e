/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's helpers for the host build, with the names and meanings they have in BPF programs.
 */
#pragma once
#include <string.h>

#include "host.h"

#define SEC(name) __attribute__((unused))

#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, value) __typeof__(value) *name
#define MAP_VALUES(value) __typeof__(value) *values[]

enum { /* enum bpf_map_type */
       BPF_MAP_TYPE_HASH = 1,
       BPF_MAP_TYPE_ARRAY = 2,
       BPF_MAP_TYPE_PROG_ARRAY = 3,
       BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
       BPF_MAP_TYPE_PERCPU_ARRAY = 6,
       BPF_MAP_TYPE_STACK_TRACE = 7,
       BPF_MAP_TYPE_LRU_HASH = 9,
       BPF_MAP_TYPE_LRU_PERCPU_HASH = 10,
       BPF_MAP_TYPE_LPM_TRIE = 11,
       BPF_MAP_TYPE_HASH_OF_MAPS = 13
};
enum {
  BPF_ANY = 0,
  BPF_NOEXIST = 1,
  BPF_F_NO_PREALLOC = 1,
  BPF_F_MMAPABLE = 0x400,
  BPF_F_INNER_MAP = 0x1000
};
#define BPF_F_CURRENT_CPU 0xffffffffULL

#define HOST_TO_BE32(x) __builtin_bswap32(x)
#define HOST_TO_BE64(x) __builtin_bswap64(x)

void *bpf_map_lookup_elem(void *map, const void *key);
long bpf_map_update_elem(void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(void *map, const void *key);
u64 bpf_ktime_get_ns(void);
long bpf_tail_call(void *ctx, void *prog_array, u32 index);
u64 bpf_get_current_pid_tgid(void);
long bpf_get_current_comm(void *buffer, u32 size);
long bpf_perf_event_output(void *ctx, void *map, u64 flags, void *data, u64 size);
long bpf_get_stackid(void *ctx, void *map, u64 flags);
u64 bpf_get_current_task(void);
long bpf_get_stack(void *ctx, void *buffer, u32 size, u64 flags);
long bpf_probe_read_user(void *to, u32 size, const void *from);
long bpf_probe_read_kernel(void *to, u32 size, const void *from);
void *bpf_get_current_task_btf(void);
long bpf_task_pt_regs(void *task);
