# SPDX-License-Identifier: Apache-2.0
"""The benchmarks are not run by the tests, but what they use of the package has to be there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
MODULES = sorted(path.stem for path in BENCH.glob("*.py"))


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(BENCH)
    yield
    for name in set(MODULES) & set(sys.modules):
        if (file := sys.modules[name].__file__) and Path(file).parent == BENCH:
            del sys.modules[name]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_finds_all_that_it_imports(module: str) -> None:
    importlib.import_module(module)


@pytest.mark.usefixtures("path")
def test_the_user_side_is_measured_with_all_that_it_asks_its_surroundings() -> None:
    user_side = importlib.import_module("user_side")
    rows = user_side._measure(user_side._Load(30, 2, 20), 1)
    assert {"traces grouped and counted, 30 frames", "samples as folded, 30 frames"} <= {
        row.what for row in rows
    }
