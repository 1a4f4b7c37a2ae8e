# SPDX-License-Identifier: Apache-2.0
"""Programs by others that read our files, found where `make foreign` puts them, else in PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FOREIGN = Path(os.environ.get("RUBYUNWIND_FOREIGN", Path(__file__).parents[2] / "build/foreign"))
# Programs that are there but in no one's PATH: Debian has flamegraph.pl inside libdevel-nytprof-perl.
_APART = ("/usr/share/perl5/Devel/NYTProf",)


def search_path() -> str:
    ours = (FOREIGN / "node_modules/.bin", FOREIGN / "bin")
    return os.pathsep.join([*map(str, ours), os.environ.get("PATH", ""), *_APART])


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """The path of a program; skips where there is none."""

    def find(name: str) -> str:
        found = shutil.which(name, path=search_path())
        if found is None:
            getter = "cargo install inferno" if name == "inferno-flamegraph" else "make foreign"
            pytest.skip(f"{name} is not on this machine; {getter} gets it")
        return found

    return find


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run a program in a home of its own and return what it said; fails unless it ends well."""

    def call(*words: str | Path, stdin: bytes = b"") -> str:
        environment = {**os.environ, "PATH": search_path(), "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
        # New versions of go compile their pprof when it is first asked for.
        environment.setdefault("GOCACHE", str(Path.home() / ".cache/go-build"))
        done = subprocess.run(
            [*map(str, words)], input=stdin, capture_output=True, env=environment, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
        return done.stdout.decode("utf-8")

    return call
