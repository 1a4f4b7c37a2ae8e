# SPDX-License-Identifier: Apache-2.0
"""How a verb that samples ends: Ctrl-C and other signals, and the end of the command it has started."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from rubyunwind.errors import RubyUnwindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rubyunwind.profiler.command import Command
    from rubyunwind.profiler.recording import Recording

__all__ = ["Interrupted", "Interrupts", "end_command"]

# Seconds a command has to end by itself after Ctrl-C, before it gets the signal again, then SIGTERM.
_GRACE = (1.0, 2.0)


class Interrupted(RubyUnwindError):
    """Ctrl-C came before the recording had begun."""

    exit_status = 128 + signal.SIGINT


class Interrupts:
    """What signals do once it is entered: the first ends the recording, the second quits after `clean_up`.

    `count` says how many came, `first` which one that was (0: none).
    """

    def __init__(
        self,
        recording: Recording,
        clean_up: Callable[[], object],
        signals: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    ) -> None:
        self.count = 0
        self.first = 0
        self._recording = recording
        self._clean_up = clean_up
        self._signals = tuple(signals)

    def __enter__(self) -> Interrupts:
        for number in self._signals:
            # nohup means it; a script ignores SIGINT for each job in the background, and does not.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # Also for what came of it: the command that waits, say, has got the signal, too, and has ended.
        if kind is not None and self.count and not self._recording.began:
            raise Interrupted("interrupted before the recording began; nothing was recorded") from None

    def _handle(self, number: int, frame: Any) -> None:
        self.count += 1
        if self.count == 1:
            self.first = number
            self._recording.stop()
            if not self._recording.began:
                raise KeyboardInterrupt
            return
        # The terminal's Ctrl-C has reached the command by itself, but another sender's has not.
        child = self._recording.command
        if child is not None and child.exit_status is None:
            os.kill(child.pid, signal.SIGTERM)
        self._clean_up()
        os._exit(128 + number)


def end_command(child: Command | None, interrupts: Interrupts, *, wait: bool) -> int:
    """Return the command's exit status once it has ended, 0 if there is none.

    With `wait` until it ends by itself, or a signal comes; then, and without it, see to it that it ends.
    """
    if child is None:
        return 0
    if wait and child.poll() is None and not interrupts.count:
        click.echo("rubyunwind: the command still runs; waiting for it (Ctrl-C ends it)", err=True)
        while child.poll() is None and not interrupts.count:
            time.sleep(0.05)
    for grace, number in zip(_GRACE, (signal.SIGINT, signal.SIGTERM), strict=True):
        end = time.monotonic() + grace
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        if child.poll() is None:
            os.kill(child.pid, number)
    return child.wait()
