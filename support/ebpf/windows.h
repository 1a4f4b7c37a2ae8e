/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Reading a process. A read of a thousand bytes costs less than two of eight, so the walker reads
 * the surroundings of a word with it, where they are known to be there: a read that faults costs as
 * much as fifty that do not. The chain, which has no room for windows, reads each word by itself.
 */
#pragma once
#include "records.h"

enum { WORD = 8, PAGE = 4096 };

/* An index into a window. Behind the barrier clang has no earlier check to make do with, which the
 * verifier would not connect with what is indexed. */
INLINE u64 index_in(u64 offset, u64 words) {
  u64 index = offset / WORD;
  asm volatile("" : "+r"(index));
  return index & (words - 1);
}

/*
 * Reads what a window is to hold; it counts as empty if that fails. What is asked for is read by
 * itself where its surroundings are not there: paged out, or missing from a core.
 */
INLINE long fill_window(WindowBounds *bounds, void *words, u64 from, u64 bytes, u64 room,
                        u64 asked_from, u64 asked_bytes) {
  asm volatile("" : "+r"(bytes));
  if (bytes > room)
    bytes = room;
  long error = read_user(words, bytes, from);
  if (error) {
    from = asked_from;
    bytes = asked_bytes & 0xff;
    error = read_user(words, bytes, from);
  }
  bounds->from = from;
  bounds->bytes = error ? 0 : bytes;
  return error;
}

/* The place in a window of `bytes` bytes at `address`, or `limit` if they are not all in it. */
INLINE u64 place_in(const WindowBounds *bounds, u64 address, u64 bytes, u64 limit) {
  u64 offset = address - bounds->from;
  if (offset >= limit || (offset & (WORD - 1)) || offset + bytes > bounds->bytes)
    return limit;
  return offset;
}

/* A word of the native stack. Windows end with the page: what lies behind it may not be there. */
INLINE long read_stack_word(const Walk *walk, u64 *value, u64 address) {
  Windows *windows = walk->windows;
  if (!windows)
    return read_user(value, WORD, address);
  enum { BYTES = STACK_WINDOW * WORD };
  u64 offset = place_in(&windows->stack_bounds, address, WORD, BYTES);
  if (offset >= BYTES) {
    u64 left = PAGE - (address & (PAGE - 1));
    if (left < WORD)
      return read_user(value, WORD, address);
    long error =
        fill_window(&windows->stack_bounds, windows->stack, address, left, BYTES, address, WORD);
    if (error)
      return error;
    offset = 0;
  }
  *value = windows->stack[index_in(offset, STACK_WINDOW)];
  return 0;
}

/* Makes the control frame at `cfp` readable by control_frame_word; `end` is behind the last one. */
INLINE long load_control_frame(const Walk *walk, u64 cfp, u64 size, u64 end, u64 *place) {
  Windows *windows = walk->windows;
  *place = 0;
  if (!windows)
    return read_user(walk->record->rubyUnwindScratch.control_frame, size & 0xff, cfp);
  enum { BYTES = CONTROL_FRAMES_WINDOW * WORD };
  u64 offset = place_in(&windows->control_frames_bounds, cfp, size, BYTES);
  if (offset >= BYTES) {
    long error = fill_window(&windows->control_frames_bounds, windows->control_frames, cfp,
                             end - cfp, BYTES, cfp, size);
    if (error)
      return error;
    offset = 0;
  }
  *place = offset;
  return 0;
}

/* The word at `offset` of the control frame that was loaded to `place`. */
INLINE u64 control_frame_word(const Walk *walk, u64 place, u8 offset) {
  if (walk->windows)
    return walk->windows->control_frames[index_in(place + offset, CONTROL_FRAMES_WINDOW)];
  return walk->record->rubyUnwindScratch.control_frame[(offset >> 3) & 31];
}

/*
 * Puts the three words from `address` on, which end an environment, into the record. Older frames
 * have theirs below, so a window ends with the words that are asked for. Environments that left the
 * VM stack are read alone.
 */
INLINE long load_env(const Walk *walk, u64 address) {
  u64 *env = walk->record->rubyUnwindScratch.env;
  Windows *windows = walk->windows;
  enum { BYTES = ENV_WINDOW * WORD, WORDS = 3 };
  if (!windows)
    return read_user(env, WORDS * WORD, address);
  u64 offset = place_in(&windows->env_bounds, address, WORDS * WORD, BYTES);
  if (offset >= BYTES) {
    if (address < windows->vm_stack || address >= windows->vm_stack_end)
      return read_user(env, WORDS * WORD, address);
    u64 bytes = address + WORDS * WORD - windows->vm_stack;
    if (bytes > BYTES)
      bytes = BYTES;
    u64 from = address + WORDS * WORD - bytes;
    long error =
        fill_window(&windows->env_bounds, windows->env, from, bytes, BYTES, address, WORDS * WORD);
    if (error)
      return error;
    offset = address - windows->env_bounds.from;
  }
  env[0] = windows->env[index_in(offset, ENV_WINDOW)];
  env[1] = windows->env[index_in(offset + WORD, ENV_WINDOW)];
  env[2] = windows->env[index_in(offset + 2 * WORD, ENV_WINDOW)];
  return 0;
}
