# SPDX-License-Identifier: Apache-2.0
"""What stands above the table: what is sampled, how fast, and what was lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from rubyunwind.profiler.sample import Totals

__all__ = ["Status"]

_WEIGHTS_OF_REASONS = 3  # reasons that are named


@dataclass(frozen=True, slots=True)
class Status:
    """What a recording says of itself. `rate` is in Hz, `seconds` are since the counts began.

    `totals` are those of the profiler since then; `incomplete` samples are in the table with the part of
    their stack that was read.
    """

    target: str = ""
    runtimes: tuple[str, ...] = ()
    backend: str = ""
    rate: int = 99
    seconds: float = 0.0
    totals: Totals = field(default_factory=Totals)
    incomplete: int = 0
    notes: tuple[str, ...] = ()

    @property
    def losses(self) -> str:
        """How many samples were lost, or are not whole, and why."""
        totals = self.totals
        text = f"{totals.lost} lost, {self.incomplete} incomplete"
        named = [f"{reason} {count}" for reason, count in totals.failed[:_WEIGHTS_OF_REASONS]]
        if len(totals.failed) > len(named):
            named.append("...")
        return f"{text} ({', '.join(named)})" if named else text
