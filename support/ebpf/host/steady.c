/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Ruby stack of a thread that runs on meanwhile. A walk takes a hundred times longer than a
 * method call, so everything that calls and returns change is copied in one go first, and believed
 * if it held still for that moment: where a stack changes all the time there are many such moments,
 * each some hundred nanoseconds long.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#include "helpers.h"

enum {
  HEADS = 2,
  HEAD_SIZE = 264,    /* fields of an execution context have offsets of a byte */
  MOST_FRAMES = 192,  /* as many as fill a trace, and some that Ruby does not show */
  MARGIN_FRAMES = 16, /* so many the stack may have grown since the last look */
  MOST_FRAME_SIZE = 96,
  FRAMES_SIZE = (MOST_FRAMES + MARGIN_FRAMES) * MOST_FRAME_SIZE,
  MARGIN_VALUES = 1024,
  VALUES_SIZE = 64 << 10,
  ENV_BEFORE = 16, /* bytes of an environment before ep, and with it */
  ENV_SIZE = 24,
  MOST_WORDS = 1 << 27, /* of a VM stack that is believed in */
  ADDRESS_BITS = 56,    /* user addresses have no more: so sums of them do not wrap */
};

/* What is copied: the context and the frames twice, before and after the values that lie between
 * them in time. */
typedef struct snapshot {
  u8 head[HEADS][HEAD_SIZE];
  u8 frames[HEADS][FRAMES_SIZE];
  u8 values[VALUES_SIZE];
  host_overlay overlays[3];
} snapshot;

/* Where it is copied from. */
typedef struct extent {
  u64 low, high; /* addresses of frames */
  u64 values, values_end;
  u64 end; /* of the stack that they belong to */
} extent;

size_t host_steady_size(void) { return sizeof(snapshot); }

static u64 word_at(const u8 *bytes) {
  u64 word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

/* One system call where that is allowed: 0, or -errno. */
static int copy_all(host_memory *memory, u32 pid, const struct iovec *to, const struct iovec *from,
                    int count) {
  size_t wanted = 0;
  for (int i = 0; i < count; i++)
    wanted += to[i].iov_len;
  if (memory->fd >= 0 && !memory->piecemeal) {
    ssize_t got =
        process_vm_readv((pid_t)pid, to, (unsigned long)count, from, (unsigned long)count, 0);
    if (got == (ssize_t)wanted)
      return 0;
    if (got >= 0 || (errno != EPERM && errno != ENOSYS))
      return -EFAULT;
    memory->piecemeal = 1; /* a seccomp filter: the descriptor may be read all the same */
  }
  for (int i = 0; i < count; i++, memory->run++) /* never what an earlier read has left */
    if (to[i].iov_len && host_read_memory(memory, to[i].iov_base, (u32)to[i].iov_len,
                                          (u64)(uintptr_t)from[i].iov_base))
      return -EFAULT;
  return 0;
}

/* The newest frame that a copied context names, 0 if its numbers contradict each other. `end` is
 * behind the oldest. */
static u64 newest_frame(const RubyProcInfo *ruby, const u8 *head, u64 *stack, u64 *end) {
  u64 words = word_at(head + ruby->vm_stack_size);
  u64 cfp = word_at(head + ruby->cfp);
  *stack = word_at(head + ruby->vm_stack);
  *end = *stack + words * ruby->size_of_value;
  if (words > MOST_WORDS || *stack >> ADDRESS_BITS || cfp < *stack || cfp >= *end ||
      (*end - cfp) % ruby->size_of_control_frame_struct)
    return 0;
  return cfp;
}

/* What to copy next, by what was copied last: frames from the newest on, and the values that their
 * eps are in. */
static void choose(const RubyProcInfo *ruby, const snapshot *copy, const extent *last, u64 cfp,
                   u64 stack, u64 end, extent *next) {
  u64 size = ruby->size_of_control_frame_struct;
  u64 lowest = ~0ULL, highest = 0;
  next->low = cfp - stack > MARGIN_FRAMES * size ? cfp - MARGIN_FRAMES * size : cfp;
  next->high = end - cfp > MOST_FRAMES * size ? cfp + MOST_FRAMES * size : end;
  for (u64 at = cfp; at + size <= next->high && at >= last->low && at + size <= last->high;
       at += size) {
    u64 ep = word_at(copy->frames[1] + (at - last->low) + ruby->ep);
    if (ep < stack + ENV_BEFORE || ep >= cfp) /* on the heap: it stays what it is */
      continue;
    lowest = ep < lowest ? ep : lowest;
    highest = ep > highest ? ep : highest;
  }
  next->end = end;
  next->values = next->values_end = 0;
  if (highest) {
    next->values = lowest - ENV_BEFORE;
    next->values_end = highest + MARGIN_VALUES;
    if (next->values_end > cfp)
      next->values_end = cfp;
    if (next->values_end - next->values > VALUES_SIZE) /* the newest ones: those change */
      next->values = next->values_end - VALUES_SIZE;
  }
}

/* Whether the frames from `cfp` on are the same in both copies. Of the newest, pc and sp run on. */
static bool held_still(const RubyProcInfo *ruby, const snapshot *copy, const extent *where,
                       u64 cfp) {
  u64 size = ruby->size_of_control_frame_struct;
  const u8 *first = copy->frames[0] + (cfp - where->low),
           *second = copy->frames[1] + (cfp - where->low);
  return !memcmp(first + size, second + size, where->high - cfp - size) &&
         !memcmp(first + ruby->iseq, second + ruby->iseq, sizeof(u64)) &&
         !memcmp(first + ruby->ep, second + ruby->ep, sizeof(u64));
}

/* Whether the environments of all frames that change were copied. */
static bool has_values(const RubyProcInfo *ruby, const snapshot *copy, const extent *where, u64 cfp,
                       u64 stack) {
  u64 ep = word_at(copy->frames[1] + (cfp - where->low) + ruby->ep);
  if (ep < stack + ENV_BEFORE || ep >= cfp)
    return true;
  return ep - ENV_BEFORE >= where->values && ep - ENV_BEFORE + ENV_SIZE <= where->values_end;
}

/* Copy until a copy is good. 0, -EAGAIN: it changed each time, -EFAULT: it cannot be read, -EINVAL:
 * no stack. */
static int take(snapshot *copy, const RubyProcInfo *ruby, u64 ec, u32 pid, host_memory *memory,
                u32 attempts) {
  extent where = {0}, next;
  u64 stack, end;
  u32 head_size = ruby->cfp > ruby->vm_stack_size ? ruby->cfp : ruby->vm_stack_size;
  head_size = (head_size > ruby->vm_stack ? head_size : ruby->vm_stack) + sizeof(u64);
  struct iovec head_from = {(void *)(uintptr_t)ec, head_size}, head_to = {copy->head[1], head_size};
  u32 size = ruby->size_of_control_frame_struct;
  if (size > MOST_FRAME_SIZE || ruby->iseq + sizeof(u64) > size || ruby->ep + sizeof(u64) > size)
    return -EINVAL;
  int error = copy_all(memory, pid, &head_to, &head_from, 1);
  for (u32 i = 0; !error; i++) {
    u64 cfp = newest_frame(ruby, copy->head[1], &stack, &end);
    if (!cfp)
      return -EINVAL;
    choose(ruby, copy, &where, cfp, stack, end, &next);
    where = next;
    if (i == attempts)
      return -EAGAIN;
    u64 frames = where.high - where.low, values = where.values_end - where.values;
    struct iovec to[] = {{copy->head[0], head_size},
                         {copy->frames[0], frames},
                         {copy->values, values},
                         {copy->frames[1], frames},
                         {copy->head[1], head_size}};
    struct iovec from[] = {head_from,
                           {(void *)(uintptr_t)where.low, frames},
                           {(void *)(uintptr_t)where.values, values},
                           {(void *)(uintptr_t)where.low, frames},
                           head_from};
    error = copy_all(memory, pid, to, from, sizeof to / sizeof *to);
    if (!i || error ||
        memcmp(copy->head[0], copy->head[1], head_size)) /* the first one shows where to look */
      continue;
    cfp = newest_frame(ruby, copy->head[1], &stack, &end);
    /* The stack may be another than the one that `where` was chosen by. */
    if (end != where.end || cfp < where.low || cfp >= where.high || where.high - cfp < size ||
        !held_still(ruby, copy, &where, cfp) || !has_values(ruby, copy, &where, cfp, stack))
      continue;
    copy->overlays[0] = (host_overlay){ec, head_size, copy->head[1]};
    copy->overlays[1] = (host_overlay){where.low, frames, copy->frames[1]};
    copy->overlays[2] = (host_overlay){where.values, values, copy->values};
    return 0;
  }
  return error;
}

int host_run_steady(host *h, u64 ec, const host_task *task, host_memory *memory, void *scratch,
                    u32 attempts) {
  snapshot *copy = scratch;
  const RubyProcInfo *ruby = host_map_element(host_map_find(h, "ruby_procs"), &task->pid);
  if (!ruby)
    return -ENOENT;
  memory->run++;
  int error = take(copy, ruby, ec, task->pid, memory, attempts);
  if (error)
    return error;
  memory->overlays = copy->overlays;
  memory->overlay_count = sizeof copy->overlays / sizeof *copy->overlays;
  error = host_run_context(h, ec, task, memory);
  memory->overlay_count = 0;
  memory->overlays = NULL;
  return error;
}
