/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the unwinders: the stopped Ruby processes of seeds/steps.images (see image.py), with
 * memory, registers and maps changed as the input says. Whatever they hold, a run must end within
 * bounds and give a whole record.
 *
 * Input: u8 image, u8 mode, u8 background, u8 parameter, then changes: u8 opcode and its operands,
 * to the end. In steady mode, where the process runs on, only the first (parameter & 15) changes
 * are made beforehand; before each piece that is copied, u8 & 3 says how many more.
 */
#define _GNU_SOURCE /* memfd_create */
#include "../support/ebpf/host/host.c"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "the seed images are of x86_64"
#endif

__asm__(".pushsection .rodata\n"
        ".balign 8\n"
        ".globl seed_images\n"
        "seed_images: .incbin \"" SEEDS "\"\n"
        ".globl seed_images_end\n"
        "seed_images_end:\n"
        ".popsection\n");
extern const u8 seed_images[], seed_images_end[];

enum { NAME = 1, ENTRY, ROWS, MEMORY, TASK, CONTEXT };
enum {
  MAX_IMAGES = 8,
  MAX_PIECES = 4096,
  MAX_CELLS = 4096,
  MAX_CHANGES = 256,
  MAX_HOLES = 8,
  /* Reads of one run: the walker's 6000 steps with 11 reads each at most. */
  MAX_READS = 66000,
  /* The kernel refuses the 34th: what bounds a run when slots of progs hold the wrong programs. */
  MOST_TAIL_CALLS = 34,
  HEADER = 80,
};

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);               \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)

/* ---- images ---- */

typedef struct piece {
  u64 start, size;
  u8 *data;
  u64 offset; /* in the descriptor */
} piece;

/* Something in a map that inputs may change. */
typedef struct cell {
  u8 *at;
  u32 size, map; /* map: index in maps[] of host.c */
} cell;

typedef struct image {
  char name[32];
  host *host;
  piece pieces[MAX_PIECES];
  host_piece file_pieces[MAX_PIECES];
  u32 piece_count;
  u64 words; /* 8-byte words in all pieces */
  int fd;    /* of the same memory */
  cell cells[MAX_CELLS];
  u32 cell_count, first_cell[MAPS + 1];
  u32 groups[MAPS], group_count; /* maps that have cells */
  host_task task;
  u64 context;
  u32 frames, context_frames;
} image;

/* Bits of the mode. */
enum {
  CONTEXT_ONLY = 1,
  BY_DESCRIPTOR = 2,
  STEADY = 4,    /* of a context, while the process runs; by descriptor */
  PIECEMEAL = 8, /* process_vm_readv is refused */
  CACHED = 16,   /* with a cache of pages */
  WALKER = 32,   /* in place of the chain */
  MODES = 64,
};
enum { CACHE_PAGES = 8, ATTEMPTS = 3 };

static image *images[MAX_IMAGES];
static u32 image_count;

#define SIZED(name, key_type_size, value_type_size)                                                \
  {                                                                                                \
#name, sizeof(*name.type) / sizeof(int), key_type_size, value_type_size,                       \
        sizeof(*name.max_entries) / sizeof(int)                                                    \
  }
#define TYPED(name) SIZED(name, sizeof(*name.key), sizeof(*name.value))
#define OUTER(bits) SIZED(exe_id_to_##bits##_stack_deltas, sizeof(u64), sizeof(u32))
static const struct {
  const char *name;
  u32 type, key_size, value_size, entries;
} shapes[] = {
    SIZED(progs, sizeof(u32), sizeof(u32)),
    TYPED(per_cpu_records),
    TYPED(metrics),
    TYPED(reported_pids),
    TYPED(pid_events),
    TYPED(inhibit_events),
    TYPED(pid_page_to_mapping_info),
    TYPED(interpreter_offsets),
    TYPED(interpreter_cold_offsets),
    TYPED(ruby_procs),
    TYPED(system_config),
    TYPED(stack_delta_page_to_info),
    TYPED(unwind_info_array),
    TYPED(followed_pids),
    TYPED(ruby_tls),
    TYPED(ruby_vms),
    TYPED(counters),
    TYPED(kernel_stack_scratch),
    TYPED(walk_records),
    TYPED(iseq_cache),
    TYPED(walker_config),
    TYPED(pid_mappings),
    TYPED(flat_rows),
    TYPED(flat_pages),
    OUTER(8),
    OUTER(9),
    OUTER(10),
    OUTER(11),
    OUTER(12),
    OUTER(13),
    OUTER(14),
    OUTER(15),
    OUTER(16),
    OUTER(17),
    OUTER(18),
    OUTER(19),
    OUTER(20),
    OUTER(21),
    OUTER(22),
    OUTER(23),
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void create_map(host *h, const char *name) {
  for (int i = 0; i < SHAPES; i++)
    if (!strcmp(shapes[i].name, name))
      REQUIRE(!host_map_create(h, name, shapes[i].type, shapes[i].key_size, shapes[i].value_size,
                               shapes[i].entries));
}

/* Maps that runs write to: made anew before each one. */
static void reset_maps(host *h, bool walker) {
  static const char *const written[] = {"reported_pids", "pid_events", "inhibit_events"};
  for (int i = 0; i < 3; i++) {
    int index = index_of(written[i]);
    host_map_free(h->maps[index]);
    h->maps[index] = NULL;
    create_map(h, written[i]);
  }
  static const char *const scratch[] = {"per_cpu_records", "walk_records", "iseq_cache"};
  for (int i = 0; i < (walker ? 3 : 1); i++) {
    host_map *map = host_map_find(h, scratch[i]);
    memset(host_map_values(map), 0, host_map_bytes(map));
  }
}

#include "walker_maps.h"

#include "cpu_limit.h"

static void fill_programs(host *h) {
  static const u32 slots[][2] = {
      {PROG_UNWIND_STOP, 2}, {PROG_UNWIND_NATIVE, 3}, {PROG_UNWIND_RUBY, 4}};
  for (int i = 0; i < 3; i++)
    REQUIRE(!host_map_update(host_map_find(h, "progs"), &slots[i][0], &slots[i][1], BPF_ANY));
}

static image *new_image(const u8 *name, u32 length) {
  image *made = calloc(1, sizeof *made);
  REQUIRE(made && image_count < MAX_IMAGES && length < sizeof made->name);
  memcpy(made->name, name, length);
  made->host = host_new();
  REQUIRE(made->host);
  for (int i = 0; i < SHAPES; i++)
    if (!host_map_find(made->host, shapes[i].name))
      create_map(made->host, shapes[i].name);
  fill_programs(made->host);
  images[image_count++] = made;
  return made;
}

static void load_entry(image *m, const u8 *payload) {
  u32 sizes[2];
  memcpy(sizes, payload + 32, sizeof sizes);
  host_map *map = host_map_find(m->host, (const char *)payload);
  REQUIRE(map && map->key_size == sizes[0] &&
          map->value_size == sizes[1]); /* or make_seeds.py again */
  const u8 *key = payload + 40, *value = key + ((sizes[0] + 7) & ~7u);
  REQUIRE(!host_map_update(map, key, value, BPF_ANY));
}

static void load_rows(image *m, const u8 *payload) {
  u64 file_id;
  u32 count;
  memcpy(&file_id, payload + 32, sizeof file_id);
  memcpy(&count, payload + 40, sizeof count);
  host_map *outer = host_map_find(m->host, (const char *)payload);
  host_map *inner = host_map_new(BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(StackDelta), count);
  REQUIRE(outer && inner);
  memcpy(host_map_values(inner), payload + 48, (size_t)count * sizeof(StackDelta));
  REQUIRE(!host_map_update(outer, &file_id, &inner, BPF_ANY));
}

static void load_memory(image *m, const u8 *payload, u32 length) {
  REQUIRE(m->piece_count < MAX_PIECES);
  piece *p = &m->pieces[m->piece_count++];
  memcpy(&p->start, payload, sizeof p->start);
  p->size = length - 8;
  p->data = malloc(p->size); /* to the byte: ASan sees what reads past it */
  REQUIRE(p->data);
  memcpy(p->data, payload + 8, p->size);
}

/* What a map's update copied is changed in place, so this is done when nothing is added any more.
 */
static void collect_cells(image *m) {
  for (u32 i = 0; i < MAPS; i++) {
    host_map *map = m->host->maps[i];
    m->first_cell[i] = m->cell_count;
    bool outer = map && map->type == BPF_MAP_TYPE_HASH_OF_MAPS;
    if (map && map->keys && strcmp(maps[i].name, "pid_mappings")) /* the inputs' numbers hold */
      for (u32 slot = 0; slot < map->room; slot++) {
        if (map->state[slot] != 1)
          continue;
        REQUIRE(m->cell_count < MAX_CELLS);
        cell *c = &m->cells[m->cell_count++];
        *c = (cell){map->values + (size_t)slot * map->value_size, map->value_size, i};
        if (outer) {
          host_map *inner;
          memcpy(&inner, c->at, sizeof inner);
          c->at = host_map_values(inner);
          c->size = (u32)host_map_bytes(inner);
        }
      }
    else if (map && (!strcmp(maps[i].name, "system_config") ||
                     !strcmp(maps[i].name, "unwind_info_array") || !strcmp(maps[i].name, "progs")))
      m->cells[m->cell_count++] = (cell){map->values, (u32)host_map_bytes(map), i};
    if (m->cell_count > m->first_cell[i])
      m->groups[m->group_count++] = i;
  }
  m->first_cell[MAPS] = m->cell_count;
}

/* The pieces once more in a file: programs that run on a core or a live process read through a
 * descriptor. */
static void write_file(image *m) {
  m->fd = memfd_create("memory", MFD_CLOEXEC);
  REQUIRE(m->fd >= 0);
  u64 offset = 0;
  for (u32 i = 0; i < m->piece_count; i++) {
    piece *p = &m->pieces[i];
    p->offset = offset;
    m->file_pieces[i] = (host_piece){p->start, p->start + p->size, offset};
    REQUIRE(pwrite(m->fd, p->data, p->size, (off_t)offset) == (ssize_t)p->size);
    offset += p->size;
    m->words += p->size / 8;
  }
  REQUIRE(m->words);
}

/* ---- memory ---- */

typedef enum background { FAIL, ZEROS, CHAIN, NOISE, INPUT, BACKGROUNDS } background;

typedef struct input {
  const u8 *at, *end;
} input;

typedef struct world {
  image *image;
  input later; /* changes while it runs */
  background background;
  int8_t parameter;
  const u8 *input;
  size_t input_size;
  struct {
    u64 start, end;
  } holes[MAX_HOLES];
  u32 hole_count;
} world;

static u64 mixed(u64 x) { /* splitmix64 */
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

/* What an aligned word holds that the image knows nothing of. */
static u64 background_word(const world *w, u64 address) {
  switch (w->background) {
  case CHAIN: /* pointers to a neighbour: long and circular lists */
    return address + (u64)((s64)w->parameter * 8);
  case NOISE: {
    /* Mostly frame flags, small numbers, and pointers into memory of the same kind. */
    static const u64 flags[] = {0x55550001, 0x66660001, 0x79990001, 0x11110001,
                                0x22220003, 0x55550021, 0x66660021, 0x79990021};
    u64 word = mixed(address ^ (u64)(u8)w->parameter << 56);
    if (word & 1)
      return flags[word >> 1 & 7] | (word >> 8 & 0x60);
    return word & 2 ? word >> 8 & 0x7ffffffffff8ULL : word >> (word >> 58);
  }
  case INPUT: {
    u64 word = 0;
    size_t words = w->input_size / 8;
    if (words)
      memcpy(&word, w->input + address / 8 % words * 8, sizeof word);
    return word;
  }
  default:
    return 0;
  }
}

static int read_world(void *context, u64 address, void *to, u32 length) {
  const world *w = context;
  const image *m = w->image;
  u8 *out = to;
  for (u32 i = 0; i < w->hole_count; i++)
    if (address < w->holes[i].end && address + length > w->holes[i].start)
      return -1;
  while (length) {
    u32 low = 0, high = m->piece_count;
    while (low < high) {
      u32 middle = (low + high) / 2;
      if (m->pieces[middle].start + m->pieces[middle].size <= address)
        low = middle + 1;
      else
        high = middle;
    }
    const piece *p = low < m->piece_count ? &m->pieces[low] : NULL;
    u64 part;
    if (p && p->start <= address) {
      part = p->start + p->size - address;
      part = part < length ? part : length;
      memcpy(out, p->data + (address - p->start), part);
    } else {
      if (w->background == FAIL)
        return -1;
      u64 word = background_word(w, address & ~7ULL);
      part = 8 - address % 8;
      part = part < length ? part : length;
      if (p && p->start - address < part)
        part = p->start - address;
      memcpy(out, (const u8 *)&word + address % 8, part);
    }
    out += part;
    length -= (u32)part;
    address += part;
  }
  return 0;
}

/* ---- changes, and taking them back ---- */

typedef struct change {
  u8 *at;
  u8 before[8];
  u32 size;
  int fd; /* -1: memory of ours only */
  u64 offset;
} change;

static change changes[MAX_CHANGES];
static u32 change_count;

static void change_bytes(u8 *at, const void *value, u32 size, int fd, u64 offset) {
  if (change_count == MAX_CHANGES)
    return;
  change *c = &changes[change_count++];
  *c = (change){.at = at, .size = size, .fd = fd, .offset = offset};
  memcpy(c->before, at, size);
  memcpy(at, value, size);
  if (fd >= 0)
    REQUIRE(pwrite(fd, at, size, (off_t)offset) == (ssize_t)size);
}

static void take_back(void) {
  while (change_count) {
    const change *c = &changes[--change_count];
    memcpy(c->at, c->before, c->size);
    if (c->fd >= 0)
      REQUIRE(pwrite(c->fd, c->before, c->size, (off_t)c->offset) == (ssize_t)c->size);
  }
}

static u64 take(input *in, size_t bytes) {
  u64 value = 0;
  size_t there = (size_t)(in->end - in->at);
  if (there > bytes)
    there = bytes;
  if (there) {
    memcpy(&value, in->at, there);
    in->at += there;
  }
  return value;
}

/* Memory word `number`, of all pieces counted through. */
static u8 *word_at(image *m, u64 number, u64 *address, u64 *offset) {
  number %= m->words;
  for (u32 i = 0; i < m->piece_count; i++) {
    piece *p = &m->pieces[i];
    if (number < p->size / 8) {
      *address = p->start + 8 * number;
      *offset = p->offset + 8 * number;
      return p->data + 8 * number;
    }
    number -= p->size / 8;
  }
  abort();
}

/* A value that is worth trying. */
static u64 take_value(input *in, image *m, u64 before) {
  static const u64 odd[] = {0,
                            1,
                            7,
                            8,
                            0xfff,
                            0x1000,
                            0x7fffffff,
                            0x80000000,
                            0xffffffff,
                            1ULL << 47,
                            0x00ffffffffffffffULL,
                            1ULL << 56,
                            0x7fffffffffffffffULL,
                            1ULL << 63,
                            ~7ULL,
                            ~0ULL,
                            0x55550001,
                            0x66660001,
                            0x79990001,
                            0x55550021,
                            0x66660061,
                            0x79990021,
                            0x8001,
                            0x8003};
  u64 address, offset, value;
  switch (take(in, 1) % 6) {
  case 0:
    return take(in, 8);
  case 1:
    return odd[take(in, 1) % (sizeof odd / sizeof *odd)];
  case 2: /* the address of a word of the image */
    word_at(m, take(in, 3), &address, &offset);
    return address + (u64)(s64)(int8_t)take(in, 1);
  case 3: /* what another word holds */
    memcpy(&value, word_at(m, take(in, 3), &address, &offset), sizeof value);
    return value;
  case 4:
    return before + (u64)(s64)(int8_t)take(in, 1);
  default:
    return before ^ 1ULL << take(in, 1) % 64;
  }
}

static void change_cell(input *in, image *m) {
  u32 map = m->groups[take(in, 1) % m->group_count];
  const cell *c =
      &m->cells[m->first_cell[map] + take(in, 2) % (m->first_cell[map + 1] - m->first_cell[map])];
  u32 width = 1U << take(in, 1) % 4;
  u32 at = (u32)take(in, 3) % c->size;
  u64 before = 0;
  width = c->size - at < width ? c->size - at : width;
  memcpy(&before, c->at + at, width);
  u64 value = take_value(in, m, before);
  /* A bool has two values; user space never writes others. */
  u32 flag = offsetof(SystemConfig, drop_error_only_traces);
  if (!strcmp(maps[map].name, "system_config") && at <= flag && at + width > flag)
    value &= ~(0xfeULL << 8 * (flag - at));
  change_bytes(c->at + at, &value, width, -1, 0);
}

static void change_world(input *in, world *w, host_task *task, u64 *context) {
  image *m = w->image;
  u64 address, offset, value;
  /* Maps are ours, and do not change while it runs. */
  switch (take(in, 1) % (in == &w->later ? 3 : 8)) {
  case 0:
  case 1:
  case 2: {
    u8 *at = word_at(m, take(in, 3), &address, &offset);
    memcpy(&value, at, sizeof value);
    value = take_value(in, m, value);
    change_bytes(at, &value, sizeof value, m->fd, offset);
    break;
  }
  case 3:
  case 4:
    change_cell(in, m);
    break;
  case 5: {
    u32 number = take(in, 1) % 40;
    task->registers[number] = take_value(in, m, task->registers[number]);
    break;
  }
  case 6: {
    u64 start = (word_at(m, take(in, 3), &address, &offset), address);
    if (w->hole_count < MAX_HOLES) {
      w->holes[w->hole_count].start = start;
      w->holes[w->hole_count++].end = start + 1 + take(in, 1);
    }
    break;
  }
  case 7:
    switch (take(in, 1) % 3) {
    case 0:
      task->thread_pointer = take_value(in, m, task->thread_pointer);
      break;
    case 1:
      *context = take_value(in, m, *context);
      break;
    case 2:
      task->pid = (u32)take_value(in, m, task->pid);
      break;
    }
    break;
  }
}

/* ---- what must hold ---- */

static void check_frame(const Frame *frame, bool last) {
  u64 pad = 0;
  memcpy(&pad, frame->pad, sizeof frame->pad);
  switch (frame->kind) {
  case FRAME_MARKER_NATIVE:
    REQUIRE(frame->return_address <= 1 && !pad);
    break;
  case FRAME_MARKER_RUBY:
    REQUIRE(!frame->return_address);
    break;
  case FRAME_MARKER_RUBY_CFUNC:
    REQUIRE(!frame->return_address && !pad && !frame->addr_or_line);
    break;
  case FRAME_MARKER_ABORT:
    REQUIRE(last && !frame->file_id && frame->addr_or_line);
    break;
  default:
    REQUIRE(!"a kind of frame that these programs make");
  }
}

static void check_record(host *h, const host_task *task, bool walker) {
  size_t length;
  const u8 *output = host_output(h, &length);
  const PerCPURecord *record = host_map_values(host_map_find(h, "per_cpu_records"));
  REQUIRE(record->tailCalls <= MOST_TAIL_CALLS);
  if (!length)
    return;
  Trace trace; /* its head */
  REQUIRE(length >= HEADER);
  memcpy(&trace, output, HEADER);
  REQUIRE(trace.stack_len <= (walker ? MAX_DEEP_FRAMES : MAX_FRAME_UNWINDS));
  REQUIRE(length == HEADER + trace.stack_len * sizeof(Frame));
  REQUIRE(trace.pid == task->pid && trace.tid == task->tid && trace.ktime == task->ktime);
  REQUIRE(!memcmp(trace.comm, task->comm, sizeof trace.comm));
  REQUIRE(trace.origin == TRACE_ORIGIN_SAMPLING && trace.kernel_stack_id < 0);
  REQUIRE(!(trace.flags & TRACE_RUBY_BASE) || (trace.flags & TRACE_RUBY_MET));
  for (u32 i = 0; i < trace.stack_len; i++) {
    Frame frame;
    memcpy(&frame, output + HEADER + i * sizeof frame, sizeof frame);
    check_frame(&frame, i == trace.stack_len - 1);
  }
}

static world *running; /* whose memory process_vm_readv reads */

/* The flags of the build put this in the place of process_vm_readv. */
ssize_t fuzz_process_vm_readv(pid_t pid, const struct iovec *to, unsigned long to_count,
                              const struct iovec *from, unsigned long from_count,
                              unsigned long flags) {
  ssize_t got = 0;
  host_task task = running->image->task;
  u64 context = 0;
  REQUIRE(!flags && to_count == from_count && (u32)pid <= ~0u);
  for (unsigned long i = 0; i < to_count; i++) {
    REQUIRE(to[i].iov_len == from[i].iov_len);
    for (u64 left = take(&running->later, 1) & 3; left; left--)
      change_world(&running->later, running, &task, &context);
    if (to[i].iov_len &&
        read_world(running, (u64)(uintptr_t)from[i].iov_base, to[i].iov_base, (u32)to[i].iov_len)) {
      errno = EFAULT;
      return got ? got : -1;
    }
    got += (ssize_t)to[i].iov_len;
  }
  return got;
}

static u32 steady(world *w, const host_task *task, u64 context, host_memory *memory) {
  u8 *scratch = malloc(host_steady_size()); /* of its very size, and as the last run has left it */
  REQUIRE(scratch);
  memset(scratch, w->parameter, host_steady_size());
  running = w;
  int error = host_run_steady(w->image->host, context, task, memory, scratch, ATTEMPTS);
  free(scratch);
  REQUIRE(!memory->overlays && !memory->overlay_count);
  return error ? 0 : 1;
}

/* Returns the number of frames. */
static u32 run(world *w, u8 mode, const host_task *task, u64 context) {
  static host_page pages[CACHE_PAGES];
  image *m = w->image;
  host_memory memory = {.fd = -1, .read = read_world, .context = w};
  if (mode & (BY_DESCRIPTOR | STEADY)) {
    memory.fd = m->fd;
    memory.pieces = m->file_pieces;
    memory.piece_count = m->piece_count;
    memory.piecemeal = !!(mode & PIECEMEAL);
    if (w->background == FAIL)
      memory.read = NULL;
    if (mode & CACHED) {
      memset(pages, 0, sizeof pages);
      memory.pages = pages;
      memory.page_count = CACHE_PAGES;
      memory.run = 1;
    }
  }
  bool walker = (mode & WALKER) && !(mode & (CONTEXT_ONLY | STEADY));
  reset_maps(m->host, walker);
  bool ran = true;
  if (mode & STEADY)
    ran = steady(w, task, context, &memory);
  else if (mode & CONTEXT_ONLY)
    host_run_context(m->host, context, task, &memory);
  else
    REQUIRE(
        !host_run(m->host, walker ? "native_tracer_walker" : "native_tracer_entry", task, &memory));
  REQUIRE(memory.reads <= MAX_READS && memory.failures <= memory.reads);
  size_t length;
  host_output(m->host, &length);
  if (!ran || !length)
    return 0;
  check_record(m->host, task, walker);
  return (u32)((length - HEADER) / sizeof(Frame));
}

static void load_images(void) {
  image *m = NULL;
  for (const u8 *at = seed_images; at < seed_images_end;) {
    u32 kind, length;
    memcpy(&kind, at, sizeof kind);
    memcpy(&length, at + 4, sizeof length);
    const u8 *payload = at + 8;
    REQUIRE(m || kind == NAME);
    switch (kind) {
    case NAME:
      m = new_image(payload, length);
      break;
    case ENTRY:
      load_entry(m, payload);
      break;
    case ROWS:
      load_rows(m, payload);
      break;
    case MEMORY:
      load_memory(m, payload, length);
      break;
    case TASK:
      REQUIRE(length == sizeof m->task);
      memcpy(&m->task, payload, length);
      break;
    case CONTEXT:
      memcpy(&m->context, payload, sizeof m->context);
      memcpy(&m->frames, payload + 16, sizeof m->frames);
      memcpy(&m->context_frames, payload + 20, sizeof m->context_frames);
      break;
    }
    at = payload + ((length + 7) & ~7u);
  }
  for (u32 i = 0; i < image_count; i++) {
    collect_cells(images[i]);
    fill_walker(images[i]->host);
    write_file(images[i]);
    world plain = {.image = images[i]};
    for (u8 mode = 0; mode < MODES; mode++) {
      u32 frames = run(&plain, mode, &images[i]->task, images[i]->context);
      bool whole = !(mode & (CONTEXT_ONLY | STEADY));
      u32 expected = whole ? images[i]->frames : images[i]->context_frames;
      if (frames != expected) {
        fprintf(stderr, "image %s, mode %u: %u frames, not %u: run fuzz/make_seeds.py again\n",
                images[i]->name, mode, frames, expected);
        abort();
      }
    }
  }
  REQUIRE(image_count);
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size) {
  limit_cpu_time();
  if (!image_count)
    load_images();
  input in = {data, data + size};
  image *m = images[take(&in, 1) % image_count];
  u8 mode = (u8)take(&in, 1);
  world w = {.image = m, .background = (background)(take(&in, 1) % BACKGROUNDS)};
  w.parameter = (int8_t)take(&in, 1);
  w.input = in.at;
  w.input_size = (size_t)(in.end - in.at);
  host_task task = m->task;
  u64 context = m->context;
  int before = mode & STEADY ? w.parameter & 15 : MAX_CHANGES;
  while (in.at < in.end && change_count < MAX_CHANGES && before--)
    change_world(&in, &w, &task, &context);
  w.later = in;
  run(&w, mode, &task, context);
  take_back();
  return 0;
}
