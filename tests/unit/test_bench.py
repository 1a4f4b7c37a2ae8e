# SPDX-License-Identifier: Apache-2.0
"""The benchmarks are not run by the tests, but what they use of the package has to be there."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
MODULES = sorted(path.stem for path in BENCH.glob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_finds_all_that_it_imports(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    before = set(sys.modules)
    try:
        importlib.import_module(module)
    finally:
        for name in set(sys.modules) - before:
            if name in MODULES:
                del sys.modules[name]
