# SPDX-License-Identifier: Apache-2.0
"""How the tests talk to the programs of ebpf/loader.bpf.c: its settings and its metrics."""

from __future__ import annotations

import os
import time

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.compound_maps import PerCPUMap

# enum Metric
RAN_ENTRY, RAN_STOP, RAN_NATIVE, RAN_RUBY, EMPTY_SLOT, OUTPUT_FAILED, EXITS, PAGE_FOUND, ROW_FOUND = range(9)


def metric(collection: Collection, index: int) -> int:
    metrics = collection.maps["metrics"]
    assert isinstance(metrics, PerCPUMap)
    return metrics.total(index)


def spin_until(collection: Collection, index: int, count: int = 1) -> None:
    """Burn CPU in this thread until the metric is reached; fail after 5 s."""
    deadline = time.monotonic() + 5
    while metric(collection, index) < count:
        sum(range(10_000))
        assert time.monotonic() < deadline, f"metric {index} stays at {metric(collection, index)}"


def configure(
    collection: Collection, slot: int, burst: int = 0, length: int = 64, pid: int | None = None
) -> None:
    # struct settings
    words = (os.getpid() if pid is None else pid, slot, burst, length)
    packed = b"".join(word.to_bytes(4, "little") for word in words) + bytes(8)
    collection.maps["settings"][0] = packed
