# SPDX-License-Identifier: Apache-2.0
"""Root file systems with a Ruby in them, and the test programs copied into one for as long as they run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from live.spinning import PROGRAMS, Ruby
from rubyunwind.profiler.reasons import NO_ROW

SCRIPTS = Path(__file__).parents[2] / "support/ci-rubies"
# What the scripts say and end with when a Ruby cannot be had.
_SKIPPED, _CANNOT_BE_HAD = "skipped: ", 77


class CannotBeHad(Exception):
    """This Ruby cannot be had, or not be run, on this machine: the message says why."""


@dataclass(frozen=True, slots=True)
class Root:
    """A root file system; `package` is the version of Debian's package, 3.3.8-2.

    `series` is what a list calls it: 3.3, or musl-3.3 for one that is built from that package's sources.
    """

    series: str
    package: str
    path: Path

    @property
    def program(self) -> str:
        """The interpreter, as seen from inside."""
        return f"/usr/bin/ruby{self.series.rpartition('-')[2]}"

    @property
    def reason(self) -> str | None:
        """What stops a native walk in its C library: musl's has no unwind rows."""
        return NO_ROW if self.series.startswith("musl-") else None


def known() -> list[str]:
    """Return the series that rubies.list names, oldest first."""
    return _names("rubies.list")


def built() -> list[str]:
    """Return the Rubies that built.list names: they take minutes to build, and are run when asked for."""
    return _names("built.list")


def _names(file: str) -> list[str]:
    lines = (SCRIPTS / file).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def root_of(series: str, *, refresh: bool = False) -> Root:
    """Return the root of a series, made now if there is none yet. What came of it is remembered."""
    found = _look_for(series, refresh)
    if isinstance(found, str):
        raise CannotBeHad(found)
    return found


@functools.cache
def _look_for(series: str, refresh: bool) -> Root | str:
    """Return the root, or why there is none."""
    if os.geteuid() != 0:
        return f"ruby {series}: chroot needs root"
    options = ["--refresh"] if refresh else []
    script = "build-from-source.sh" if "-" in series else "build-ruby.sh"
    done = subprocess.run([SCRIPTS / script, *options, series], capture_output=True, text=True, check=False)
    if done.returncode == _CANNOT_BE_HAD:
        return done.stderr.splitlines()[-1].removeprefix(_SKIPPED)
    if done.returncode:
        raise RuntimeError(f"{script} {series} failed:\n{done.stderr}")
    path = Path(done.stdout.strip())
    return Root(series, path.name.removeprefix(f"{series}-"), path)


@contextmanager
def ruby_in(root: Root) -> Iterator[Ruby]:
    """Copy the programs into a directory of this run, as another run may use the same root."""
    folder = Path(tempfile.mkdtemp(dir=root.path / "programs"))
    try:
        shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
        inside = folder.relative_to(root.path)
        yield Ruby(root.program, f"/{inside}", root.path, root.reason)
    finally:
        shutil.rmtree(folder)
