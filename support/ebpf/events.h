/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Telling user space about processes that it has to look at. */
#pragma once
#include "records.h"

/*
 * event_send_trigger wakes user space for work that waits in a map. Once sent, an event type is
 * latched: nothing more goes out until user space deletes it from inhibit_events.
 */
INLINE void event_send_trigger(void *ctx, u32 event_type) {
  if (event_type != EVENT_TYPE_GENERIC_PID)
    return;
  bool latched = true;
  if (bpf_map_update_elem(&inhibit_events, &event_type, &latched, BPF_NOEXIST) < 0)
    return;
  increment_metric(metricID_NumGenericPID);

  Event event = {.event_type = event_type};
  if (bpf_perf_event_output(ctx, &report_events, BPF_F_CURRENT_CPU, &event, sizeof(event)) < 0) {
    DEBUG_PRINT("event %d was not sent", event_type);
    /* Nobody heard it: let the next one try. */
    bpf_map_delete_elem(&inhibit_events, &event_type);
    increment_counter(COUNTER_EVENT_FAILED);
  }
}

/* pid_information_exists says whether user space has registered the process: it keeps page 0 for
 * that. */
INLINE bool pid_information_exists(u32 pid) {
  PIDPage key = {};
  key.prefixLen = BIT_WIDTH_PID + BIT_WIDTH_PAGE;
  key.pid = HOST_TO_BE32(pid);
  key.page = 0;
  return bpf_map_lookup_elem(&pid_page_to_mapping_info, &key) != NULL;
}

/* is_followed says whether a process is to be sampled: all are, unless user space has named some.
 */
INLINE bool is_followed(u32 pid) {
  const u32 *flags = map_element(&followed_pids, pid);
  if (flags)
    return !(*flags & (FOLLOW_FROM_EXEC | FOLLOW_NEVER));
  return !map_element(&followed_pids, 0);
}

/*
 * report_pid puts a process on user space's list. With inhibit, not again within
 * REPORTED_PIDS_TIMEOUT unless user space has handled it meanwhile (it deletes the pid from
 * reported_pids then). Returns whether the process was put on the list.
 */
INLINE bool report_pid(void *ctx, u32 pid, bool inhibit) {
  if (inhibit) {
    u64 now = bpf_ktime_get_ns();
    const u64 *before = bpf_map_lookup_elem(&reported_pids, &pid);
    if (before && now - *before < REPORTED_PIDS_TIMEOUT) {
      DEBUG_PRINT("pid %d was reported lately", pid);
      return false;
    }
    if (bpf_map_update_elem(&reported_pids, &pid, &now, BPF_ANY) != 0) {
      increment_metric(metricID_ReportedPIDsErr);
      return false;
    }
  }

  bool waiting = true;
  if (bpf_map_update_elem(&pid_events, &pid, &waiting, BPF_ANY) != 0) {
    DEBUG_PRINT("pid_events takes no pid %d", pid);
    increment_metric(metricID_PIDEventsErr);
    if (inhibit)
      bpf_map_delete_elem(&reported_pids, &pid);
    return false;
  }
  /* The pid is on the list whether or not this event gets through. */
  event_send_trigger(ctx, EVENT_TYPE_GENERIC_PID);
  return true;
}
