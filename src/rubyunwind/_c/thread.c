/* SPDX-License-Identifier: Apache-2.0 */
/* In inline assembly: __builtin_thread_pointer is missing from gcc before 11 on x86_64. */
#include "thread.h"

u64 thread_pointer(void) {
  u64 pointer;
#if defined(__x86_64__)
  /* The x86_64 ABI keeps fs_base in the word that it points to. */
  __asm__("mov %%fs:0, %0" : "=r"(pointer));
#elif defined(__aarch64__)
  __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
#else
#error "x86_64 and aarch64 only"
#endif
  return pointer;
}
