# SPDX-License-Identifier: Apache-2.0
"""Streams what every Ruby on this machine does, as lines of JSON, from an event loop that has other work too.

Run as root: `python examples/asyncio_stream.py [SECONDS]`. Nothing but `fileno` and `poll` is needed, no
thread and no timer. A Ruby may be started before or after.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from rubyunwind import Profiler, Sample


async def stream(profiler: Profiler) -> AsyncIterator[Sample]:
    """Yield samples as they come; ends with the task that asks for them."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(profiler.fileno(), ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            # It works for a quarter of a second at most, and then takes up where it was.
            for sample in profiler.poll(0):
                yield sample
    finally:
        loop.remove_reader(profiler.fileno())  # before the profiler is closed


async def print_rubies(profiler: Profiler) -> None:
    """Print the Ruby part of each sample, leaf first."""
    async for sample in stream(profiler):
        labels = [frame.label for frame in sample.frames if frame.kind in ("ruby", "cfunc")]
        if labels:
            print(json.dumps({"pid": sample.pid, "comm": sample.comm, "stack": labels}), flush=True)


async def say_what_is_missing(profiler: Profiler) -> None:
    """Say on stderr, from time to time, what does not arrive, and whether we keep up."""
    while True:
        await asyncio.sleep(5)
        stats = profiler.stats
        print(f"{stats.read} read, {stats.lost} lost, {stats.waiting} processes waiting", file=sys.stderr)


async def main(seconds: float | None) -> None:
    """Stream for a time, or until Ctrl-C."""
    with Profiler(all_processes=True, rate=49) as profiler:
        print("ready", file=sys.stderr, flush=True)
        both = asyncio.gather(print_rubies(profiler), say_what_is_missing(profiler))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(both, seconds)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if sys.argv[1:] else None))
