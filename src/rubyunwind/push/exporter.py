# SPDX-License-Identifier: Apache-2.0
"""The Exporter: takes samples at any time, and pushes them in batches when it is given the time."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from rubyunwind.bpf.lifetime import LifetimeError
from rubyunwind.formats.registry import FORMATS, Meta
from rubyunwind.profiler.sample import Totals
from rubyunwind.profiler.samples import Samples
from rubyunwind.push.answers import is_retryable, partial_success, said
from rubyunwind.push.backoff import Backoff
from rubyunwind.push.bodies import difference, headers_of, requests_of
from rubyunwind.push.connection import Connection, Unreachable
from rubyunwind.push.endpoint import Endpoint
from rubyunwind.push.pushed import Pushed
from rubyunwind.push.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rubyunwind.profiler.sample import Sample
    from rubyunwind.push.bodies import Request
    from rubyunwind.push.connection import Answer

__all__ = ["Exporter"]

# A batch is closed when this many samples are in it, also before its time.
_BATCH = 1 << 16
# So many may wait for a `poll`; more are refused.
_MOST_PENDING = 1 << 20
# Seconds until `poll` is to be called again when nothing is due.
_IDLE = 1.0


class Exporter:
    """Pushes samples to a receiver, each at least once, in order.

    It has no thread: `add` takes samples and returns at once, `poll` encodes what is due and speaks with the
    receiver, and blocks for that. An event loop calls `poll` in an executor (`asyncio.to_thread`), a plain
    loop wherever a pause of a request's timeout does no harm. `add`, `update`, `stats` and `abort` may be
    used while another thread is in `poll`; `poll`, `flush` and `close` wait for each other.

    A batch is closed every `every` seconds (monotonic), or with 65,536 samples. It waits in the directory
    `spool`, or in memory, until the receiver has taken it; where `spool_size` bytes do not suffice the oldest
    batches are dropped. Only what was taken or refused for good goes: after failures it is tried again, later
    each time. A spool is for one Exporter at a time; the next one takes up what was left there.

    It is a Sink: `recording.run(sinks=[exporter])`. RubyUnwindError where the endpoint, its files or the
    spool cannot be used. In a forked child everything but `close` is a LifetimeError.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        spool: str | os.PathLike[str] | None = None,
        spool_size: int = 64 << 20,
        every: float = 10.0,
        meta: Meta | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        if every <= 0:
            raise ValueError(f"a batch every {every} s: it must be more than 0")
        if spool_size < 1:
            raise ValueError(f"a spool of {spool_size} bytes: it must have room for something")
        self.endpoint = endpoint if isinstance(endpoint, Endpoint) else Endpoint.of(endpoint)
        FORMATS[self.endpoint.format].check()
        self._connection = Connection(self.endpoint)
        self._spool = Spool(spool, self.endpoint.format, spool_size)
        self._resumed = self._spool.samples
        self._every = every
        self._backoff = backoff or Backoff()
        self._owner = os.getpid()
        self._closed = False
        self._turn = threading.Lock()  # for the spool and the connection
        self._lock = threading.Lock()  # for what follows
        self._pending = Samples()
        self._since = time.monotonic()
        self._totals: Totals | None = None
        self._told = Totals()
        self._meta = meta or Meta()
        self._lost: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._trouble = ""
        self._waiting = (0, 0, 0)
        self._unspooled = (0, "")
        self._look_at_spool()

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def add(self, samples: Iterable[Sample]) -> None:
        """Take samples; `poll` pushes them."""
        self._check()
        if not isinstance(samples, Samples):
            samples = Samples(samples)
        with self._lock:
            self._counts["taken"] += len(samples)
            if len(self._pending) + len(samples) > _MOST_PENDING:
                self._lost["poll was not called in time"] += len(samples)
            else:
                self._pending.extend(samples)

    def update(self, totals: Totals, meta: Meta) -> None:
        """Take what is told of the samples: totals since the start, and circumstances."""
        with self._lock:
            self._totals, self._meta = totals, meta

    def poll(self, timeout: float = 0.0) -> float:
        """Do what is due, and return the seconds until something is due again.

        Blocks for `timeout` seconds and one request's timeout at most: the first is how long further requests
        may be begun, if several wait.
        """
        self._check()
        end = time.monotonic() + timeout
        with self._turn:
            self._check()
            try:
                while True:
                    self._close_batch(only_if_due=True)
                    if not len(self._spool) or self._backoff.left or not self._send():
                        break
                    if time.monotonic() >= end:
                        break
            finally:
                self._connection.close()
                self._look_at_spool()
            return self._due()

    def flush(self, timeout: float) -> bool:
        """Close the batch and push all that waits; False if something waits after `timeout` seconds.

        A request that is under way then is still given its own time.
        """
        end = time.monotonic() + timeout
        with self._turn:
            self._check()
            self._close_batch()
            self._look_at_spool()
        while len(self._spool):
            left = end - time.monotonic()
            if left <= 0:
                return False
            if self._backoff.left:
                time.sleep(min(self._backoff.left, left))
            else:
                self.poll(left)
        return True

    def abort(self) -> None:
        """Cut off the request of another thread's `poll`; it is sent again, like any that fails."""
        self._connection.abort()

    def close(self) -> None:
        """Leave what was not sent in the spool, and close it; without one it is lost. Twice is harmless."""
        if os.getpid() != self._owner:
            # The copies only: the lock is held as long as the parent has its own.
            self._connection.close()
            self._spool.release()
            return
        with self._turn:
            if self._closed:
                return
            try:
                self._close_batch()
            finally:
                self._closed = True
                self._connection.close()
                self._spool.close()
                self._look_at_spool()

    @property
    def stats(self) -> Pushed:
        """Counts so far; see Pushed. They stay after `close`."""
        with self._lock:
            requests, size, samples = self._waiting
            return Pushed(
                taken=self._counts["taken"],
                resumed=self._resumed,
                sent=self._counts["sent"],
                waiting=samples + len(self._pending),
                lost=tuple(sorted(self._lost.items(), key=lambda item: (-item[1], item[0]))),
                requests=self._counts["requests"],
                sent_bytes=self._counts["bytes"],
                waiting_requests=requests,
                waiting_bytes=size,
                retries=self._counts["retries"],
                rejected=self._counts["rejected"],
                unspooled=self._unspooled[0],
                trouble=self._trouble,
                spool_trouble=self._unspooled[1],
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know before it begins."""
        found = []
        if self.endpoint.is_exposed:
            found.append(f"headers are sent to {self.endpoint} unencrypted; https would hide them")
        if self._resumed:
            found.append(f"{self._resumed} samples of an earlier run wait in the spool; they are sent first")
        if self._spool.others:
            found.append(
                f"{self._spool.others} requests in the spool are of another format; they are left there"
            )
        return tuple(found)

    def _check(self) -> None:
        if os.getpid() != self._owner:
            raise LifetimeError("this Exporter belongs to the parent process: make a new one after fork()")
        if self._closed:
            raise LifetimeError("this Exporter is closed")

    def _due(self) -> float:
        """Seconds until the next batch is to be closed, or the next request may be sent."""
        with self._lock:
            batch = max(0.0, self._since + self._every - time.monotonic()) if len(self._pending) else _IDLE
        request = self._backoff.left if len(self._spool) else _IDLE
        return min(batch, request, _IDLE)

    def _look_at_spool(self) -> None:
        found = (len(self._spool), self._spool.size, self._spool.samples)
        with self._lock:
            self._waiting = found
            self._unspooled = (self._spool.unwritten, self._spool.trouble)
            self._lost.update(self._spool.lost)
            self._spool.lost.clear()

    def _close_batch(self, *, only_if_due: bool = False) -> None:
        """Encode what was added, and put it into the spool."""
        now = time.monotonic()
        with self._lock:
            due = now - self._since >= self._every or len(self._pending) >= _BATCH
            if only_if_due and not due:
                return
            samples, self._pending = self._pending, Samples()
            duration, self._since = now - self._since, now
            totals, meta = self._totals, replace(self._meta, duration=duration)
            # What is in neither is seen as waiting meanwhile.
            requests, size, waiting = self._waiting
            self._waiting = (requests, size, waiting + len(samples))
        if not len(samples):
            return
        told = Totals(read=len(samples)) if totals is None else difference(self._told, totals)
        try:
            made, unfit = requests_of(
                self.endpoint.format, samples, told, meta, dict(self.endpoint.attributes)
            )
        except Exception as error:  # whatever is odd in a batch, the next one may be good
            with self._lock:
                self._lost["could not be encoded"] += len(samples)
                self._trouble = f"a batch could not be encoded: {type(error).__name__}: {error}"
            return
        if totals is not None:
            self._told = totals
        if unfit:
            with self._lock:
                self._lost["too large for a request"] += unfit
        for request in made:
            self._spool.put(request)
        self._look_at_spool()

    def _send(self) -> bool:
        """Send the oldest request; False if the next one should wait."""
        request = self._spool.head()
        if request is None:
            return False
        target = self.endpoint.target
        if request.query:
            target += ("&" if "?" in target else "?") + request.query
        try:
            answer = self._connection.post(target, headers_of(self.endpoint.format), request.body)
        except Unreachable as error:
            self._failed(str(error))
            return False
        if 200 <= answer.status < 300:
            self._succeeded(request, answer)
            return True
        reason = said(answer, self.endpoint)
        if is_retryable(answer, self.endpoint):
            self._failed(reason, answer.retry_after)
            return False
        # It goes, since it would be refused again. But the next one waits, too, so that a receiver that
        # refuses everything for a while does not get, and drop, the whole spool.
        self._spool.pop()
        self._backoff.failed(answer.retry_after)
        with self._lock:
            self._lost[f"refused by the receiver: {answer.status}"] += request.samples
            self._trouble = f"{reason}; its samples are lost"
        return False

    def _failed(self, reason: str, asked: float | None = None) -> None:
        self._backoff.failed(asked)
        with self._lock:
            self._counts["retries"] += 1
            self._trouble = reason

    def _succeeded(self, request: Request, answer: Answer) -> None:
        self._spool.pop()
        self._backoff.succeeded()
        rejected, why = partial_success(answer, self.endpoint)
        with self._lock:
            self._counts["sent"] += request.samples
            self._counts["requests"] += 1
            self._counts["bytes"] += len(request.body)
            self._counts["rejected"] += rejected
            self._trouble = why
