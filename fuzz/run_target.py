# SPDX-License-Identifier: Apache-2.0
"""Fuzzes one target of python_targets.py: `run_target.py NAME CORPUS --seconds N --artifacts DIR`.

With atheris (libFuzzer for Python) where it is installed, which keeps inputs that reach new code in CORPUS;
else by random changes to what is there. An input that fails is written to DIR, and the exit status is not 0.
"""

from __future__ import annotations

import argparse
import importlib
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

# Of CPU time, which load does not disturb; and on the wall, with atheris, for what sleeps.
SECONDS_PER_INPUT = 10
WALL_SECONDS_PER_INPUT = 300
MEGABYTES = 1500
LONGEST = {
    "elf": 4096,
    "core": 4096,
    "snapshot": 1024,
    "btf": 2048,
    "names": 512,
    "lines": 1024,
    "trace": 3400,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz one Python target.")
    parser.add_argument("target")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--artifacts", default="build/fuzz/")
    parser.add_argument("--engine", choices=("auto", "atheris", "random"), default="auto")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    options = parser.parse_args()
    sys.setrecursionlimit(1000)
    atheris = None
    if options.engine != "random":
        try:
            atheris = importlib.import_module("atheris")
        except ImportError:
            if options.engine == "atheris":
                raise
    if atheris is not None:
        fuzz_with_atheris(atheris, options)
    fuzz_at_random(options)


def fuzz_with_atheris(atheris: Any, options: argparse.Namespace) -> None:
    with atheris.instrument_imports(include=["rubyunwind"]):
        targets = importlib.import_module("python_targets")
    arguments = [
        sys.argv[0],
        f"-max_total_time={options.seconds}",
        f"-artifact_prefix={options.artifacts}/{options.target}-",
        f"-timeout={WALL_SECONDS_PER_INPUT}",
        f"-rss_limit_mb={MEGABYTES}",
        f"-max_len={LONGEST.get(options.target, 2048)}",
        f"-seed={options.seed}",
        "-print_final_stats=1",
        str(options.corpus),
    ]
    signal.signal(signal.SIGPROF, too_slow)
    run = targets.TARGETS[options.target]
    atheris.Setup(arguments, lambda data: limited(run, data))
    atheris.Fuzz()  # exits


def fuzz_at_random(options: argparse.Namespace) -> None:
    run = importlib.import_module("python_targets").TARGETS[options.target]
    chance = random.Random(options.seed or None)
    known = [path.read_bytes() for path in sorted(options.corpus.iterdir())] or [b""]
    limit = MEGABYTES << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, too_slow)
    end = time.monotonic() + options.seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        run_once(run, changed(chance, known, LONGEST.get(options.target, 2048)), options)
    print(f"{options.target}: {count} runs in {options.seconds} s, at random")


def run_once(run: Callable[[bytes], None], data: bytes, options: argparse.Namespace) -> None:
    try:
        limited(run, data)
    except BaseException:
        path = Path(options.artifacts) / f"{options.target}-random-{abs(hash(data)):x}"
        path.write_bytes(data)
        print(f"{options.target}: an input that fails is in {path}", file=sys.stderr)
        raise


def limited(run: Callable[[bytes], None], data: bytes) -> None:
    signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_INPUT)
    try:
        run(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"one input took more than {SECONDS_PER_INPUT} s of CPU time")


def changed(chance: random.Random, known: list[bytes], longest: int) -> bytes:
    data = bytearray(chance.choice(known))
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 3 if at < len(data):
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case _:
                other = chance.choice(known)
                start = chance.randrange(len(other) + 1)
                data[at:at] = other[start : start + chance.randrange(64)]
    return bytes(data[:longest])


if __name__ == "__main__":
    main()
