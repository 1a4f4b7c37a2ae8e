/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* `fine` loads, `out_of_bounds` is refused by the verifier. */
#include "helpers.h"

char LICENSE[] SEC("license") = "GPL";

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, u32);
  __type(value, u64);
} box SEC(".maps");

SEC("perf_event")
int fine(void *ctx) { return 0; }

SEC("perf_event/with_a_suffix")
int out_of_bounds(void *ctx) {
  u32 zero = 0;
  u64 *value = bpf_map_lookup_elem(&box, &zero);
  return value ? (int)value[4] : 0;
}
