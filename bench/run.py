# SPDX-License-Identifier: Apache-2.0
"""Print the numbers: `make bench`, or bench/run.py [--quick] [NAME...].

Takes three to six minutes, with --quick about one; needs root (or CAP_BPF, CAP_PERFMON and
CAP_SYS_PTRACE), Ruby, and the installed package, or PYTHONPATH. Progress goes to stderr, the table to stdout.
"""

from __future__ import annotations

import argparse
import importlib
import time

import machine
from report import Row, say, table

NAMES = (
    "slowdown",
    "kernel_side",
    "extraction",
    "startup",
    "user_side",
    "recorder",
    "from_user_space",
    "memory",
    "page",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Print the numbers.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs; wider intervals")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"what to measure: {', '.join(NAMES)}; default all"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    lines = machine.describe()
    start = time.monotonic()
    rows: list[Row] = []
    try:
        for name in NAMES:
            if not options.names or name in options.names:
                rows += importlib.import_module(name).measure(options.quick)
    finally:  # what was measured before an error is not lost
        lines.append(
            f"load average at the end: {machine.load_average()}; {time.monotonic() - start:.0f} s in all"
        )
        print("\n".join(f"- {line}" for line in lines))
        print()
        print(table(rows))
    say("medians; the absolute ones are this machine's, at this load")


if __name__ == "__main__":
    main()
