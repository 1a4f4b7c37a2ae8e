# SPDX-License-Identifier: Apache-2.0
"""Tallies: what became of the samples, added up by the reader."""

from __future__ import annotations

from collections import Counter as Tally
from typing import TYPE_CHECKING

from rubyunwind.abi import Counter
from rubyunwind.profiler.off_cpu import switches
from rubyunwind.profiler.reasons import TRUNCATIONS
from rubyunwind.profiler.sample import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rubyunwind.profiler.sample import Sample
    from rubyunwind.profiler.samples import SampledStack

__all__ = ["Tallies"]

# What the kernel side counts of samples that it does not send.
_NOT_SENT = {
    Counter.UNKNOWN_PID: "process not registered yet",
    Counter.DROPPED_ERROR_ONLY: "only an error",
    Counter.NOT_FOLLOWED: "processes too many to follow",
    Counter.OFF_CPU_NO_ROOM: "off CPU, too many threads at once",
    Counter.OFF_CPU_LATE: "off CPU, return noticed late",
}


class Tallies:
    """Samples read and truncated, and those that failed by reason."""

    def __init__(self) -> None:
        self.read = 0
        self.malformed = 0  # records that are no trace
        self.unfinished = 0  # calls that ended with work left
        self._truncated = 0
        self._failed: Tally[str] = Tally()

    def count(self, stack: Sample | SampledStack, count: int) -> None:
        """Add `count` samples with that stack."""
        self.read += count
        if stack.reason is not None:
            self._failed[stack.reason] += count
            self._truncated += count * (stack.reason in TRUNCATIONS)

    def totals(self, counters: Mapping[Counter, int], tables: Mapping[str, int], *, off_cpu: bool) -> Totals:
        """Return them with what the kernel side counted, and with how full the `tables` are."""
        failed = dict(self._failed)
        failed |= {reason: counters[which] for which, reason in _NOT_SENT.items() if counters.get(which)}
        if self.malformed:
            failed["malformed record"] = self.malformed
        return Totals(
            read=self.read,
            lost=counters.get(Counter.OUTPUT_FAILED, 0) + counters.get(Counter.OFF_CPU_OUTPUT_FAILED, 0),
            truncated=self._truncated,
            failed=tuple(sorted(failed.items(), key=lambda item: (-item[1], item[0]))),
            switches=switches(counters) if off_cpu else None,
            unfinished=self.unfinished,
            **tables,
        )
