# SPDX-License-Identifier: Apache-2.0
"""How far our clock is from the kernel's, by what the kernel says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rubyunwind.process.kernel_clock import offset_ns


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("monotonic           0         0\nboottime            0         0\n", 0),
        ("monotonic      100000       500\nboottime            7         0\n", 100_000_000_000_500),
        ("monotonic         -10 999999999\n", -9_000_000_001),
        ("boottime            7         0\n", 0),
        ("something else\n", 0),
        ("", 0),
    ],
)
def test_the_offset_of_a_time_namespace(tmp_path: Path, text: str, offset: int) -> None:
    path = tmp_path / "offsets"
    path.write_text(text)
    assert offset_ns(path) == offset


def test_kernels_without_time_namespaces_have_none(tmp_path: Path) -> None:
    assert offset_ns(tmp_path / "missing") == 0
