/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reading the memory of the process that is unwound: from a descriptor, else by callback. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

/* The piece that holds `address`, by bisection; NULL if none does. */
static const host_piece *piece_at(const host_memory *memory, u64 address) {
  size_t low = 0, high = memory->piece_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (memory->pieces[middle].end <= address)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == memory->piece_count || memory->pieces[low].start > address)
    return NULL;
  return &memory->pieces[low];
}

static long read_pieces(const host_memory *memory, u8 *to, u32 length, u64 address) {
  while (length) {
    const host_piece *piece = piece_at(memory, address);
    if (!piece)
      return -EFAULT;
    u64 left = piece->end - address;
    u32 part = left < length ? (u32)left : length;
    ssize_t got = pread(memory->fd, to, part, (off_t)(piece->offset + (address - piece->start)));
    if (got <= 0)
      return -EFAULT;
    to += got;
    length -= (u32)got;
    address += (u64)got;
  }
  return 0;
}

long host_read_memory(host_memory *memory, void *to, u32 length, u64 address) {
  memory->reads++;
  if (address + length < address)
    goto fail;
  if (memory->fd >= 0 && !read_pieces(memory, to, length, address))
    return 0;
  if (memory->read && !memory->read(memory->context, address, to, length))
    return 0;
fail:
  /* As the kernel does: what was read in part is not seen. */
  memset(to, 0, length);
  memory->failures++;
  return -EFAULT;
}
