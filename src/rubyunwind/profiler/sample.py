# SPDX-License-Identifier: Apache-2.0
"""What a profile is made of: symbolized frames and samples. Frozen values, shared freely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Frame", "FrameKind", "Sample", "Switches", "Totals"]

FrameKind = Literal["ruby", "cfunc", "native", "kernel", "gc", "jit", "unknown", "error"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One symbolized frame.

    `name` is what people read; `label` what Ruby itself prints (Thread::Backtrace::Location#label), or why
    a frame is unknown. Equal names merge in a flame graph, so addresses are never part of one.
    `path` and `line` are of Ruby source (a cfunc has its caller's, as in Ruby; line 0: unknown).
    `module` and `offset` (ELF virtual address) place a native frame. Names keep undecodable bytes
    as surrogates (surrogateescape).
    """

    kind: FrameKind
    name: str
    label: str | None = None
    path: str | None = None
    line: int | None = None
    module: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: a thread's stack at a moment, leaf first.

    `timestamp` is unix time in ns, `weight` counts samples (or ns when `unit` says so). `complete` is
    False when the stack was cut, with the `reason`: limit, tail calls, unreadable memory, unmapped pc,
    no unwind row, no execution context, ...
    """

    timestamp: int
    pid: int
    tid: int
    comm: str
    frames: tuple[Frame, ...]
    complete: bool = True
    reason: str | None = None
    weight: int = 1
    unit: str = "samples"
    origin: str = "sampling"
    backend: str = "bpf"
    container: str | None = None
    cpu: int = -1


@dataclass(frozen=True, slots=True)
class Switches:
    """What became of the moments at which a sampled thread left its CPU.

    `seen` is the sum of the others. `sent` came back and are samples. Those `waiting` have not; when sampling
    stops they become samples, too, with the time so far. `not_chosen` by probability; `short` were away for
    less time than asked for, for `short_ns` all together. `failed` are without a sample: lost to a full perf
    buffer, or without room in a map.
    """

    seen: int = 0
    sent: int = 0
    waiting: int = 0
    not_chosen: int = 0
    short: int = 0
    failed: int = 0
    short_ns: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of a recording. Nothing is dropped without appearing here.

    `read` samples were decoded, `lost` were refused by a full perf buffer, `truncated` hit a limit
    (their leaf part is in the profile), `failed` counts incomplete stacks and unsent samples by reason.
    `switches` is there where off-CPU samples are taken; they are in the other numbers, too.

    What shows that the reader does not keep up: `unfinished` calls of `poll` ended with work left, `waiting`
    processes were reported and are still to be registered. `evicted` ones were taken out of full tables and
    have to be registered anew; for `no_room` processes and files the kernel's tables, or the descriptors that
    may be open, did not suffice. `given_up` files could not be read, as their file system did not answer.
    """

    read: int = 0
    lost: int = 0
    truncated: int = 0
    failed: tuple[tuple[str, int], ...] = ()
    switches: Switches | None = None
    unfinished: int = 0
    waiting: int = 0
    evicted: int = 0
    no_room: int = 0
    given_up: int = 0
