# SPDX-License-Identifier: Apache-2.0
"""Tests of the page in a browser: they skip without Chromium, but for RUBYUNWIND_REQUIRE_CHROMIUM=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        why = "no Chromium here (apt install chromium, or make page-test)"
        if os.environ.get("RUBYUNWIND_REQUIRE_CHROMIUM") == "1":
            pytest.fail(why)
        pytest.skip(why)
    with Browser(program, tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def silent(browser: Browser) -> Iterator[Browser]:
    """The browser; the test fails when the page complains or asks for anything but itself."""
    browser.media()
    browser.size(1400, 800)
    browser.log.clear()
    browser.requests.clear()
    yield browser
    assert browser.log == []
    assert [address for address in browser.requests if Path(address).suffix != ".html"] == []
