# SPDX-License-Identifier: Apache-2.0
"""Runs the kernel tests inside a guest. Exit status 0 only if each test ran and passed.

    guest.py TESTS

A skip (or an expected failure) is no pass here: what a kernel cannot do is to be said in the test.
"""

from __future__ import annotations

import json
import os
import platform
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


def main(tests: str) -> int:
    print(f"kernel {platform.release()}", flush=True)
    outcomes = Outcomes()
    notes = Path(tempfile.mkdtemp()) / "facts"
    os.environ["RUBYUNWIND_FACTS"] = str(notes)
    status = pytest.main(["-ra", "-p", "no:cacheprovider", "--color=no", tests], plugins=[outcomes])
    facts: dict[str, object] = {"kernel": platform.release()}
    for line in notes.read_text().splitlines() if notes.exists() else ():
        facts.update(json.loads(line))
    print(f"facts {json.dumps(facts)}", flush=True)
    passed = outcomes.count.pop("passed", 0)
    if status == 0 and passed and not outcomes.count:
        return 0
    others = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.count.items())
    print(f"not every test passed on this kernel: {passed} passed, {others or 'nothing else ran'}")
    return int(status) or 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
