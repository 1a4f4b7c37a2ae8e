/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a pc to its file, and from there to the program that unwinds it. */
#pragma once
#include "records.h"

/* User addresses have none of the top eight bits set, on both architectures. */
INLINE bool is_kernel_address(u64 address) { return (address & 0xff00000000000000ULL) != 0; }

enum { NATIVE_WALK_IS_OVER = TRACE_NATIVE_ROOT | TRACE_NATIVE_LOST };

/* Below the smallest vm.mmap_min_addr in use: a pc here was read wrongly. */
enum { SMALL_PC = 0x1000 };

INLINE void remember_range(OffsetRange *kept, const OffsetRange *range) {
  if (range)
    *kept = *range;
  else
    kept->program_index = PROG_UNWIND_STOP;
}

/*
 * resolve_unwind_mapping fills text_section_* of the state for its pc and names the program that
 * user space has set for that mapping.
 */
INLINE ErrorCode resolve_unwind_mapping(const Walk *walk, u32 *unwinder) {
  PerCPURecord *record = walk->record;
  UnwindState *state = &record->state;
  u64 pc = state->pc;

  if (is_kernel_address(pc)) {
    DEBUG_PRINT("pc %llx is a kernel address", pc);
    state->error_metric = metricID_UnwindNativeErrKernelAddress;
    return ERR_NATIVE_UNEXPECTED_KERNEL_ADDRESS;
  }
  if (pc < SMALL_PC) {
    DEBUG_PRINT("small pc %llx", pc);
    state->error_metric = metricID_UnwindNativeSmallPC;
    return ERR_NATIVE_SMALL_PC;
  }

  PIDPage key = {};
  key.prefixLen = BIT_WIDTH_PID + BIT_WIDTH_PAGE;
  key.pid = HOST_TO_BE32(record->trace.pid);
  /* A return address may be the first byte behind its mapping: look up the call. */
  u64 call = pc - (state->return_address ? 1 : 0);
  key.page = HOST_TO_BE64(call);
  u64 file_id = 0;
  u64 packed = 0;
#ifndef RUBYUNWIND_LEGACY
  if (walk->mapping) {
    NativeMapping *last = &walk->mapping->mapping;
    if (call - last->start >= last->end - last->start) {
      const NativeMapping *mapping = bpf_map_lookup_elem(&pid_mappings, &key);
      if (!mapping)
        goto unmapped;
      *last = *mapping;
      remember_range(&walk->mapping->interpreter,
                     bpf_map_lookup_elem(&interpreter_offsets, &last->file_id));
      remember_range(&walk->mapping->cold,
                     bpf_map_lookup_elem(&interpreter_cold_offsets, &last->file_id));
    }
    file_id = last->file_id;
    packed = last->bias_and_unwind_program;
    goto found;
  }
#endif
  const PIDPageMappingInfo *mapping = bpf_map_lookup_elem(&pid_page_to_mapping_info, &key);
  if (!mapping)
    goto unmapped;
  file_id = mapping->file_id;
  packed = mapping->bias_and_unwind_program;
  goto found;

unmapped:
  DEBUG_PRINT("no mapping for pc %llx", pc);
  state->error_metric = metricID_UnwindNativeErrWrongTextSection;
  return ERR_NATIVE_NO_PID_PAGE_MAPPING;

found:
  state->text_section_bias = packed & 0x00ffffffffffffffULL;
  *unwinder = packed >> 56;
  state->text_section_id = file_id;
  state->text_section_offset = pc - state->text_section_bias;
  return ERR_OK;
}

/* The program for an offset in a file, if it is in the range. */
INLINE u32 program_of(const OffsetRange *range, u64 offset) {
  if (range && offset >= range->lower_offset && offset <= range->upper_offset)
    return range->program_index;
  return PROG_UNWIND_STOP;
}

/* The interpreter whose loop the pc is in, unless that unwinder has nothing more to give. */
INLINE u32 get_next_interpreter(const Walk *walk) {
  PerCPURecord *record = walk->record;
  UnwindState *state = &record->state;
  u64 file_id = state->text_section_id;
  u64 offset = state->text_section_offset - (state->return_address ? 1 : 0);
  u32 program = PROG_UNWIND_STOP;
  if (walk->mapping) {
    program = program_of(&walk->mapping->interpreter, offset);
    if (program == PROG_UNWIND_STOP)
      program = program_of(&walk->mapping->cold, offset);
  } else {
    program = program_of(bpf_map_lookup_elem(&interpreter_offsets, &file_id), offset);
    if (program == PROG_UNWIND_STOP)
      program = program_of(bpf_map_lookup_elem(&interpreter_cold_offsets, &file_id), offset);
  }
  if (program == PROG_UNWIND_STOP || unwinder_is_done(record, program))
    return PROG_UNWIND_NATIVE;
  increment_metric(metricID_UnwindCallInterpreter);
  return program;
}

/* Who unwinds the frame that a native step led to. */
INLINE ErrorCode get_next_unwinder_after_native_frame(const Walk *walk, u32 *unwinder) {
  PerCPURecord *record = walk->record;
  *unwinder = PROG_UNWIND_STOP;
  if (record->state.pc == 0) {
    record->state.error_metric = metricID_UnwindErrZeroPC;
    return ERR_NATIVE_ZERO_PC;
  }
  u32 next = PROG_UNWIND_STOP;
  ErrorCode error = resolve_unwind_mapping(walk, &next);
  if (error)
    return error;
  if (next == PROG_UNWIND_NATIVE)
    next = get_next_interpreter(walk);
  *unwinder = next;
  return ERR_OK;
}

/* Interpreter frames end where native ones go on; the pc has not moved. Unless there are none. */
INLINE u32 get_next_unwinder_after_interpreter(const PerCPURecord *record) {
  return record->trace.flags & NATIVE_WALK_IS_OVER ? PROG_UNWIND_STOP : PROG_UNWIND_NATIVE;
}
