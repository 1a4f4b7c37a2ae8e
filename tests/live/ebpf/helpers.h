/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The few declarations that the loader's test programs need. Helper numbers: include/uapi/linux/bpf.h. */
#pragma once
#include "types.h"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, type) type *name
#define __array(name, type) type *name[]

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_tail_call)(void *ctx, void *map, u32 index) = (void *)12;
static long (*bpf_perf_event_output)(void *ctx, void *map, u64 flags, void *data, u64 size) = (void *)25;
static long (*bpf_get_stackid)(void *ctx, void *map, u64 flags) = (void *)27;

enum {
  BPF_MAP_TYPE_HASH = 1,
  BPF_MAP_TYPE_ARRAY = 2,
  BPF_MAP_TYPE_PROG_ARRAY = 3,
  BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
  BPF_MAP_TYPE_PERCPU_ARRAY = 6,
  BPF_MAP_TYPE_STACK_TRACE = 7,
  BPF_MAP_TYPE_LPM_TRIE = 11,
  BPF_MAP_TYPE_HASH_OF_MAPS = 13,
  BPF_F_NO_PREALLOC = 0x1,
  BPF_F_MMAPABLE = 0x400,
  BPF_F_INNER_MAP = 0x1000,
};
#define BPF_F_CURRENT_CPU 0xffffffffULL
