/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The execution context of the sampled thread: whose Ruby stack it is, and what its VM is at. */
#pragma once
#include "task.h"
#include "windows.h"

enum {
  RUBY_VERSION_3_0 = 0x30000,

  /* Bits of rb_objspace.flags, gc.c (3.4: gc/default/default.c): enum gc_mode in the lowest two,
   * then immediate_sweep, dont_gc, dont_incremental, during_gc and, from 2.7 on, during_compacting.
   * The same up to 4.0. The mode of a compaction (3.4) has a number of its own, which we use in
   * all.
   */
  RUBY_GC_MODE_MASK = 3,
  RUBY_GC_DURING = 1 << 5,
  RUBY_GC_DURING_COMPACTING = 1 << 6,
  RUBY_GC_MODE_COMPACTING = 3,
};

/* The execution context a thread keeps in its TLS; 0: it has none. */
INLINE u64 ec_from_tls(const RubyTLSInfo *tls) {
  u64 tp = thread_pointer();
  u64 slot = tp;
  u64 ec = 0;
  if (!tp)
    return 0;
  if (tls->kind == RUBY_TLS_DTV) {
    u64 dtv = 0;
    if (read_user(&dtv, sizeof(dtv), tp + (s64)tls->dtv_offset))
      return 0;
    if (read_user(&slot, sizeof(slot), dtv + tls->module_id * tls->dtv_entry_size))
      return 0;
    if (slot + 1 <= 1) /* 0 or -1: the thread never touched this module's variables */
      return 0;
  }
  if (read_user(&ec, sizeof(ec), slot + tls->offset))
    return 0;
  return ec;
}

/* The execution context by the global pointer of the frozen ABI: the one that holds the main lock.
 */
INLINE u64 ec_from_globals(const RubyProcInfo *ruby) {
  u64 ec = 0;
  u64 ractor = 0;
  if (ruby->version < RUBY_VERSION_3_0)
    return read_user(&ec, sizeof(ec), ruby->current_ctx_ptr) ? 0 : ec;
  if (read_user(&ractor, sizeof(ractor), ruby->current_ctx_ptr) || !ractor)
    return 0;
  return read_user(&ec, sizeof(ec), ractor + ruby->running_ec) ? 0 : ec;
}

/* ruby_enter makes the newest control frame of an execution context the one to unwind next. */
INLINE ErrorCode ruby_enter(const Walk *walk, const RubyProcInfo *ruby, u64 ec) {
  PerCPURecord *record = walk->record;
  u64 vm_stack = 0;
  u64 vm_stack_size = 0; /* in VALUEs */
  u64 cfp = 0;
  if (read_user(&vm_stack, sizeof(vm_stack), ec + ruby->vm_stack)) {
    increment_metric(metricID_UnwindRubyErrReadStackPtr);
    return ERR_RUBY_READ_STACK_PTR;
  }
  if (read_user(&vm_stack_size, sizeof(vm_stack_size), ec + ruby->vm_stack_size)) {
    increment_metric(metricID_UnwindRubyErrReadStackSize);
    return ERR_RUBY_READ_STACK_SIZE;
  }
  u64 end = vm_stack + vm_stack_size * ruby->size_of_value;
  /* A pointer outside the stack is one that is being changed, or a wrong layout. */
  if (read_user(&cfp, sizeof(cfp), ec + ruby->cfp) || cfp < vm_stack || cfp >= end) {
    increment_metric(metricID_UnwindRubyErrReadCfp);
    return ERR_RUBY_READ_CFP;
  }
  /* The last control frame before the end is a dummy that Ruby pushes with every stack; nobody sees
   * it. */
  record->rubyUnwindState.stack_ptr = (void *)cfp;
  record->rubyUnwindScratch.enclosing_env = 0;
  record->rubyUnwindScratch.env_levels = 0;
  record->rubyUnwindState.last_stack_frame = (void *)(end - 2 * ruby->size_of_control_frame_struct);
  if (walk->windows) {
    walk->windows->vm_stack = vm_stack;
    walk->windows->vm_stack_end = end;
  }
  return ERR_OK;
}

/*
 * Whether an execution context that a global pointer named is that of the sampled thread: before
 * 3.0 it belongs to whoever holds the lock, and the sampled thread may wait for that in vain. Its
 * thread keeps its pthread_t, which the C library puts at a fixed distance from the thread pointer.
 */
INLINE bool is_own_context(const RubyVMInfo *vm, u64 ec) {
  u64 thread = 0;
  u64 pthread = 0;
  if (!vm || !vm->thread_pthread)
    return true;
  return !read_user(&thread, sizeof(thread), ec + vm->ec_thread) &&
         !read_user(&pthread, sizeof(pthread), thread + vm->thread_pthread) &&
         pthread == thread_pointer() + (s64)vm->pthread_offset;
}

/* Whether the thread of an execution context is the one that runs in its ractor: another one is not
 * what collects garbage. */
INLINE bool is_running(const RubyVMInfo *vm, const RubyProcInfo *ruby, u64 ec) {
  u64 thread = 0;
  u64 ractor = 0;
  u64 running = 0;
  if (!vm->thread_ractor)
    return true;
  return !read_user(&thread, sizeof(thread), ec + vm->ec_thread) &&
         !read_user(&ractor, sizeof(ractor), thread + vm->thread_ractor) &&
         !read_user(&running, sizeof(running), ractor + ruby->running_ec) && running == ec;
}

/* A collection that the thread is in the midst of is a frame, with its phase. */
INLINE ErrorCode push_garbage_collection(const Walk *walk, const RubyProcInfo *ruby, u64 ec) {
  const RubyVMInfo *vm = map_element(&ruby_vms, walk->record->trace.pid);
  u32 flags = 0;
  if (!vm || !vm->gc_flags || read_user(&flags, sizeof(flags), vm->gc_flags) ||
      !(flags & RUBY_GC_DURING) || !is_running(vm, ruby, ec))
    return ERR_OK;
  u32 phase =
      flags & RUBY_GC_DURING_COMPACTING ? RUBY_GC_MODE_COMPACTING : flags & RUBY_GC_MODE_MASK;
  return push(walk, 0, phase, FRAME_MARKER_RUBY_GC);
}

/*
 * ruby_start finds the stack of the sampled thread. *ec stays 0 where it has none: then there are
 * no Ruby frames, and never those of another thread.
 */
INLINE ErrorCode ruby_start(const Walk *walk, const RubyProcInfo *ruby, u64 *ec) {
  Trace *trace = &walk->record->trace;
  const RubyTLSInfo *tls = map_element(&ruby_tls, trace->pid);
  if (tls && tls->kind != RUBY_TLS_NONE) {
    *ec = ec_from_tls(tls);
    trace->flags |= TRACE_EC_FROM_TLS;
    increment_counter(COUNTER_EC_FROM_TLS);
  } else {
    *ec = ec_from_globals(ruby);
    if (*ec && ruby->version < RUBY_VERSION_3_0 &&
        !is_own_context(map_element(&ruby_vms, trace->pid), *ec))
      *ec = 0;
    trace->flags |= TRACE_EC_FROM_RACTOR;
    increment_counter(COUNTER_EC_FROM_RACTOR);
  }
  if (!*ec) {
    trace->flags |= TRACE_NO_EC;
    increment_counter(COUNTER_NO_EC);
    return ERR_OK;
  }

  ErrorCode error = push_garbage_collection(walk, ruby, *ec);
  return error ? error : ruby_enter(walk, ruby, *ec);
}
