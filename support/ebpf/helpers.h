/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What clang does not know about BPF: sections, map definitions, and the kernel helpers we call,
 * by number (enum bpf_func_id of include/uapi/linux/bpf.h). Only these, so that clang alone builds
 * us.
 */
#pragma once
#include "map_definitions.h"
#include "prelude.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __bpf__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

/* The legacy flavour is for kernels before 5.10. The verifier of 4.19 takes no loop (5.3) and no
 * more than 4096 instructions a program (5.2), and a program with tail calls has no subprograms
 * (5.10). */
#ifdef RUBYUNWIND_LEGACY
#define UNROLL_LEGACY _Pragma("unroll")
#else
#define UNROLL_LEGACY
#endif

#ifdef __bpf__

#define SEC(name) __attribute__((section(name), used))

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value,
                                   u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_trace_printk)(const char *format, u32 size, ...) = (void *)6;
static long (*bpf_tail_call)(void *ctx, void *prog_array, u32 index) = (void *)12;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_get_current_comm)(void *buffer, u32 size) = (void *)16;
static long (*bpf_perf_event_output)(void *ctx, void *map, u64 flags, void *data,
                                     u64 size) = (void *)25;
static long (*bpf_get_stackid)(void *ctx, void *map, u64 flags) = (void *)27;
static u64 (*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_get_stack)(void *ctx, void *buffer, u32 size, u64 flags) = (void *)67;
#ifdef RUBYUNWIND_LEGACY
/* bpf_probe_read: before 5.5 one helper reads both. */
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)4;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)4;
#else
static long (*bpf_probe_read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
#endif
static void *(*bpf_get_current_task_btf)(void) = (void *)158;
static long (*bpf_task_pt_regs)(void *task) = (void *)175;
static long (*bpf_loop)(u32 count, void *callback, void *context, u64 flags) = (void *)181;

#else
#include "host/helpers.h"
#endif

/* Release objects hold no trace of a debug print, not even its strings. */
#if defined(RUBYUNWIND_DEBUG) && defined(__bpf__)
#define DEBUG_PRINT(format, ...)                                                                   \
  ({                                                                                               \
    static const char text[] = format;                                                             \
    bpf_trace_printk(text, sizeof(text), ##__VA_ARGS__);                                           \
  })
#else
#define DEBUG_PRINT(format, ...)                                                                   \
  do {                                                                                             \
  } while (0)
#endif

INLINE long read_user(void *to, u32 size, u64 from) {
  return bpf_probe_read_user(to, size, (const void *)from);
}

/*
 * map_element looks up a u32 key. It travels in eight bytes (little endian, both architectures
 * are): the verifier takes only a whole stack slot as overwritten, and would else keep states apart
 * that differ in what an earlier key has left there.
 */
INLINE void *map_element(void *map, u64 key) { return bpf_map_lookup_elem(map, &key); }
