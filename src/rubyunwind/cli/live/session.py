# SPDX-License-Identifier: Apache-2.0
"""The live table while somebody looks at it: samples come in, keys come in, screens go out."""

from __future__ import annotations

import select
import signal
import time
from typing import TYPE_CHECKING, Any

from rubyunwind.cli.live.keys import KeyDecoder
from rubyunwind.cli.live.screen import page_rows, render
from rubyunwind.cli.live.state import press
from rubyunwind.cli.live.status import Status
from rubyunwind.cli.live.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rubyunwind.cli.live.state import Action, State
    from rubyunwind.cli.live.terminal import Terminal
    from rubyunwind.cli.live.watch import Watch

__all__ = ["Session"]

# Seconds: the longest wait, after which signals are seen for certain; how long an escape may be the beginning
# of a key's sequence, which comes in parts over a slow line.
_WAIT, _ESCAPE = 0.1, 0.05


class Session:
    """Shows a table until it is left. `terminal` is entered; `keys` is the descriptor keys are read from.

    SIGTSTP and SIGWINCH have handlers while it runs. Not even
    these handlers write to the terminal: signals only set what the loop then sees.
    """

    def __init__(
        self,
        watch: Watch,
        terminal: Terminal,
        keys: int,
        state: State,
        *,
        interval: float,
    ) -> None:
        self.state = state
        self._watch = watch
        self._terminal = terminal
        self._keys = keys
        self._interval = interval
        self._decoder = KeyDecoder()
        self._table, self._status = Table(), Status()
        self._left = self._suspended = self._resized = False
        self._dirty = True

    def run(self, duration: float | None = None, between: Callable[[], object] | None = None) -> bool:
        """Return once it was left (True), or the time is up or the processes have ended (False).

        `between` is called once an interval.
        """
        handlers = {
            number: signal.signal(number, handler)
            for number, handler in ((signal.SIGTSTP, self._on_stop), (signal.SIGWINCH, self._on_resize))
        }
        try:
            return self._run(None if duration is None else time.monotonic() + duration, between)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _on_stop(self, number: int, frame: Any) -> None:
        self._suspended = True

    def _on_resize(self, number: int, frame: Any) -> None:
        self._resized = True

    def _run(self, end: float | None, between: Callable[[], object] | None) -> bool:
        profiler = self._watch.recording.profiler
        poller = select.poll()
        poller.register(self._keys, select.POLLIN)
        poller.register(profiler, select.POLLIN)
        self._look()
        due = time.monotonic() + self._interval
        while not self._left:
            now = time.monotonic()
            if self._watch.ended or (end is not None and now >= end):
                break
            if self._suspended:
                self._suspend()
            if now >= due:
                if not self.state.paused:
                    self._watch.close_interval()
                    self._look()
                if between is not None:
                    between()
                due = now + self._interval
            self._draw()
            wait = min(_WAIT, due - now, _ESCAPE if self._decoder.waiting else _WAIT)
            ready = [fd for fd, _ in poller.poll(max(0.0, wait) * 1000)]
            if self._keys in ready:
                self._read_keys()
            elif self._decoder.waiting:
                self._press(self._decoder.flush())
            if profiler.fileno() in ready:
                self._watch.take(profiler.poll(0))
        self._watch.take(profiler.stop())
        self._watch.close_interval()
        return self._left or self._watch.recording.stopped

    def _look(self) -> None:
        """Bring up to date what is drawn."""
        self._table, self._status = self._watch.table(self.state), self._watch.status()
        self._dirty = True

    def _draw(self) -> None:
        if self._resized:
            self._resized, self._dirty = False, True
        if self._dirty:
            size = self._terminal.size
            screen = render(self._table, self.state, self._status, size)
            self._dirty = not self._terminal.draw(screen, size)

    def _read_keys(self) -> None:
        data = self._terminal.read()
        if data:
            self._press(self._decoder.feed(data))
        else:
            self._left = True  # the terminal is gone

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            page = page_rows(self._status, self._terminal.size)
            self.state, action = press(self.state, key, [row.key for row in self._table.rows], page)
            if action is not None:
                self._act(action)
            self._look()

    def _act(self, action: Action) -> None:
        if action == "quit":
            self._left = True
        elif action == "reset":
            self._watch.begin_anew()
        elif action == "pause" and not self.state.paused:
            self._watch.resume()
        elif action == "redraw":
            self._terminal.redraw()

    def _suspend(self) -> None:
        self._terminal.suspend()
        # Still in the background, or stopped again at once: then once more, unless it is to end.
        self._suspended = not self._terminal.taken and not self._watch.recording.stopped
        self._dirty = True
