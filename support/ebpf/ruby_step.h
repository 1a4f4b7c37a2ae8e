/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One control frame of a Ruby VM stack. */
#pragma once
#include "mappings.h"
#include "ruby_context.h"

/* Frame flags in ep[0] and their values: vm_core.h, VM_FRAME_MAGIC_*, VM_FRAME_FLAG_*,
 * VM_ENV_FLAG_LOCAL. The same from Ruby 2.5 to 4.0. */
enum {
  RUBY_FRAME_MAGIC_MASK = 0x7fff0001,
  RUBY_FRAME_MAGIC_CFUNC = 0x55550001,
  RUBY_FRAME_MAGIC_IFUNC = 0x66660001,
  RUBY_FRAME_MAGIC_DUMMY = 0x79990001,
  RUBY_ENV_FLAG_LOCAL = 0x0002,
  RUBY_FRAME_FLAG_FINISH = 0x0020,
  RUBY_FRAME_FLAG_BMETHOD = 0x0040,

  /* Ruby 2.6 made the execution context reachable from a thread's native frames; before it the
   * order of native and Ruby frames is best effort and Ruby frames are walked in one go. */
  RUBY_VERSION_2_6 = 0x20600,

  /* How many enclosing blocks are searched for the method they belong to: in a step, and in all. */
  RUBY_ENV_DEPTH = 6,
  RUBY_MAX_ENV_DEPTH = 64
};

/* Words of ep that we read, from ep - 16 on: VM_ENV_DATA_INDEX_ME_CREF, _SPECVAL, _FLAGS. */
enum { ENV_ME_CREF, ENV_SPECVAL, ENV_FLAGS, ENV_WORDS };

/* Looks for the method entry in the environment that is in the record; false when the search is
 * over, else the parent's environment has taken its place. */
INLINE bool look_for_method_entry(const Walk *walk, u64 *method_entry, u64 *parent) {
  const u64 *env = walk->record->rubyUnwindScratch.env;
  if (env[ENV_FLAGS] & (RUBY_ENV_FLAG_LOCAL | RUBY_FRAME_FLAG_BMETHOD)) {
    *method_entry = env[ENV_ME_CREF] & 0xffffffffffffULL;
    return false;
  }
  *parent = env[ENV_SPECVAL] & ~3ULL;
  return *parent && !load_env(walk, *parent - 16);
}

/*
 * Finds the method entry that a frame belongs to: ep[-2] of the local environment, or of a block
 * that define_method has made a method; 0 if there is none. May be a cref: user space looks at its
 * type. False: the blocks around the frame are many, and the next step goes on from here.
 */
INLINE bool find_method_entry(const Walk *walk, u64 *method_entry) {
  bool searching = true;
  u64 parent = 0;
#ifndef RUBYUNWIND_LEGACY
  RubyUnwindScratchSpace *scratch = &walk->record->rubyUnwindScratch;
  if (scratch->enclosing_env && load_env(walk, scratch->enclosing_env - 16))
    searching = false;
#endif
  UNROLL_LEGACY
  for (int i = 0; i < RUBY_ENV_DEPTH; i++)
    if (searching)
      searching = look_for_method_entry(walk, method_entry, &parent);
#ifndef RUBYUNWIND_LEGACY
  scratch->env_levels += RUBY_ENV_DEPTH;
  if (searching && scratch->env_levels < RUBY_MAX_ENV_DEPTH) {
    scratch->enclosing_env = parent;
    return false;
  }
  scratch->enclosing_env = 0;
  scratch->env_levels = 0;
#endif
  return true;
}

/* ns. Ruby may give an instruction sequence another body when it has collected it and uses its
 * memory again, and code at the very place of the old one: the pc alone does not tell. */
enum { ISEQ_BELIEVED = 4000000 };

/* The body of an instruction sequence, and whether a pc lies in its code; from the cache if it
 * does. */
INLINE ErrorCode ruby_body(const Walk *walk, const RubyProcInfo *ruby, u64 iseq, u64 pc, u64 *body,
                           bool *inside) {
  IseqCacheEntry *entry = NULL;
#ifndef RUBYUNWIND_LEGACY
  if (walk->cache) {
    /* Fibonacci hashing: the top bits of the product. */
    u64 index = (iseq * 0x9e3779b97f4a7c15ULL) >> 32;
    entry = &walk->cache->entries[index & (ISEQ_CACHE_ENTRIES - 1)];
    u64 now = walk->record->trace.ktime;
    if (entry->iseq == iseq && entry->pid == walk->record->trace.pid &&
        pc - entry->encoded <= entry->bytes) {
      bool same = now - entry->checked < ISEQ_BELIEVED;
      if (!same && !read_user(body, sizeof(*body), iseq + ruby->body) && *body == entry->body) {
        entry->checked = now;
        same = true;
      }
      if (same) {
        *body = entry->body;
        *inside = true;
        return ERR_OK;
      }
    }
  }
#endif
  u64 encoded = 0;
  u32 size = 0; /* in VALUEs */
  if (read_user(body, sizeof(*body), iseq + ruby->body)) {
    increment_metric(metricID_UnwindRubyErrReadIseqBody);
    return ERR_RUBY_READ_ISEQ_BODY;
  }
  if (read_user(&encoded, sizeof(encoded), *body + ruby->iseq_encoded)) {
    increment_metric(metricID_UnwindRubyErrReadIseqEncoded);
    return ERR_RUBY_READ_ISEQ_ENCODED;
  }
  if (read_user(&size, sizeof(size), *body + ruby->iseq_size)) {
    increment_metric(metricID_UnwindRubyErrReadIseqSize);
    return ERR_RUBY_READ_ISEQ_SIZE;
  }
  u64 bytes = (u64)size * ruby->size_of_value;
  *inside = pc - encoded <= bytes;
  if (entry && *inside && bytes <= 0xffffffff) {
    entry->iseq = iseq;
    entry->body = *body;
    entry->encoded = encoded;
    entry->checked = walk->record->trace.ktime;
    entry->bytes = bytes;
    entry->pid = walk->record->trace.pid;
  }
  return ERR_OK;
}

/*
 * ruby_frame pushes a Ruby frame. A pc outside its iseq is not
 * reported (compiled code leaves it unset until its first call): the frame goes without.
 */
INLINE ErrorCode ruby_frame(const Walk *walk, const RubyProcInfo *ruby, u64 iseq, u64 pc,
                            u64 method_entry) {
  u64 body = 0;
  bool inside = false;
  ErrorCode error = ruby_body(walk, ruby, iseq, pc, &body, &inside);
  if (error)
    return error;
  error = push_with_max_frames(walk, body, inside ? pc : 0, FRAME_MARKER_RUBY, 0, method_entry,
                               walk->max_frames - 1);
  if (!error)
    increment_metric(metricID_UnwindRubyFrames);
  return error;
}

/*
 * ruby_step pushes the control frame at stack_ptr and moves on to the one below. *unwinder becomes
 * PROG_UNWIND_NATIVE where the interpreter's C function that owns these frames ends: at the frame
 * with the FINISH flag, or at the base of the stack; else it stays PROG_UNWIND_RUBY. When the
 * native walk is over already all frames that are left come in one go.
 */
INLINE ErrorCode ruby_step(const Walk *walk, const RubyProcInfo *ruby, u32 *unwinder) {
  PerCPURecord *record = walk->record;
  RubyUnwindState *state = &record->rubyUnwindState;
  RubyUnwindScratchSpace *scratch = &record->rubyUnwindScratch;
  u64 cfp = (u64)state->stack_ptr;
  u64 last = (u64)state->last_stack_frame;
  u64 flags = 0;

  *unwinder = PROG_UNWIND_STOP;
  if (cfp > last)
    goto base;
  u64 size = ruby->size_of_control_frame_struct;
  u64 place = 0;
  if (load_control_frame(walk, cfp, size, last + size, &place)) {
    increment_metric(metricID_UnwindRubyErrReadCfp);
    return ERR_RUBY_READ_CFP;
  }
  u64 pc = control_frame_word(walk, place, ruby->pc);
  u64 iseq = control_frame_word(walk, place, ruby->iseq);
  u64 ep = control_frame_word(walk, place, ruby->ep);
  if (load_env(walk, ep - 16)) {
    increment_metric(metricID_UnwindRubyErrReadEp);
    return ERR_RUBY_READ_EP;
  }
  flags = scratch->env[ENV_FLAGS];

  u64 magic = flags & RUBY_FRAME_MAGIC_MASK;
  if (magic == RUBY_FRAME_MAGIC_CFUNC) {
    u64 method_entry = scratch->env[ENV_ME_CREF] & 0xffffffffffffULL;
    ErrorCode error = push(walk, method_entry, 0, FRAME_MARKER_RUBY_CFUNC);
    if (error)
      return error;
    increment_metric(metricID_UnwindRubyFrames);
  } else if (iseq && (pc || (magic != RUBY_FRAME_MAGIC_IFUNC && magic != RUBY_FRAME_MAGIC_DUMMY))) {
    u64 method_entry = 0;
    if (!find_method_entry(walk, &method_entry)) {
      *unwinder = PROG_UNWIND_RUBY;
      return ERR_OK;
    }
    ErrorCode error = ruby_frame(walk, ruby, iseq, pc, method_entry);
    if (error)
      return error;
  } /* else a block made of a C function, or a dummy: Ruby shows neither */

  if (cfp == last)
    goto base;
  state->stack_ptr = (void *)(cfp + size);
  *unwinder = PROG_UNWIND_RUBY;
  if ((flags & RUBY_FRAME_FLAG_FINISH) && ruby->version >= RUBY_VERSION_2_6 &&
      !(record->trace.flags & NATIVE_WALK_IS_OVER))
    *unwinder = get_next_unwinder_after_interpreter(record);
  return ERR_OK;

base:
  /* Saved like any progress: meeting the interpreter again must not start over. */
  state->stack_ptr = (void *)(last + ruby->size_of_control_frame_struct);
  unwinder_mark_done(record, PROG_UNWIND_RUBY);
  record->trace.flags |= TRACE_RUBY_BASE;
  *unwinder = get_next_unwinder_after_interpreter(record);
  return ERR_OK;
}
