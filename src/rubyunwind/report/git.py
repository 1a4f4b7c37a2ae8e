# SPDX-License-Identifier: Apache-2.0
"""What a file was in git at a time. The program `git` is asked, which refuses repositories of others."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Committed", "committed"]

_PATIENCE = 10.0  # seconds for each question
# Plumbing commands only, and none of what a repository can have run: no pager, hooks, monitors, or fetches.
_GIT = (
    "git", "--no-pager", "--no-optional-locks", "--literal-pathspecs", "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Committed:
    """A file in a commit. `text` is None if there is none; `why` then says what git said, if it is of use."""

    text: bytes | None = None
    revision: str = ""
    why: str = ""


def committed(path: str, moment: int, largest: int) -> Committed:
    """Return the file as of the last commit up to `moment` (unix ns), of the branch that is checked out now.

    Nothing is raised: without git, a repository, or such a commit there is no text.
    """
    try:
        file = Path(path).resolve()
    except (OSError, RuntimeError):
        return Committed()
    # The folder may be gone since; git needs one to start from.
    folder = next((each for each in file.parents if each.is_dir()), Path("/"))
    below = str(file.relative_to(folder))
    try:
        found = _ask(folder, "rev-list", "-1", f"--before=@{moment // 1_000_000_000}", "HEAD", "--", below)
        revision = found.decode("ascii", "replace").strip()
        if not revision:
            return Committed(why="git has no commit of it from before the recording")
        name = f"{revision}:./{below}"
        size = int(_ask(folder, "cat-file", "-s", name))
        if size > largest:
            return Committed(why=f"git has {size} bytes, too many for source")
        return Committed(_ask(folder, "cat-file", "blob", name), revision)
    except _NoAnswer as error:
        return Committed(why=str(error))


class _NoAnswer(Exception):
    """Git did not do it; the text is worth telling, or empty if there is just no repository."""


def _ask(folder: Path, *words: str) -> bytes:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(
            [*_GIT, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
            check=False,
        )
    except OSError:
        raise _NoAnswer("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"git did not answer in {_PATIENCE:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if any("dubious ownership" in line for line in said):
        raise _NoAnswer("its git repository belongs to another user; see safe.directory in `git help config`")
    raise _NoAnswer("")
