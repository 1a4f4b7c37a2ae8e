# SPDX-License-Identifier: Apache-2.0
"""What became of the samples that an Exporter was given."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Pushed"]


@dataclass(frozen=True, slots=True)
class Pushed:
    """Counts of an Exporter, of samples where nothing else is said.

    `taken` came from `add` and `resumed` from an earlier run's spool. Together they are what was `sent` (the
    receiver has said so), is `waiting` (in `waiting_requests` of `waiting_bytes`, or in the batch that grows)
    and was `lost`, by reason. `retries` are requests that have to be sent again, `rejected` profiles that the
    receiver has left out of requests which it took. `unspooled` requests could not be written to the spool,
    and waited in memory. `trouble` is what is wrong with the receiver now, `spool_trouble` with the spool; ""
    for nothing.
    """

    taken: int = 0
    resumed: int = 0
    sent: int = 0
    waiting: int = 0
    lost: tuple[tuple[str, int], ...] = ()
    requests: int = 0
    sent_bytes: int = 0
    waiting_requests: int = 0
    waiting_bytes: int = 0
    retries: int = 0
    rejected: int = 0
    unspooled: int = 0
    trouble: str = ""
    spool_trouble: str = ""
