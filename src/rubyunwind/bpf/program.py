# SPDX-License-Identifier: Apache-2.0
"""Loaded programs, and the links that attach them to raw tracepoints."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rubyunwind._libbpf import ffi
from rubyunwind.bpf.lifetime import Resource
from rubyunwind.bpf.refusals import check

__all__ = ["Link", "Program", "ProgramStats"]


@dataclass(frozen=True, slots=True)
class ProgramStats:
    """What the kernel counted for a program.

    `run_count` and `run_time_ns` grow only while statistics are on (sysctl kernel.bpf_stats_enabled).
    `verified_instructions` is what the verifier walked at load, 0 before kernel 5.16; `skipped` counts
    runs refused because the program was already running on that CPU (5.12 and newer).
    """

    id: int
    run_count: int
    run_time_ns: int
    verified_instructions: int
    skipped: int
    jited_bytes: int


class Link:
    """An attachment. It stays until closed; its collection closes it too. A context manager."""

    def __init__(self, fd: int, what: str, parent: Resource) -> None:
        self.what = what
        self._resource = Resource(what, lambda: os.close(fd), parent=parent)

    @property
    def closed(self) -> bool:
        """Whether the program is detached."""
        return self._resource.closed

    def close(self) -> None:
        """Detach; closing twice is harmless."""
        self._resource.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Program:
    """A loaded program. Its descriptor belongs to the collection and dies with it."""

    def __init__(
        self, lib: Any, pointer: Any, name: str, section: str, resource: Resource, keep: object
    ) -> None:
        self._lib = lib
        self._resource = resource
        self._keep = keep  # the collection: it must not be collected while a program is in use
        self._fd = int(lib.bpf_program__fd(pointer))
        self.name = name
        self.section = section
        self.type = int(lib.bpf_program__type(pointer))
        self.instruction_count = int(lib.bpf_program__insn_cnt(pointer))

    def __repr__(self) -> str:
        return f"Program({self.name!r}, section={self.section!r}, instructions={self.instruction_count})"

    @property
    def fd(self) -> int:
        """The descriptor, borrowed: never close it. LifetimeError once the collection is closed."""
        self._resource.check()
        return self._fd

    def attach_raw_tracepoint(self, name: str | None = None) -> Link:
        """Attach to raw tracepoint `name` (default: what follows "raw_tp/" in the section name).

        Needs neither tracefs nor perf. Raises BpfError: ENOENT if the kernel has no such tracepoint.
        """
        name = name or self.section.partition("/")[2]
        if not name:
            raise ValueError(f"program {self.name}: section {self.section!r} names no tracepoint, give one")
        fd = self._lib.bpf_raw_tracepoint_open(name.encode(), self.fd)
        what = f"attach {self.name} to raw tracepoint {name}"
        check(fd, what, f"program type {self.type}; the kernel may have no tracepoint of that name")
        return Link(int(fd), what, self._resource)

    def stats(self) -> ProgramStats:
        """Ask the kernel for the program's counters."""
        info = ffi.new("struct bpf_prog_info *")
        length = ffi.new("uint32_t *", ffi.sizeof("struct bpf_prog_info"))
        check(
            self._lib.bpf_obj_get_info_by_fd(self.fd, info, length), f"read counters of program {self.name}"
        )
        return ProgramStats(
            id=info.id,
            run_count=info.run_cnt,
            run_time_ns=info.run_time_ns,
            verified_instructions=info.verified_insns,
            skipped=info.recursion_misses,
            jited_bytes=info.jited_prog_len,
        )
