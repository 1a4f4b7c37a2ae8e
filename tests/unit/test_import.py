# SPDX-License-Identifier: Apache-2.0
"""What `import rubyunwind` costs and offers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

import rubyunwind

HEAVY = (
    "asyncio", "cffi", "click", "dataclasses", "elftools", "importlib.metadata", "importlib.resources",
    "json", "logging", "pycparser", "rich",
)  # fmt: skip


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    before, after = loaded_after("pass"), loaded_after("import rubyunwind")
    assert "rubyunwind.abi" in after
    assert not set(HEAVY) & (after - before)


def test_importing_the_package_loads_no_room_but_the_abi() -> None:
    rooms = {
        name.split(".")[1] for name in loaded_after("import rubyunwind") if name.startswith("rubyunwind.")
    }
    assert rooms == {"_native", "abi", "errors"}


@pytest.mark.parametrize("name", rubyunwind.__all__)
def test_public_name_can_be_had(name: str) -> None:
    module = rubyunwind._LAZY.get(name)
    if module is not None and find_spec(module) is None:
        pytest.skip(f"{module} is not written yet")
    assert getattr(rubyunwind, name) is not None


def test_a_name_loaded_late_is_kept_and_is_the_modules_own() -> None:
    from rubyunwind.profiler.sample import Sample

    assert rubyunwind.Sample is Sample
    assert vars(rubyunwind)["Sample"] is Sample


def test_public_names_are_listed_once_and_by_dir() -> None:
    assert len(rubyunwind.__all__) == len(set(rubyunwind.__all__))
    assert set(rubyunwind.__all__) <= set(dir(rubyunwind))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Profilr'"):
        _ = rubyunwind.Profilr
