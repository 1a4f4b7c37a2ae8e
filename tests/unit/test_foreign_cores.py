# SPDX-License-Identifier: Apache-2.0
"""Core files of Rubies that are not installed here, 2.5 to 4.0: found, walked and named by the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

OTHER_CORES = Path(__file__).parents[3] / "shared" / "cores"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rubyunwind.cli.main", "snapshot", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


LOOP = [
    ("sleep", 2),
    ("aaa", 2),
    ("bbb", 6),
    ("ccc", 10),
    ("block in <main>", 14),
    ("loop", 13),
    ("<main>", 13),
]
FOREIGN = [
    ("ruby-coredump-2.5.0.gz", "0x55dd8c3b7758", LOOP),
    ("ruby-coredump-2.7.2.gz", None, LOOP),
    ("ruby-coredump-3.0.0.gz", None, LOOP),
    ("ruby-coredump-3.1.0.gz", None, LOOP),
    (
        "ruby-coredump-with-classes-3.3.0.gz",
        None,
        [
            ("sleep", 9), ("aaa", 9), ("bbb", 16), ("ccc", 24), ("block in looper", 31), ("loop", 187),
            ("looper", 30), ("<main>", 35),
        ],
    ),
    (
        "ruby-coredump-4.0.0.gz",
        None,
        [
            ("Kernel#sleep", 8), ("Object#aaa", 8), ("Object#bbb", 12), ("Object#ccc", 16),
            ("block in <main>", 20), ("Kernel#loop", 169), ("<main>", 19),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "context", "expected"), FOREIGN, ids=[each[0] for each in FOREIGN])
def test_cores_of_other_rubies_walk_to_the_bottom(
    name: str, context: str | None, expected: list[tuple[str, int]]
) -> None:
    core = OTHER_CORES / name
    if not core.exists():
        pytest.skip(f"{name} is not on this machine")
    more = ("--ec", context) if context else ()
    result = command("--core", str(core), "--json", *more)
    assert result.returncode == 0, result.stderr
    taken = json.loads(result.stdout)
    main = taken["threads"][0]
    assert [(f["label"], f["line"]) for f in main["frames"] if f["kind"] in ("ruby", "cfunc")] == expected
    assert not main["complete"]  # their libraries are not here, so native frames end
    assert taken["notes"]
