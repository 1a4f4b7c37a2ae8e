/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Maps in user space: arrays, and one hash for everything else. One thread at a time. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "helpers.h"

enum { EMPTY, IN_USE, DELETED };
enum { LPM_HEAD = 4 /* struct bpf_lpm_trie_key: u32 prefixlen before the data */ };

static bool is_array(const host_map *map) {
  return map->type == BPF_MAP_TYPE_ARRAY || map->type == BPF_MAP_TYPE_PERCPU_ARRAY ||
         map->type == BPF_MAP_TYPE_PROG_ARRAY;
}

host_map *host_map_new(u32 type, u32 key_size, u32 value_size, u32 max_entries) {
  host_map *map = calloc(1, sizeof *map);
  if (!map)
    return NULL;
  map->self.map = map;
  map->type = type;
  map->key_size = key_size;
  /* Values of a map of maps are pointers here, whatever the kernel's ABI says (descriptors). */
  map->value_size = type == BPF_MAP_TYPE_HASH_OF_MAPS ? sizeof(void *) : value_size;
  map->max_entries = max_entries;
  if (is_array(map)) {
    map->values = calloc(max_entries ? max_entries : 1, map->value_size);
    if (!map->values) {
      free(map);
      return NULL;
    }
  }
  return map;
}

void host_map_free(host_map *map) {
  if (!map)
    return;
  if (map->type == BPF_MAP_TYPE_HASH_OF_MAPS)
    for (u32 slot = 0; slot < map->room; slot++)
      if (map->state[slot] == IN_USE) {
        host_map *inner;
        memcpy(&inner, map->values + (size_t)slot * map->value_size, sizeof inner);
        host_map_free(inner);
      }
  free(map->keys);
  free(map->values);
  free(map->state);
  free(map);
}

static u64 hash_of(const u8 *key, u32 size) {
  u64 hash = 0xcbf29ce484222325ULL; /* FNV-1a, folded at the end */
  for (u32 i = 0; i < size; i++)
    hash = (hash ^ key[i]) * 0x100000001b3ULL;
  return hash ^ hash >> 32;
}

/* The slot of the key, or -1. */
static s64 find_slot(const host_map *map, const u8 *key) {
  if (!map->room)
    return -1;
  for (u32 slot = hash_of(key, map->key_size) & (map->room - 1);;
       slot = (slot + 1) & (map->room - 1)) {
    if (map->state[slot] == EMPTY)
      return -1;
    if (map->state[slot] == IN_USE &&
        !memcmp(map->keys + (size_t)slot * map->key_size, key, map->key_size))
      return slot;
  }
}

static void place(host_map *map, const u8 *key, const u8 *value) {
  u32 slot = hash_of(key, map->key_size) & (map->room - 1);
  while (map->state[slot] == IN_USE)
    slot = (slot + 1) & (map->room - 1);
  map->filled += map->state[slot] == EMPTY;
  map->state[slot] = IN_USE;
  memcpy(map->keys + (size_t)slot * map->key_size, key, map->key_size);
  memcpy(map->values + (size_t)slot * map->value_size, value, map->value_size);
  map->used++;
}

/* Makes room, without the deleted ones, so that at most half of it is filled: a search must meet an
 * empty slot. */
static int grow(host_map *map) {
  host_map old = *map;
  u32 room = 16;
  while (room < 4 * (map->used + 1))
    room *= 2;
  map->keys = calloc(room, map->key_size);
  map->values = calloc(room, map->value_size);
  map->state = calloc(room, 1);
  if (!map->keys || !map->values || !map->state) {
    free(map->keys);
    free(map->values);
    free(map->state);
    *map = old;
    return -ENOMEM;
  }
  map->room = room;
  map->used = 0;
  map->filled = 0;
  for (u32 slot = 0; slot < old.room; slot++)
    if (old.state[slot] == IN_USE)
      place(map, old.keys + (size_t)slot * map->key_size,
            old.values + (size_t)slot * map->value_size);
  free(old.keys);
  free(old.values);
  free(old.state);
  return 0;
}

static u32 array_index(const void *key) {
  u32 index;
  memcpy(&index, key, sizeof index);
  return index;
}

/* The first `bits` bits of an LPM key, the rest zero. */
static void cut_prefix(u8 *key, u32 key_size, u32 bits) {
  u8 *data = key + LPM_HEAD;
  u32 size = key_size - LPM_HEAD;
  memcpy(key, &bits, sizeof bits);
  for (u32 i = 0; i < size; i++) {
    if (8 * i >= bits)
      data[i] = 0;
    else if (8 * (i + 1) > bits)
      data[i] &= 0xff << (8 * (i + 1) - bits);
  }
}

static void *lpm_lookup(const host_map *map, const u8 *key) {
  u8 prefix[64];
  u32 bits;
  if (map->key_size > sizeof prefix)
    return NULL;
  memcpy(&bits, key, sizeof bits);
  if (bits > 8 * (map->key_size - LPM_HEAD))
    return NULL;
  for (s64 length = bits; length >= 0; length--) {
    if (!(map->lengths[length / 32] >> (length % 32) & 1))
      continue;
    memcpy(prefix, key, map->key_size);
    cut_prefix(prefix, map->key_size, length);
    s64 slot = find_slot(map, prefix);
    if (slot >= 0)
      return map->values + (size_t)slot * map->value_size;
  }
  return NULL;
}

void *host_map_element(host_map *map, const void *key) {
  if (is_array(map)) {
    u32 index = array_index(key);
    return index < map->max_entries ? map->values + (size_t)index * map->value_size : NULL;
  }
  if (map->type == BPF_MAP_TYPE_LPM_TRIE)
    return lpm_lookup(map, key);
  s64 slot = find_slot(map, key);
  if (slot < 0)
    return NULL;
  void *value = map->values + (size_t)slot * map->value_size;
  if (map->type == BPF_MAP_TYPE_HASH_OF_MAPS) {
    host_map *inner;
    memcpy(&inner, value, sizeof inner);
    return &inner->self;
  }
  return value;
}

int host_map_lookup(host_map *map, const void *key, void *value) {
  const void *found;
  if (is_array(map) || map->type == BPF_MAP_TYPE_LPM_TRIE) {
    found = host_map_element(map, key);
  } else {
    s64 slot = find_slot(map, key);
    found = slot < 0 ? NULL : map->values + (size_t)slot * map->value_size;
  }
  if (!found)
    return -ENOENT;
  memcpy(value, found, map->value_size);
  return 0;
}

int host_map_update(host_map *map, const void *key, const void *value, u64 flags) {
  u8 prefix[64];
  if (is_array(map)) {
    u32 index = array_index(key);
    if (index >= map->max_entries)
      return -E2BIG;
    memcpy(map->values + (size_t)index * map->value_size, value, map->value_size);
    return 0;
  }
  if (map->type == BPF_MAP_TYPE_LPM_TRIE) {
    u32 bits;
    memcpy(&bits, key, sizeof bits);
    if (map->key_size > sizeof prefix || bits > 8 * (map->key_size - LPM_HEAD) || bits >= 128)
      return -EINVAL;
    memcpy(prefix, key, map->key_size);
    cut_prefix(prefix, map->key_size, bits);
    key = prefix;
    map->lengths[bits / 32] |= 1U << (bits % 32);
  }
  s64 slot = find_slot(map, key);
  if (slot >= 0) {
    if (flags == BPF_NOEXIST)
      return -EEXIST;
    u8 *at = map->values + (size_t)slot * map->value_size;
    if (map->type == BPF_MAP_TYPE_HASH_OF_MAPS) {
      host_map *old;
      memcpy(&old, at, sizeof old);
      host_map_free(old);
    }
    memcpy(at, value, map->value_size);
    return 0;
  }
  if (map->used >= map->max_entries && map->type != BPF_MAP_TYPE_LRU_HASH)
    return -E2BIG;
  if (2 * (map->filled + 1) > map->room) {
    int error = grow(map);
    if (error)
      return error;
  }
  place(map, key, value);
  return 0;
}

int host_map_delete(host_map *map, const void *key) {
  if (is_array(map)) {
    u32 index = array_index(key);
    if (map->type != BPF_MAP_TYPE_PROG_ARRAY || index >= map->max_entries)
      return -EINVAL;
    memset(map->values + (size_t)index * map->value_size, 0, map->value_size);
    return 0;
  }
  s64 slot = find_slot(map, key);
  if (slot < 0)
    return -ENOENT;
  if (map->type == BPF_MAP_TYPE_HASH_OF_MAPS) {
    host_map *inner;
    memcpy(&inner, map->values + (size_t)slot * map->value_size, sizeof inner);
    host_map_free(inner);
  }
  map->state[slot] = DELETED;
  map->used--;
  return 0;
}

int host_map_next(host_map *map, const void *key, void *next) {
  if (is_array(map)) {
    u32 index = key ? array_index(key) + 1 : 0;
    if (index >= map->max_entries)
      return -ENOENT;
    memcpy(next, &index, sizeof index);
    return 0;
  }
  s64 slot =
      key ? find_slot(map, key) + 1 : 0; /* an unknown key: from the start, as the kernel does */
  for (; slot < map->room; slot++)
    if (map->state[slot] == IN_USE) {
      memcpy(next, map->keys + (size_t)slot * map->key_size, map->key_size);
      return 0;
    }
  return -ENOENT;
}

void *host_map_values(host_map *map) { return is_array(map) ? map->values : NULL; }

size_t host_map_bytes(host_map *map) {
  return is_array(map) ? (size_t)map->max_entries * map->value_size
                       : (size_t)map->room * (map->key_size + map->value_size + 1);
}
