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

/* What lies in one page, by the cache. Not 0: it is to be read directly. */
static long read_page(const host_memory *memory, u8 *to, u32 length, u64 address) {
  u64 start = address & ~(u64)(sizeof memory->pages->bytes - 1);
  if (!memory->pages || address + length - start > sizeof memory->pages->bytes)
    return -EFAULT;
  u64 number = start / sizeof memory->pages->bytes;
  host_page *page = &memory->pages[(number ^ number >> 9) & (memory->page_count - 1)];
  if (page->address != start || page->run != memory->run) {
    page->run = 0;
    if (read_pieces(memory, page->bytes, sizeof page->bytes, start))
      return -EFAULT;
    page->address = start;
    page->run = memory->run;
  }
  memcpy(to, page->bytes + (address - start), length);
  return 0;
}

long host_read_memory(host_memory *memory, void *to, u32 length, u64 address) {
  memory->reads++;
  if (address + length < address)
    goto fail;
  for (u32 i = 0; i < memory->overlay_count; i++) {
    const host_overlay *overlay = &memory->overlays[i];
    if (address >= overlay->start && address - overlay->start + length <= overlay->length) {
      memcpy(to, overlay->bytes + (address - overlay->start), length);
      return 0;
    }
  }
  if (memory->fd >= 0 &&
      (!read_page(memory, to, length, address) || !read_pieces(memory, to, length, address)))
    return 0;
  if (memory->read && !memory->read(memory->context, address, to, length))
    return 0;
fail:
  /* As the kernel does: what was read in part is not seen. */
  memset(to, 0, length);
  memory->failures++;
  return -EFAULT;
}
