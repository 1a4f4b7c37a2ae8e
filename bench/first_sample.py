# SPDX-License-Identifier: Apache-2.0
"""Started by startup.py: profile a process until the first sample with a Ruby frame; print the times.

Arguments: pid, rate. Output: a JSON object of CLOCK_MONOTONIC times in seconds, in order.
"""

from __future__ import annotations

import time

times = {"running": time.monotonic()}

import json  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

times["ready"] = time.monotonic()

from rubyunwind import Profiler  # noqa: E402

times["imported"] = time.monotonic()


def _load(self: Profiler, load: Any = Profiler._load) -> Any:
    collection = load(self)
    times["loaded"] = time.monotonic()
    return collection


def main() -> None:
    class_: Any = Profiler
    class_._load = _load
    times["entering"] = time.monotonic()
    with Profiler([int(sys.argv[1])], rate=int(sys.argv[2])) as profiler:
        times["entered"] = time.monotonic()
        for sample in profiler.samples():
            if any(frame.kind == "ruby" for frame in sample.frames):
                times["sampled"] = time.monotonic()
                break
    print(json.dumps(times))


if __name__ == "__main__":
    main()
