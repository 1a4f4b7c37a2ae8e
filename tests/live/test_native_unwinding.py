# SPDX-License-Identifier: Apache-2.0
"""Programs without Ruby and without frame pointers: their native stacks are whole, by unwind rows alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rubyunwind import Profiler
from rubyunwind.process.threads import read_thread

from .recorder import until
from .spinning import gather

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile the programs with"),
]

HEAD = """
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
volatile int sink;
__attribute__((noinline)) void spin(void) { for (;;) sink++; }
"""
RECURSION = """
int (*volatile again)(int); /* a call that is not turned into a loop */
__attribute__((noinline)) int down(int left) {
  char *room = alloca(left % 7 * 100 + 1); /* makes the CFA depend on a register */
  room[0] = left;
  if (left == 0) spin();
  int below = again(left - 1);
  return below + room[0];
}
int main(void) { again = down; return down(60) + 1; }
"""
SIGNAL = """
void handler(int number) { (void)number; spin(); }
__attribute__((noinline)) void raiser(void) { raise(SIGUSR1); sink++; }
int main(void) { signal(SIGUSR1, handler); raiser(); return sink; }
"""
QSORT = """
int compare(const void *a, const void *b) { (void)a; (void)b; spin(); return 0; }
int main(void) { int two[2] = {2, 1}; qsort(two, 2, sizeof *two, compare); return two[0]; }
"""
THREAD = """
void *body(void *unused) { spin(); return unused; }
int main(void) { pthread_t t; pthread_create(&t, 0, body, 0); pthread_join(t, 0); return 0; }
"""
NORETURN = """
__attribute__((noinline, noreturn)) void never(void) { spin(); abort(); }
__attribute__((noinline)) void last_instruction_is_a_call(void) { never(); }
int main(void) { last_instruction_is_a_call(); return 0; }
"""


@contextmanager
def running(folder: Path, source: str, *options: str) -> Iterator[int]:
    (folder / "program.c").write_text(HEAD + source)
    subprocess.run(
        ["gcc", "-O2", "-fomit-frame-pointer", "-w", *options, "program.c", "-o", "program", "-lpthread"],
        cwd=folder,
        check=True,
    )
    with subprocess.Popen([str(folder / "program")]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("options", [(), ("-no-pie",), ("-static",)], ids=["pie", "no-pie", "static"])
@pytest.mark.parametrize(
    ("source", "between", "root"),
    [
        (RECURSION, ["spin", *["down"] * 61, "main"], "_start"),
        (SIGNAL, ["spin", "handler"], "_start"),
        (QSORT, ["spin", "compare"], "_start"),
        (THREAD, ["spin", "body"], None),
        (NORETURN, ["spin", "never", "last_instruction_is_a_call", "main"], "_start"),
    ],
    ids=["recursion", "signal", "qsort", "thread", "noreturn"],
)
def test_the_stack_is_whole(
    tmp_path: Path, source: str, between: list[str], root: str | None, options: tuple[str, ...]
) -> None:
    with running(tmp_path, source, *options) as pid, Profiler([pid], rate=199) as profiler:
        assert any("no Ruby" in note for note in profiler.notes)
        samples = gather(profiler, 30)
    for sample in samples:
        names = [frame.name for frame in sample.frames if frame.kind == "native"]
        assert sample.complete, (sample.reason, names)
        assert names[: len(between)] == between
        if root is not None:
            assert "main" in names
            assert names[-1] == root


LEADER_GONE = """
void *body(void *unused) { spin(); return unused; }
int main(void) { pthread_t t; pthread_create(&t, 0, body, 0); pthread_exit(0); }
"""


def state_of_leader(pid: int) -> str:
    leader = read_thread(pid, pid)
    return leader.state if leader is not None else "X"


def test_a_process_goes_on_without_the_leader_of_its_threads(tmp_path: Path) -> None:
    with running(tmp_path, LEADER_GONE) as pid:
        until(lambda: state_of_leader(pid) in "ZX", "the leader does not end")
        with Profiler([pid], rate=199) as profiler:
            samples = gather(profiler, 100)
            assert profiler.running
    assert {sample.tid for sample in samples}.isdisjoint({pid})
    # An interrupt's kernel frames may lie above it.
    leaves = [next(frame.name for frame in sample.frames if frame.kind != "kernel") for sample in samples]
    assert [(leaf, sample.reason) for leaf, sample in zip(leaves, samples, strict=True)] == [
        ("spin", None)
    ] * len(samples)
