# SPDX-License-Identifier: Apache-2.0
"""Marks the live tests. Where BPF is known to work, none of them may skip.

RUBYUNWIND_REQUIRE_LIVE=1 says that it works (CI asks the kernel): a live test that skips then counts as
failed, and so does a run in which no live test passed. Only those marked `one_of_several` may skip.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rubies.roots import CannotBeHad, known, root_of, ruby_in

from .recorder import Record, Recorder
from .spinning import Ruby

LIVE = Path(__file__).parent
REQUIRE_LIVE = os.environ.get("RUBYUNWIND_REQUIRE_LIVE") == "1"
passed: list[str] = []
skipped_files: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def _what_other_tests_left() -> None:
    """Have the garbage collector leave out what was there before.

    It goes through all objects now and then. After thousands of tests that takes longer than a ring of deep
    stacks takes to fill.
    """
    gc.freeze()


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Run `rubyunwind record` in the test's folder. No process of it may be left at the end."""
    started: list[Recorder] = []

    def run(*arguments: str | int, **options: Any) -> Recorder:
        started.append(Recorder(*arguments, folder=tmp_path, **options))
        return started[-1]

    yield run
    left = [(one.process.args, one.left_behind()) for one in started if one.left_behind()]
    for one in started:
        one.end()
    assert not left
    assert not [one.err for one in started if "Traceback" in one.err]


@pytest.fixture(scope="module", params=known())
def ruby(request: pytest.FixtureRequest) -> Iterator[Ruby]:
    """Each of Debian's Rubies, in a root file system of its own; one that cannot be had skips the test."""
    try:
        root = root_of(request.param)
    except CannotBeHad as reason:
        pytest.skip(str(reason))
    with ruby_in(root) as inside:
        yield inside


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LIVE in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, None, None]:
    report = (yield).get_result()  # type: ignore[attr-defined]
    if report.passed and report.when == "call":
        passed.append(report.nodeid)
    elif REQUIRE_LIVE and report.skipped and not hasattr(report, "wasxfail") and not _may_skip(item):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"a live test skipped where BPF works: {reason}"


def _may_skip(item: pytest.Item) -> bool:
    return item.get_closest_marker("one_of_several") is not None


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped and report.nodeid.startswith("tests/live/"):
        skipped_files.append(report.nodeid)


def complaint() -> str | None:
    if REQUIRE_LIVE and skipped_files:
        return f"whole files of live tests skipped: {', '.join(skipped_files)}"
    if REQUIRE_LIVE and not passed:
        return "no live test passed"
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    if complaint() and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if text := complaint():
        terminalreporter.write_line(
            f"RUBYUNWIND_REQUIRE_LIVE=1, but {text}: this run counts as failed.", red=True
        )
