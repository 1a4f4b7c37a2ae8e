# SPDX-License-Identifier: Apache-2.0
"""Runs the kernel tests inside a guest. Exit status 0 only if each test ran and passed.

    guest.py TESTS

A skip (or an expected failure) is no pass here: what a kernel cannot do is to be said in the test.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import struct
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest


class Outcomes:
    """Counts how the tests ended: passed, failed, skipped."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.count[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.count[report.outcome] += 1


# include/uapi/linux/random.h: _IOW('R', 0x03, int[2]), struct rand_pool_info (bits, bytes, then the bytes)
_RNDADDENTROPY = 0x40085203


def stir() -> None:
    """Make getrandom(2) answer: before 5.4 it waits for events that an emulated machine has few of.

    Ruby asks it at its start. Nothing here needs the numbers to be secret.
    """
    seed = bytes(range(64))
    with Path("/dev/random").open("wb") as device:
        fcntl.ioctl(device, _RNDADDENTROPY, struct.pack("ii", len(seed) * 8, len(seed)) + seed)


def main(tests: str) -> int:
    print(f"kernel {platform.release()}", flush=True)
    stir()
    outcomes = Outcomes()
    notes = Path(tempfile.mkdtemp()) / "facts"
    os.environ["RUBYUNWIND_FACTS"] = str(notes)
    # A test that hangs says where, before the guest is ended.
    options = ["-ra", "-p", "no:cacheprovider", "--color=no", "-o", "faulthandler_timeout=60"]
    status = pytest.main([*options, tests], plugins=[outcomes])
    flavours: dict[str, dict[str, object]] = {}
    for line in notes.read_text().splitlines() if notes.exists() else ():
        fact = json.loads(line)
        flavours.setdefault(fact["flavour"], {}).update(fact)
    print(
        f"facts {json.dumps({'kernel': platform.release(), 'flavours': list(flavours.values())})}", flush=True
    )
    passed = outcomes.count.pop("passed", 0)
    if status == 0 and passed and not outcomes.count:
        return 0
    others = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.count.items())
    print(f"not every test passed on this kernel: {passed} passed, {others or 'nothing else ran'}")
    return int(status) or 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
