# SPDX-License-Identifier: Apache-2.0
"""A moment as people give it: seconds since the start of a recording, or a time of the clock."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone

__all__ = ["moment"]

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?(Z?)")
_NS = 1_000_000_000
_MOST_SECONDS = 1 << 32


def moment(text: str, started: int) -> int:
    """Return unix nanoseconds. `started` is when the recording began.

    `12.5` is seconds after that, `14:03` or `14:03:05.5` the first such time of the local clock after it, and
    `2026-01-31T14:03:05` that very time; with a Z (or, behind a date, an offset such as +02:00) the zone is
    not the local one. Raises ValueError for anything else, and for a time of the clock without a start.
    """
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if not math.isfinite(seconds) or abs(seconds) > _MOST_SECONDS:
            raise ValueError(f"{text!r} is no number of seconds")
        return started + round(seconds * _NS)
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        return _next(clock, text, started)
    try:
        # Python 3.10 does not know the Z.
        found = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        raise ValueError(
            f"{text!r} is no moment: give seconds since the start (12.5), a time (14:03:05), or a date and "
            "time (2026-01-31T14:03:05, local unless it ends in Z or +02:00)"
        ) from None
    return _ns(found.astimezone())


def _ns(when: datetime) -> int:
    return int(when.replace(microsecond=0).timestamp()) * _NS + when.microsecond * 1000


def _next(clock: re.Match[str], text: str, started: int) -> int:
    """The time of the clock on the day of the start, or the day after if the start was later."""
    if not started:
        raise ValueError(f"{text!r} needs the day: it is not known when the recording began")
    hours, minutes, seconds = int(clock[1]), int(clock[2]), float(clock[3] or 0)
    if hours > 23 or minutes > 59 or seconds >= 61:
        raise ValueError(f"{text!r} is no time of the day")
    zone = timezone.utc if clock[4] else None
    begun = datetime.fromtimestamp(started // _NS, timezone.utc).astimezone(zone)
    found = begun.replace(hour=hours, minute=minutes, second=0, microsecond=0) + timedelta(seconds=seconds)
    # A start of 14:03:05.3 is shown as 14:03:05: whoever gives that means it.
    if found < begun.replace(microsecond=0):
        found += timedelta(days=1)
    return _ns(found)
