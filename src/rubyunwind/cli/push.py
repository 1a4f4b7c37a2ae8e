# SPDX-License-Identifier: Apache-2.0
"""`record --push`: what it is told, and the thread that speaks with the receiver while sampling goes on."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rubyunwind.cli.notes import say_notes
from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from rubyunwind.formats.registry import Meta
    from rubyunwind.profiler.sample import Totals
    from rubyunwind.profiler.samples import Samples
    from rubyunwind.push.exporter import Exporter
    from rubyunwind.push.pushed import Pushed

__all__ = ["Shipping", "push_options"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SPOOL_SIZE = "64M"
# Seconds, at the end, to get the receiver to take what waits.
_PATIENCE = 10.0
# Seconds for the thread to end once its request has been cut off.
_GOODBYE = 2.0
# Seconds of one `poll`, so that the end is noticed in between.
_TURN = 2.0


def push_options(function: _Function) -> _Function:
    """Give a verb --push and what goes with it; `Shipping.choose` takes them."""
    for option in (
        click.option(
            "--spool-size",
            metavar="BYTES",
            help=f"Room for what waits, compressed; the oldest goes when it is full. Default: {_SPOOL_SIZE}.",
        ),
        click.option(
            "--spool",
            metavar="DIR",
            help="Keep what waits for the receiver there: the next recording with it sends what is left. "
            "Default: in memory.",
        ),
        click.option(
            "--push-ca", metavar="FILE", help="Certificates to trust, PEM. Default: those of the system."
        ),
        click.option(
            "--push-attribute",
            "push_attributes",
            metavar="KEY=VALUE",
            multiple=True,
            help="Attribute of what is pushed (service.name=shop); may be repeated.",
        ),
        click.option(
            "--push-header",
            "push_headers",
            metavar="'NAME: VALUE'",
            multiple=True,
            help="Header of each request; @FILE: lines of FILE, which does not show in ps; may be repeated.",
        ),
        click.option(
            "--push-timeout",
            type=click.FloatRange(0, min_open=True),
            metavar="SECONDS",
            help="How long one request may take. Default: 10.",
        ),
        click.option(
            "--push-every",
            type=click.FloatRange(0.1),
            metavar="SECONDS",
            help="How much time goes into one request. Default: 10.",
        ),
        click.option(
            "--push-format",
            type=click.Choice(("otlp", "pprof")),
            help="Default: pprof if the URL's path ends in /ingest, else otlp, which needs the extra [otlp].",
        ),
        click.option(
            "--push",
            is_flag=False,
            flag_value="",
            metavar="[URL]",
            help="Push to a receiver over HTTP while recording; a file is written only with -o or -f. "
            "Without a URL: to OTEL_EXPORTER_OTLP_ENDPOINT.",
        ),
    ):
        function = option(function)
    return function


class Shipping(AbstractContextManager["Shipping"]):
    """A Sink: a recording that is pushed while it goes on.

    The thread is the command's own: encoding and waiting for a receiver take longer than a perf buffer has
    room for, and http.client, TLS and name look-ups block. It is started after the command was forked, and
    nobody waits for it much longer than for one request.
    """

    def __init__(self, exporter: Exporter) -> None:
        self.incomplete = 0
        self._exporter = exporter
        self._ending = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = self._spool_trouble = ""
        self._ended = False

    @classmethod
    def choose(
        cls,
        *,
        push: str | None,
        push_format: str | None,
        push_every: float | None,
        push_timeout: float | None,
        push_headers: tuple[str, ...],
        push_attributes: tuple[str, ...],
        push_ca: str | None,
        spool: str | None,
        spool_size: str | None,
    ) -> Shipping | None:
        """Make one of the options; None without --push. RubyUnwindError, UsageError if they make no sense."""
        if push is None:
            beside = (push_format, push_every, push_timeout, push_headers, push_attributes, push_ca)
            if any((*beside, spool, spool_size)):
                raise click.UsageError("options of --push and --spool go with --push")
            return None
        size = _bytes(spool_size or _SPOOL_SIZE)
        from rubyunwind.push.endpoint import Endpoint, parse_headers
        from rubyunwind.push.exporter import Exporter

        endpoint = Endpoint.of(
            push or None,
            format=push_format,
            headers=parse_headers(push_headers),
            attributes=[_attribute(text) for text in push_attributes],
            timeout=push_timeout,
            certificate=push_ca,
            environ=os.environ,
        )
        return cls(Exporter(endpoint, spool=spool, spool_size=size, every=push_every or 10.0))

    def start(self) -> None:
        """Begin to push."""
        say_notes(self._exporter.notes)
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)
        self._thread.start()

    def add(self, samples: Samples) -> None:
        """Take samples."""
        self.incomplete += samples.incomplete
        self._exporter.add(samples)

    def update(self, totals: Totals, meta: Meta) -> None:
        """Take what is known by now."""
        self._exporter.update(totals, meta)

    def _run(self) -> None:
        try:
            wait = 0.0
            while not self._ending.wait(wait):
                wait = self._exporter.poll(_TURN)
                self._say_trouble()
            while not self._hurry.is_set() and not self._exporter.flush(0.1):
                pass
        except RubyUnwindError as error:
            self._say(f"pushing has ended: {error}")

    def _say_trouble(self) -> None:
        """Say what is wrong when it begins, and that it is over, not each time."""
        stats = self._exporter.stats
        where = f"pushing to {self._exporter.endpoint}"
        if stats.trouble and not self._trouble:
            self._say(f"{where}: {stats.trouble}")
        elif self._trouble and not stats.trouble:
            self._say(f"{where}: it takes profiles again")
        if stats.spool_trouble and not self._spool_trouble:
            self._say(
                f"cannot write to the spool: {stats.spool_trouble}; what waits for the receiver is in memory"
            )
        self._trouble, self._spool_trouble = stats.trouble, stats.spool_trouble

    @staticmethod
    def _say(text: str) -> None:
        click.echo(f"rubyunwind: {text}", err=True)

    def end(self, interrupts: Callable[[], int]) -> None:
        """Push what is left, but not for ever, nor when `interrupts` grows meanwhile, and say the counts."""
        before = interrupts()
        end = time.monotonic() + max(_PATIENCE, self._exporter.endpoint.timeout)
        self._ending.set()
        while self._pushes and time.monotonic() < end and interrupts() == before:
            time.sleep(0.02)
        self._close()
        say_pushed(self._exporter.endpoint, self._exporter.stats)

    @property
    def _pushes(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _close(self) -> None:
        """End the thread, whatever it does, and leave what was not sent in the spool."""
        self._ended = True
        self._hurry.set()
        self._ending.set()
        end = time.monotonic() + _GOODBYE
        while self._pushes and time.monotonic() < end:
            self._exporter.abort()
            time.sleep(0.02)
        if self._pushes:
            self._say("pushing does not end (it looks a name up, say); samples of the last seconds are lost")
        else:
            self._exporter.close()

    def __exit__(self, *exc: object) -> None:
        if not self._ended:
            self._close()


def say_pushed(endpoint: object, stats: Pushed) -> None:
    """Print on stderr what the receiver has taken and what it has not."""
    text = (
        f"pushed {stats.sent} samples in {stats.requests} requests ({stats.sent_bytes} bytes) to {endpoint}"
    )
    if stats.retries:
        text += f"; {stats.retries} attempts failed"
    click.echo(f"rubyunwind: {text}", err=True)
    if stats.waiting:
        click.echo(
            f"rubyunwind: {stats.waiting} samples in {stats.waiting_requests} requests wait in the spool",
            err=True,
        )
    if stats.unspooled:
        click.echo(f"rubyunwind: {stats.unspooled} requests could not be written to the spool", err=True)
    if stats.rejected:
        click.echo(f"rubyunwind: the receiver left out {stats.rejected} profiles of them", err=True)
    if stats.lost:
        reasons = ", ".join(f"{reason} {count}" for reason, count in stats.lost)
        click.echo(f"rubyunwind: samples not pushed, by reason: {reasons}", err=True)
    if stats.trouble:
        click.echo(f"rubyunwind: the last trouble was: {stats.trouble}", err=True)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise click.UsageError(f"--spool-size {text!r}: a number of bytes is understood, such as 64M or 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _attribute(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(
            f"--push-attribute {text!r}: KEY=VALUE is understood, such as service.name=shop"
        )
    return key.strip(), value.strip()
