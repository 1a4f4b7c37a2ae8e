# SPDX-License-Identifier: Apache-2.0
"""What `import rubyunwind` costs and offers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_recording_loads_nothing_that_only_pushing_needs() -> None:
    loaded = loaded_after("import rubyunwind.cli.record")
    assert "rubyunwind.cli.push" in loaded
    assert not {"http.client", "ssl", "email", "rubyunwind.push.exporter"} & loaded


def test_importing_the_package_loads_no_room_but_the_abi() -> None:
    rooms = {
        name.split(".")[1] for name in loaded_after("import rubyunwind") if name.startswith("rubyunwind.")
    }
    assert rooms == {"_native", "abi", "errors"}


@pytest.mark.parametrize("name", rubyunwind.__all__)
def test_public_name_can_be_had(name: str) -> None:
    assert getattr(rubyunwind, name) is not None


def test_a_star_import_gives_all_of_them() -> None:
    code = "from rubyunwind import *; print(Profiler.__name__, record.__name__, Trace.__name__, __version__)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["Profiler", "record", "Trace", rubyunwind.__version__]


def test_every_name_that_is_loaded_late_is_public() -> None:
    assert set(rubyunwind._LAZY) <= set(rubyunwind.__all__)


TREE = Path(__file__).parents[2]
# Sums and versions of what is not ours.
OTHERS = ("go.sum", "go.mod", "package-lock.json", ".gz", ".zip")


def read(path: Path) -> str:
    return path.read_text("utf-8", "replace")


def version_of_the_tree() -> str:
    path = TREE / "pyproject.toml"
    if not path.exists():
        pytest.skip(f"no source tree here: {path} does not exist")
    found = re.search(r'^version = "([^"]+)"$', path.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_version_is_the_one_the_package_is_built_with() -> None:
    version = version_of_the_tree()
    if rubyunwind.__version__ == "0+unknown":
        pytest.skip("the package is not installed, but imported from its tree")
    command = [sys.executable, "-m", "rubyunwind.cli.main", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == f"rubyunwind, version {version}\n"
    assert rubyunwind.__version__ == version


def test_the_version_is_in_one_file_only() -> None:
    version = version_of_the_tree()
    pattern = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("no git repository here")
    ours = [name for name in listed.stdout.split("\0") if name and not name.endswith(OTHERS)]
    named = [name for name in ours if (TREE / name).is_file() and pattern.search(read(TREE / name))]
    assert [name for name in named if name != "CHANGELOG.md"] == ["pyproject.toml"]


def test_the_version_is_looked_up_when_it_is_asked_for_only() -> None:
    code = (
        "import rubyunwind, sys; print('importlib.metadata' in sys.modules, '__version__' in dir(rubyunwind))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


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
