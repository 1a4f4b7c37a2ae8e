/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equal byte strings kept once: a hash table with open addressing, whose strings lie one behind the
 * other. Strings are equal if their bytes are; the hash only finds candidates.
 */
#include "intern.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_STRINGS = 256, FIRST_BYTES = 1 << 18 };

static u64 word(const u8 *at) {
  u64 value;
  memcpy(&value, at, sizeof value);
  return value;
}

/* Multiplies to 128 bits and folds: each bit of the result depends on all of both. */
static u64 fold(u64 a, u64 b) {
  unsigned __int128 product = (unsigned __int128)a * b;
  return (u64)product ^ (u64)(product >> 64);
}

/* The constants are bits of pi, as good as any that are odd and without a pattern. */
static u64 hash_of(u64 hash, const u8 *bytes, size_t size) {
  const u64 one = 0x243f6a8885a308d3ULL, two = 0x13198a2e03707345ULL;
  size_t at = 0;
  for (; at + 16 <= size; at += 16)
    hash = fold(word(bytes + at) ^ one, word(bytes + at + 8) ^ hash);
  if (at < size)
    hash = fold(word(bytes + at) ^ two, hash ^ size);
  return hash;
}

int intern_init(interner *i, u64 seed) {
  *i = (interner){.seed = seed,
                  .strings_size = FIRST_STRINGS,
                  .slot_mask = 2 * FIRST_STRINGS - 1,
                  .bytes_size = FIRST_BYTES};
  i->bytes = malloc(i->bytes_size);
  i->strings = malloc(i->strings_size * sizeof *i->strings);
  i->slots = calloc((size_t)i->slot_mask + 1, sizeof *i->slots);
  if (i->bytes && i->strings && i->slots)
    return 0;
  intern_release(i);
  return INTERN_FAILED;
}

void intern_release(interner *i) {
  free(i->bytes);
  free(i->strings);
  free(i->slots);
  *i = (interner){0};
}

void intern_clear(interner *i) {
  /* A big table after one burst is no reason to clear all of it from then on. */
  if ((u64)i->count * 16 > i->slot_mask)
    memset(i->slots, 0, ((size_t)i->slot_mask + 1) * sizeof *i->slots);
  else
    for (u32 n = 0; n < i->count; n++) {
      u32 slot = (u32)i->strings[n].hash & i->slot_mask;
      while (i->slots[slot] != n + 1)
        slot = (slot + 1) & i->slot_mask;
      i->slots[slot] = 0;
    }
  i->count = 0;
  i->bytes_used = 0;
}

/* Makes room for one string more. */
static int grow(interner *i, size_t size) {
  if (i->bytes_size - i->bytes_used < size) {
    size_t wanted =
        2 * i->bytes_size > i->bytes_used + size ? 2 * i->bytes_size : i->bytes_used + size;
    u8 *bytes = realloc(i->bytes, wanted);
    if (!bytes)
      return INTERN_FAILED;
    i->bytes = bytes;
    i->bytes_size = wanted;
  }
  if (i->count < i->strings_size)
    return 0;
  if (i->strings_size > 1u << 29)
    return INTERN_FAILED;
  u32 wanted = 2 * i->strings_size;
  interned *strings = realloc(i->strings, wanted * sizeof *strings);
  if (!strings)
    return INTERN_FAILED;
  i->strings = strings;
  u32 *slots = calloc((size_t)2 * wanted, sizeof *slots);
  if (!slots)
    return INTERN_FAILED;
  free(i->slots);
  i->slots = slots;
  i->strings_size = wanted;
  i->slot_mask = 2 * wanted - 1;
  for (u32 n = 0; n < i->count; n++) {
    u32 slot = (u32)strings[n].hash & i->slot_mask;
    while (slots[slot])
      slot = (slot + 1) & i->slot_mask;
    slots[slot] = n + 1;
  }
  return 0;
}

s64 intern_add(interner *i, const u8 *head, size_t head_size, const u8 *body, size_t body_size) {
  size_t size = head_size + body_size;
  u64 hash = hash_of(hash_of(i->seed, head, head_size), body, body_size);
  u32 slot = (u32)hash & i->slot_mask;
  for (; i->slots[slot]; slot = (slot + 1) & i->slot_mask) {
    interned *known = &i->strings[i->slots[slot] - 1];
    if (known->hash == hash && known->size == size &&
        !memcmp(i->bytes + known->at, head, head_size) &&
        !memcmp(i->bytes + known->at + head_size, body, body_size)) {
      known->count++;
      return i->slots[slot] - 1;
    }
  }
  u32 *before = i->slots;
  if (grow(i, size))
    return INTERN_FAILED;
  if (i->slots != before)
    for (slot = (u32)hash & i->slot_mask; i->slots[slot];)
      slot = (slot + 1) & i->slot_mask;
  memcpy(i->bytes + i->bytes_used, head, head_size);
  memcpy(i->bytes + i->bytes_used + head_size, body, body_size);
  i->strings[i->count] = (interned){.hash = hash, .count = 1, .at = i->bytes_used, .size = size};
  i->bytes_used += size;
  i->slots[slot] = ++i->count;
  return i->count - 1;
}
