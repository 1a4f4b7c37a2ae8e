# SPDX-License-Identifier: Apache-2.0
"""What is said of a recording as a whole: its circumstances, and what of it was lost."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Totals

__all__ = ["NO_SAMPLES", "circumstances", "losses"]

NO_SAMPLES = "no samples"


def circumstances(meta: Meta) -> list[str]:
    """Command, interpreters, rate, duration and time, as far as they are known."""
    details = [meta.command] if meta.command else []
    details += meta.runtimes
    if meta.rate:
        details.append(f"{meta.rate:g} Hz")
    if meta.duration:
        details.append(f"{meta.duration:.1f} s")
    if meta.started:
        started = datetime.fromtimestamp(meta.started // 1_000_000_000, tz=timezone.utc)
        details.append(f"{started:%Y-%m-%d %H:%M:%S} UTC")
    return details


def losses(totals: Totals, *, empty: bool) -> list[str]:
    """The totals in a line, the reasons of failures in another; a word first when there is no sample."""
    said = [NO_SAMPLES] if empty else []
    said.append(f"samples: {totals.read} read, {totals.truncated} truncated, {totals.lost} lost")
    if totals.failed:
        reasons = ", ".join(f"{reason} {count}" for reason, count in totals.failed)
        said.append(f"incomplete or unsent, by reason: {reasons}")
    return said
