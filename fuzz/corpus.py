# SPDX-License-Identifier: Apache-2.0
"""The corpus: one zip file per target, since the inputs are many and tiny; and inputs that have failed once.

The latter are in findings/, named TARGET-WHAT_IT_SHOWS, and stay whatever they reach.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
FINDINGS = Path(__file__).parent / "findings"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # equal inputs make equal files


def read(target: str) -> list[bytes]:
    """Return the inputs of a target; none if there is no corpus yet."""
    path = FOLDER / f"{target}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(name) for name in packed.namelist()]


def unpack(target: str, folder: Path) -> list[Path]:
    """Write each input, findings too, into a file of its own, named after its contents as libFuzzer does."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    failed = [path.read_bytes() for path in sorted(FINDINGS.glob(f"{target}-*"))]
    for data in [*failed, *read(target)]:
        path = folder / hashlib.sha1(data).hexdigest()
        path.write_bytes(data)
        paths.append(path)
    return paths


def write(target: str, inputs: Iterable[bytes]) -> int:
    """Replace the inputs of a target; return the size of the file."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{target}.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for data in sorted(set(inputs), key=lambda one: (len(one), one)):
            entry = zipfile.ZipInfo(hashlib.sha1(data).hexdigest()[:12], _LONG_AGO)
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return path.stat().st_size
