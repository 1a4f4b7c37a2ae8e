# SPDX-License-Identifier: Apache-2.0
"""Fuzzes everything for a while: `make fuzz`, or fuzz/run.py [--seconds 600] [--keep] [TARGET...].

Two targets at a time, each for its share. Needs clang with its sanitizers; Python targets use atheris where
it is installed. What fails, and all logs, are in build/fuzz/; the exit status is 1 then. Inputs that reach
new code stay in build/fuzz/corpus/ for the next run; --keep puts those that are needed into fuzz/corpus/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import corpus

ROOT = Path(__file__).parent.parent
HERE = ROOT / "fuzz"
BUILD = ROOT / "build/fuzz"
JOBS = 2
# Seconds on the wall for an input of a C target: only what sleeps takes so long, however busy the machine is.
# What runs has a limit in CPU time, which load does not disturb: cpu_limit.h.
PER_INPUT = 300

# steps.c includes host.c, to see what is in it.
HOST = [path for path in sorted((ROOT / "support/ebpf/host").glob("*.c")) if path.name != "host.c"]
CFI = sorted((ROOT / "src/rubyunwind/_c").glob("cfi*.c"))
RECORDS = [ROOT / "src/rubyunwind/_c" / name for name in ("drain.c", "group.c", "intern.c")]
C_TARGETS = {"steps": HOST + CFI, "rows": CFI, "records": RECORDS}
LONGEST = {"steps": 512, "rows": 1024, "records": 4096}
COMMON_FLAGS = (
    *("-g", "-O1", "-std=gnu11", "-fno-omit-frame-pointer", "-Wall", "-Wno-address-of-packed-member"),
    *(
        "-fno-sanitize-recover=all",
        "-Dprocess_vm_readv=fuzz_process_vm_readv",
        f"-I{ROOT}/support/ebpf",
        f"-I{ROOT}/src/rubyunwind/_c",
    ),
    f'-DSEEDS="{HERE}/seeds/steps.images"',
)
# Programs are called through one type of pointer, which newer clangs report.
FUZZER_FLAGS = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize=function")

# How the time is shared out.
SHARES = {
    "steps": 30, "rows": 14, "records": 2, "elf": 10, "deltas": 1, "debug_info": 6, "core": 10,
    "snapshot": 10, "names": 12, "lines": 4, "trace": 3, "maps": 2, "libraries": 1, "btf": 5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a target did. `coverage` is what the fuzzer counts: edges of the code, -1 if it does not."""

    name: str
    failed: bool
    seconds: float
    runs: int
    coverage: int
    log: Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="fuzz/run.py", description="Fuzz everything for a while.")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together (600)")
    parser.add_argument("--keep", action="store_true", help="put new inputs into fuzz/corpus/")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(SHARES)}; default all")
    options = parser.parse_args()
    unknown = set(options.targets) - set(SHARES)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(SHARES)}")
    names = options.targets or list(SHARES)
    if os.uname().machine != "x86_64" and "steps" in names:
        print("steps is left out: its seed images are of x86_64")
        names.remove("steps")
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in names:
        corpus.unpack(name, BUILD / "corpus" / name)
        if name in C_TARGETS:
            build(name)
    total = sum(SHARES[name] for name in names)
    jobs = min(JOBS, len(names))
    seconds = {name: max(2, round(options.seconds * jobs * SHARES[name] / total)) for name in names}
    with ThreadPoolExecutor(jobs) as pool:
        longest_first = sorted(names, key=lambda name: -seconds[name])
        outcomes = list(pool.map(lambda name: fuzz(name, seconds[name]), longest_first))
    report(outcomes)
    failed = [outcome for outcome in outcomes if outcome.failed]
    if options.keep and not failed:
        for name in names:
            keep(name)
    if failed:
        raise SystemExit(1)


def compiler() -> str:
    for name in ("clang", "clang-19", "clang-16", "clang-14"):
        if shutil.which(name):
            return name
    raise SystemExit("fuzzing needs clang and its sanitizers (Debian: clang, libclang-rt-14-dev)")


def build(name: str) -> None:
    target = program(name)
    command = [compiler(), *COMMON_FLAGS, *FUZZER_FLAGS, HERE / f"{name}.c", *C_TARGETS[name], "-o", target]
    if subprocess.run(command, cwd=HERE).returncode:
        raise SystemExit(f"{name} does not compile; clang needs its sanitizers (Debian: libclang-rt-14-dev)")


def program(name: str) -> Path:
    return BUILD / name


def environment() -> dict[str, str]:
    places = [str(HERE), str(ROOT / "tests/unit"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, places)), "PYTHONDONTWRITEBYTECODE": "1"}


def fuzz(name: str, seconds: int) -> Outcome:
    inputs = BUILD / "corpus" / name
    inputs.mkdir(parents=True, exist_ok=True)
    log = BUILD / f"{name}.log"
    command: list[str | Path]
    if name in C_TARGETS:
        command = [program(name), f"-max_total_time={seconds}", f"-timeout={PER_INPUT}", "-rss_limit_mb=2000"]
        command += [
            f"-max_len={LONGEST[name]}",
            f"-artifact_prefix={BUILD}/{name}-",
            "-print_final_stats=1",
            inputs,
        ]
    else:
        command = [sys.executable, HERE / "run_target.py", name, inputs, "--seconds", str(seconds)]
        command += ["--artifacts", BUILD]
    start = time.monotonic()
    with log.open("w") as output:
        status = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment(), cwd=BUILD
        )
    text = log.read_text(errors="replace")
    runs = re.findall(r"number_of_executed_units: (\d+)|: (\d+) runs in", text)
    coverage = re.findall(r"cov: (\d+)", text)
    return Outcome(
        name,
        status.returncode != 0,
        time.monotonic() - start,
        int(next(filter(None, runs[-1]), 0)) if runs else 0,
        int(coverage[-1]) if coverage else -1,
        log,
    )


def report(outcomes: list[Outcome]) -> None:
    print(f"{'target':10} {'runs':>10} {'per second':>10} {'edges':>7} {'inputs':>7}")
    for one in outcomes:
        inputs = sum(1 for _ in (BUILD / "corpus" / one.name).iterdir())
        edges = one.coverage if one.coverage >= 0 else "-"
        print(f"{one.name:10} {one.runs:10} {one.runs / one.seconds:10.0f} {edges:>7} {inputs:7}")
    for one in outcomes:
        if one.failed:
            lines = one.log.read_text(errors="replace").splitlines()
            print(f"\n{one.name} FAILED; the whole log is {one.log}, the input is beside it:")
            print("\n".join(line for line in lines if not line.startswith("#"))[-6000:])


def keep(name: str) -> None:
    """Put the smallest inputs that reach all that the gathered ones do into the corpus of the tree."""
    gathered, chosen = BUILD / "corpus" / name, BUILD / "chosen" / name
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    command: list[str | Path]
    if name in C_TARGETS:
        # Not how often a line is reached, only whether: fewer inputs.
        command = [program(name), "-merge=1", "-use_counters=0", chosen, gathered]
    else:
        command = [sys.executable, HERE / "choose_inputs.py", name, chosen, gathered]
    with (BUILD / f"{name}-merge.log").open("w") as output:
        subprocess.run(command, stdout=output, stderr=output, env=environment(), cwd=BUILD, check=True)
    inputs = [path.read_bytes() for path in chosen.iterdir()]
    print(f"{name}: {len(inputs)} inputs kept, {corpus.write(name, inputs)} bytes packed")


if __name__ == "__main__":
    main()
