# SPDX-License-Identifier: Apache-2.0
"""A recording that is looked at while it runs: its samples counted, its totals since the last reset."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rubyunwind.cli.live.counts import Counts
from rubyunwind.cli.live.status import Status
from rubyunwind.cli.live.table import Table, make_table
from rubyunwind.cli.notes import news
from rubyunwind.profiler.sample import Totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.cli.live.state import State
    from rubyunwind.profiler.recording import Recording
    from rubyunwind.profiler.sample import Sample

__all__ = ["Watch", "since"]


def since(before: Totals, now: Totals) -> Totals:
    """Return the totals of the time between."""
    known = dict(before.failed)
    failed = [(reason, count - known.get(reason, 0)) for reason, count in now.failed]
    return Totals(
        read=now.read - before.read,
        lost=now.lost - before.lost,
        truncated=now.truncated - before.truncated,
        failed=tuple(sorted(((r, n) for r, n in failed if n), key=lambda item: (-item[1], item[0]))),
    )


class Watch:
    """What has come of a recording that was entered. `window` intervals are "now".

    `incomplete` counts also what came before `begin_anew`.
    """

    def __init__(self, recording: Recording, *, window: int, is_command: bool) -> None:
        self.recording = recording
        self.incomplete = 0
        self._counts = Counts(window)
        self._is_command = is_command
        self._base = Totals()
        self._base_incomplete = 0
        self._began = self._closed = time.monotonic()
        self._status = Status()

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to come: stopped, or the processes have ended."""
        return self.recording.stopped or not self.recording.running

    def take(self, samples: Iterable[Sample]) -> None:
        """Count samples."""
        before = self._counts.incomplete
        self._counts.add(samples)
        self.incomplete += self._counts.incomplete - before

    def close_interval(self) -> None:
        """Let what has come since the last time be in the table."""
        now = time.monotonic()
        self._counts.close(now - self._closed)
        self._closed = now

    def begin_anew(self) -> None:
        """Count from now on."""
        self.recording.update()
        self._base = self.recording.profile.totals
        self._base_incomplete = self.incomplete
        self._counts.reset()
        self._began = self._closed = time.monotonic()

    def resume(self) -> None:
        """After a pause: what came meanwhile counts, but is not "now"."""
        self.close_interval()
        self._counts.forget_window()

    def table(self, state: State) -> Table:
        """Return the table of the intervals that are closed."""
        return make_table(self._counts, state)

    def status(self) -> Status:
        """Return what the recording says of itself now."""
        recording = self.recording
        recording.update()
        profile = recording.profile
        fresh = Status(
            target=profile.command,
            runtimes=profile.runtimes,
            backend=profile.backend,
            rate=profile.rate,
            seconds=time.monotonic() - self._began,
            totals=since(self._base, profile.totals),
            incomplete=self.incomplete - self._base_incomplete,
            notes=tuple(news(profile, (), among_others=self._is_command)),
        )
        # A command has no Ruby yet while it starts; what is missing is said of one that has samples.
        return fresh if fresh.totals.read or not self._is_command else replace(fresh, notes=())
