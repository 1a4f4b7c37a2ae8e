# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind report` as a command, and a small recording for it to report on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

STARTED = 1_700_000_000_000_000_000  # 22:13:20 UTC
META = Meta(title="ruby app.rb", command="ruby app.rb", started=STARTED, duration=10.0, rate=99.0)
MAIN = Frame("ruby", "<main>", "<main>", "/app/app.rb", 9)
WORK = Frame("ruby", "Work#run", "run", "/app/work.rb", 3)
SORT = Frame("cfunc", "Array#sort_by", "sort_by", "/app/work.rb", 3)
COMPARE = Frame("native", "qsort_r", module="/lib/libc.so.6", offset=5)
READ = Frame("kernel", "vfs_read")


def sample(second: float, *frames: Frame, tid: int = 7, comm: str = "ruby", **other: Any) -> Sample:
    return Sample(STARTED + int(second * 1e9), 7 if tid < 10 else 10, tid, comm, frames, **other)


SAMPLES = [
    sample(0, COMPARE, SORT, WORK, MAIN, weight=5),
    sample(1, WORK, WORK, MAIN, weight=2),
    sample(2, READ, WORK, MAIN, tid=8, comm="worker 1"),
    sample(3, MAIN, tid=11, comm="puma"),
    sample(9, complete=False, reason="no unwind row"),
]
TOTALS = Totals(read=5, lost=3, failed=(("no unwind row", 1),))


class Report:
    """One run of the command."""

    def __init__(
        self, *words: str | Path, stdin: bytes = b"", stdout: int = subprocess.PIPE, **env: str
    ) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "rubyunwind.cli.main", "report", *map(str, words)],
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "TZ": "UTC", **env},
            timeout=60,
            check=False,
        )
        self.status, self.raw, self.err = done.returncode, done.stdout or b"", done.stderr.decode()
        assert "Traceback" not in self.err

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """Self and total of the methods of a table."""
        rows = re.findall(r"^ *(\d+) +[\d.]+% +(\d+) +[\d.]+%  \w+ +(\S+)", self.out, re.MULTILINE)
        return {name: (int(own), int(total)) for own, total, name in rows}

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The samples, if they were written as jsonl."""
        return [json.loads(line) for line in self.raw.splitlines()]
