# SPDX-License-Identifier: Apache-2.0
"""Prints the table of kernels from the facts that the guests' consoles hold.

table.py CONSOLE_LOG...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_PROGRAMS = ("native_tracer_walker", "native_tracer_entry", "unwind_native", "unwind_ruby", "unwind_stop")
_MARK = b"facts "


def facts_of(console: bytes) -> dict[str, object]:
    """Return the last facts of a console log, {} if the guest did not get that far."""
    lines = [line for line in console.splitlines() if line.startswith(_MARK)]
    found: dict[str, object] = json.loads(lines[-1][len(_MARK) :]) if lines else {}
    return found


def exact(flavour: dict[str, Any]) -> str:
    """Return how many samples of how many were exact, over all programs that were sampled."""
    counts = [value for name, value in flavour.items() if name.startswith("exact ")]
    return f"{sum(right for right, _ in counts)} of {sum(all_ for _, all_ in counts)}" if counts else "none"


def verified(flavour: dict[str, Any], program: str) -> str:
    """Return how many instructions the verifier walked in a program, or in another one in its place."""
    counts = flavour.get("verified", {})
    variants = [program, f"{program}_long", f"{program}_loop"]
    if counts and not set(variants) & set(counts):
        return ""
    # Kernels tell since 5.16.
    count = next((counts[name] for name in variants if counts.get(name)), None)
    return f"{count:,}" if count else "?"


def rows(facts: dict[str, object], log: str) -> list[list[str]]:
    """Return the cells of a kernel's rows, one for each flavour that it runs."""
    found = facts.get("flavours")
    flavours = found if isinstance(found, list) and found else [{"flavour": "not loaded"}]
    return [
        [
            str(facts.get("kernel", Path(log).stem)),
            f"{each['flavour']} {each.get('arch', '')}".strip(),
            *(verified(each, name) for name in _PROGRAMS),
            str(each.get("load_ms", "")),
            exact(each),
        ]
        for each in flavours
    ]


def main(logs: list[str]) -> None:
    """Print one row for each kernel and flavour."""
    head = ["kernel", "programs", *_PROGRAMS, "load ms", "stacks exact"]
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for log in logs:
        for cells in rows(facts_of(Path(log).read_bytes()), log):
            print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1:])
