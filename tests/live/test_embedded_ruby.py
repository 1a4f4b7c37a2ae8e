# SPDX-License-Identifier: Apache-2.0
"""Ruby in a program that is not called ruby: a copy under another name, and one that has it as a library."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rubyunwind import Profiler
from rubyunwind.process.mappings import read_mappings

from .spinning import RUBY, Ruby, gather, locations, spinning

pytestmark = pytest.mark.usefixtures("bpf")

RATE = 299
SAMPLES = 100

# What ruby/ruby.h declares; the headers need not be installed.
EMBEDDER = """\
void ruby_sysinit(int *, char ***);
void ruby_init_stack(void *);
void ruby_init(void);
void *ruby_options(int, char **);
int ruby_run_node(void *);
int main(int argc, char **argv) {
  int here;
  ruby_sysinit(&argc, &argv);
  ruby_init_stack(&here);
  ruby_init();
  return ruby_run_node(ruby_options(argc, argv));
}
"""


def library() -> str:
    """Return the shared library of this machine's Ruby."""
    script = "$stdout.sync = true; puts; gets"
    with subprocess.Popen(
        [RUBY, "--disable-gems", "-e", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        paths = {one.path for one in read_mappings(process.pid) if "/libruby" in one.path}
        process.communicate(b"\n")
    if not paths:
        pytest.skip("this machine's ruby has no shared library")
    return paths.pop()


def copy(folder: Path) -> Path:
    return Path(shutil.copy(Path(RUBY).resolve(), folder / "puma-x"))


def embedder(folder: Path) -> Path:
    (folder / "main.c").write_text(EMBEDDER)
    subprocess.run(["cc", "-o", folder / "app", folder / "main.c", library()], check=True)
    return folder / "app"


@pytest.mark.parametrize("make", [copy, embedder])
@pytest.mark.parametrize("name", ["blocks_and_bmethods.rb", "rescue_and_ensure.rb"])
def test_its_stacks_are_rubys_own_and_whole(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    program = make(tmp_path)
    with (
        spinning(name, ruby=Ruby(str(program))) as running,
        Profiler([running.pid], rate=RATE) as profiler,
    ):
        samples = gather(profiler, SAMPLES)
    assert {locations(sample) for sample in samples} == {running.stack}
    assert {sample.reason for sample in samples} == {None}
    assert any(frame.module == str(program) for frame in samples[0].frames)
