# SPDX-License-Identifier: Apache-2.0
"""How large the tables in the kernel are, where that is not what the object says."""

from __future__ import annotations

__all__ = ["FOR_ALL", "FOR_A_FEW", "trace_pages"]

# The ABI thinks of 32 builds of Ruby, and of 1024 processes.
_BUILDS = {"interpreter_offsets": 1024, "interpreter_cold_offsets": 1024}

FOR_ALL = {
    **_BUILDS,
    "ruby_procs": 4096,
    "ruby_tls": 4096,
    "ruby_vms": 4096,
    # Compilers and browsers have a hundred megabytes of code each. 48 MB of memory, and room for 8 million
    # rows and a gigabyte of code.
    "flat_rows": 1 << 22,
    "flat_pages": 1 << 21,
}
"""Entries of maps by name, for whatever runs on a machine."""

FOR_A_FEW = {
    **_BUILDS,
    "reported_pids": 1024,
    "pid_events": 1024,
    "followed_pids": 4096,
    "kernel_stackmap": 2048,
    "stack_delta_page_to_info": 16384,
    "ruby_procs": 256,
    "ruby_tls": 256,
    "ruby_vms": 256,
    "flat_rows": 1 << 19,
    "flat_pages": 1 << 17,
    **{f"exe_id_to_{bits}_stack_deltas": 256 for bits in range(8, 24)},
}
"""The same for a few processes."""

# For each CPU, in pages: a ring of a megabyte holds sixteen of the largest traces. Less on many CPUs.
_TRACE_PAGES = ((8, 256), (32, 128))
_FEWEST_PAGES = 64


def trace_pages(cpus: int) -> int:
    """Return the size of each CPU's ring in pages."""
    return next((pages for most, pages in _TRACE_PAGES if cpus <= most), _FEWEST_PAGES)
