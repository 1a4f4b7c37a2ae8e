# SPDX-License-Identifier: Apache-2.0
"""The table of kernels is made of what the guests' consoles say, and of nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).parents[2] / "support/ci-kernels/table.py"


def rows(*logs: Path) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, str(TABLE), *map(str, logs)], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_row_has_what_its_guest_noted(tmp_path: Path) -> None:
    facts = {
        "kernel": "6.1.0-57",
        "flavours": [
            {
                "flavour": "co-re",
                "arch": "amd64",
                "load_ms": 374,
                "exact a.rb": [50, 50],
                "exact b.rb": [49, 50],
                "verified": {"unwind_native": 11441, "unwind_stop": 0},
            },
            {"flavour": "legacy", "innermost": [50, 50], "verified": {"unwind_native_long": 74641}},
        ],
    }
    log = tmp_path / "6.1.log"
    log.write_bytes(b"\xff boot\nkernel 6.1.0-57\nfacts " + json.dumps(facts).encode() + b"\nJOBRC 0\n")
    head, row, legacy = rows(log)
    assert (legacy[0], legacy[1], legacy[4], legacy[-1]) == ("6.1.0-57", "legacy", "74,641", "none")
    assert dict(zip(head, row, strict=True)) == {
        "kernel": "6.1.0-57",
        "programs": "co-re amd64",
        "native_tracer_walker": "",
        "native_tracer_entry": "",
        "unwind_native": "11,441",
        "unwind_ruby": "",
        "unwind_stop": "?",
        "load ms": "374",
        "stacks exact": "99 of 100",
    }


def test_a_guest_that_said_nothing_has_a_row_that_says_so(tmp_path: Path) -> None:
    log = tmp_path / "4.9.log"
    log.write_bytes(b"Kernel panic - not syncing\n")
    _, row = rows(log)
    assert (row[0], row[1], row[-1]) == ("4.9", "not loaded", "none")
