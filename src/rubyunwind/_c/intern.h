/* SPDX-License-Identifier: Apache-2.0 */
/* Equal byte strings kept once. */
#pragma once
#include <stddef.h>

#include "prelude.h"

#include "intern.cdef"

enum { INTERN_FAILED = -1 }; /* no memory; what was there stays */

int intern_init(interner *i, u64 seed);
void intern_release(interner *i);

/* Forgets all strings, and keeps the memory. */
void intern_clear(interner *i);

/* Returns the number of the string that is `head` and `body` one behind the other, and counts it.
 * Sizes are multiples of 8. */
s64 intern_add(interner *i, const u8 *head, size_t head_size, const u8 *body, size_t body_size);
