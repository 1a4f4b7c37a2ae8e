/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How maps are declared, and the numbers of include/uapi/linux/bpf.h that this takes; BPF and host
 * alike. */
#pragma once

/* BTF map definitions: libbpf reads the types of these members, never their values. */
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
  BPF_F_MMAPABLE = 0x400,  /* 5.5: user space fills an array without a system call per entry */
  BPF_F_INNER_MAP = 0x1000 /* 5.10: inner arrays may differ from the template in size */
};
#define BPF_F_CURRENT_CPU 0xffffffffULL

#define HOST_TO_BE32(x) __builtin_bswap32(x)
#define HOST_TO_BE64(x) __builtin_bswap64(x)
