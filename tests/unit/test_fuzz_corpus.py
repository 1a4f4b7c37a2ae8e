# SPDX-License-Identifier: Apache-2.0
"""Every input that fuzzing has kept, once: the C targets compiled with the sanitizers that there are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "fuzz"
sys.path.insert(0, str(FUZZ))

import corpus  # noqa: E402
import python_targets  # noqa: E402
import run  # noqa: E402

COMPILER = shutil.which("cc") or shutil.which("clang")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The flags that make the compiler check memory accesses; none where it has no libraries for them."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    source = tmp_path_factory.mktemp("probe") / "probe.c"
    source.write_text("int main(void) { return 0; }\n")
    command = [COMPILER, *SANITIZERS, source, "-o", source.with_suffix("")]
    works = subprocess.run(command, capture_output=True).returncode == 0
    return SANITIZERS if works else ()


@pytest.mark.parametrize("target", sorted(run.C_TARGETS))
def test_every_input_of_a_c_target_passes(target: str, sanitizers: tuple[str, ...], tmp_path: Path) -> None:
    if target == "steps" and os.uname().machine != "x86_64":
        pytest.skip("the seed images are of x86_64")
    flags = [flag for flag in run.COMMON_FLAGS if not flag.startswith(("-O", "-fno-sanitize"))]
    program = tmp_path / target
    sources = [FUZZ / "replay.c", FUZZ / f"{target}.c", *run.C_TARGETS[target]]
    subprocess.run([COMPILER, *flags, *sanitizers, *sources, "-o", program], check=True)
    inputs = corpus.unpack(target, tmp_path / "inputs")
    assert len(inputs) >= 5
    done = subprocess.run([program, *inputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("target", sorted(python_targets.TARGETS))
def test_every_input_of_a_python_target_passes(target: str, tmp_path: Path) -> None:
    inputs = corpus.unpack(target, tmp_path / "inputs")
    assert inputs
    for path in inputs:
        python_targets.TARGETS[target](path.read_bytes())
