# SPDX-License-Identifier: Apache-2.0
"""A made-up profile: two processes, three threads, all kinds of frames, incomplete stacks, hostile names."""

from __future__ import annotations

from collections import Counter

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

STARTED = 1_700_000_000_000_000_000
META = Meta("ruby app.rb", "ruby app.rb", STARTED, 2.5, 100.0, ("ruby 3.1.2",))
TOTALS = Totals(204, 3, 20, (("no unwind row", 7),))

HOSTILE = (
    "</script><script>alert(1)</script>",
    "a;b",
    "a\nb\r\nc",
    "a\0b",
    "quote\"'`${1}",
    "back\\slash\\",
    "(7) x",
    "ends in a number 12",
    b"cut \xe5\x90".decode("utf-8", "surrogateescape"),
)

_ROOT = (
    Frame("native", "rb_vm_exec", module="/usr/lib/libruby.so.3.1", offset=0x1234),
    Frame("native", "main", module="/usr/bin/ruby3.1", offset=0x99),
)
_TIP = (
    Frame("kernel", "vfs_read"),
    Frame("native", "read", module="/lib/libc.so.6", offset=0x5678),
    Frame("cfunc", "IO#read", path="/app.rb", line=3),
)


def _sample(number: int) -> Sample:
    pid = 70 + number % 2
    tid = pid + 10 if number % 5 == 0 and pid == 70 else pid
    ruby = Frame("ruby", f"Foo#bar{number % 3}", path="/app.rb", line=3 + number % 2)
    return Sample(
        STARTED + number * 10_000_000,
        pid,
        tid,
        "puma" if pid == 70 else "ruby",
        (*(_TIP if number % 4 else ()), ruby, *_ROOT),
        complete=number % 10 != 0,
        reason=None if number % 10 else "limit",
        weight=1 + number % 2,
    )


SAMPLES = [
    *map(_sample, range(200)),
    *(
        Sample(STARTED + number, 70, 70, "puma", (Frame("ruby", name, path=name, line=1),))
        for number, name in enumerate(HOSTILE)
    ),
    Sample(STARTED, 70, 70, "puma", (Frame("gc", "gc: marking"), *_ROOT), weight=4),
]


def total() -> int:
    return sum(sample.weight for sample in SAMPLES)


def self_weights(*, pid: int | None = None, tid: int | None = None) -> Counter[str]:
    """Weights by the name of the leaf."""
    found: Counter[str] = Counter()
    for sample in SAMPLES:
        if (pid is None or sample.pid == pid) and (tid is None or sample.tid == tid):
            found[sample.frames[0].name] += sample.weight
    return found


def total_weights(*, pid: int | None = None, tid: int | None = None) -> Counter[str]:
    """Weights of all stacks that a name is in."""
    found: Counter[str] = Counter()
    for sample in SAMPLES:
        if (pid is None or sample.pid == pid) and (tid is None or sample.tid == tid):
            for name in {frame.name for frame in sample.frames}:
                found[name] += sample.weight
    return found
