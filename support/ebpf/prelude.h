/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Integer types for both targets. -target bpf must not see <linux/types.h> (it wants asm/ headers
 * of some architecture); the host must take __be32 from there, a typedef of ours would clash. */
#pragma once
#ifdef __bpf__
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed short s16;
typedef signed int s32;
typedef signed long long s64;
typedef u32 __be32;
typedef u64 __be64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)
#else
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
#endif
