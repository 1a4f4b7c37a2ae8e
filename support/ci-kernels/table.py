# SPDX-License-Identifier: Apache-2.0
"""Prints the table of kernels from the facts that the guests' consoles hold.

table.py CONSOLE_LOG...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_PROGRAMS = ("native_tracer_entry", "unwind_native", "unwind_ruby", "unwind_stop")
_MARK = b"facts "


def facts_of(console: bytes) -> dict[str, object]:
    """Return the last facts of a console log, {} if the guest did not get that far."""
    lines = [line for line in console.splitlines() if line.startswith(_MARK)]
    found: dict[str, object] = json.loads(lines[-1][len(_MARK) :]) if lines else {}
    return found


def main(logs: list[str]) -> None:
    """Print one row a kernel."""
    head = ["kernel", "programs", *_PROGRAMS, "load ms", "stacks exact"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for log in logs:
        facts = facts_of(Path(log).read_bytes())
        verified = facts.get("verified")
        counts = verified if isinstance(verified, dict) else {}
        cells = [
            str(facts.get("kernel", Path(log).stem)),
            str(facts.get("flavour", "not loaded")),
            # The kernel tells since 5.16.
            *(f"{counts[name]:,}" if counts.get(name) else "?" for name in _PROGRAMS),
            str(facts.get("load_ms", "")),
            str(facts.get("exact", "none")),
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
