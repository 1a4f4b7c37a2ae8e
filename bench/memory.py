# SPDX-License-Identifier: Apache-2.0
"""Memory: what `rubyunwind record` needs at most, and what the kernel keeps for one process."""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from report import Row, say
from target import ROOT, Ruby, stay_apart

from rubyunwind.bpf.collection import Collection
from rubyunwind.bpf.compound_maps import MapOfMaps
from rubyunwind.bpf.cpus import online_cpus
from rubyunwind.profiler.map_sizes import trace_pages
from rubyunwind.profiler.profiler import Profiler

__all__ = ["measure"]

DEPTH = 50
# A program that is sampled in the kernel needs its symbols, 100,000 of them.
_SYSTEM_CALLS = ROOT / "tests/ruby/kernel_readers.rb"
_WANTED = ((99, "flamegraph"), (99, "folded"), (999, "folded"))
# Not from wait4(2): what it calls the child's largest size includes ours, from before the exec.
_CHILD = """
import atexit
from rubyunwind.cli.main import main
from rubyunwind.profiler.kernel_symbols import KernelSymbols
load, loaded = KernelSymbols._load, []
KernelSymbols._load = lambda self, between: loaded.append(self) or load(self, between)
def tell():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            print(len(loaded), line.split()[1], flush=True)
atexit.register(tell)
main()
"""


def measure(quick: bool) -> list[Row]:
    """Return the rows of the table."""
    stay_apart()
    seconds = 3 if quick else 10
    with Ruby.spinning(DEPTH) as ruby:
        rows = [*_resident(ruby, "plain Ruby", seconds), *_kernel(ruby)]
    with Ruby(_SYSTEM_CALLS) as ruby:
        ruby.answer()
        rows[2:2] = _resident(ruby, "with system calls", seconds, [(99, "folded")])
    return rows


def _resident(ruby: Ruby, what: str, seconds: int, wanted: Sequence[tuple[int, str]] = _WANTED) -> list[Row]:
    rows = []
    for rate, format_ in wanted:
        say(f"memory of record at {rate} Hz into {format_}, {what}, {seconds} s")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _CHILD, "record", "--backend", "bpf", "-p", str(ruby.pid)]
            command += ["-d", str(seconds)]
            command += ["-r", str(rate), "-f", format_, "-o", f"{folder}/out"]
            peak, with_kernel, told = _kilobytes(command)
        samples = next((line for line in told.splitlines() if " samples in " in line), "").partition(": ")[2]
        kernel = "with kernel symbols" if with_kernel else "no sample in the kernel, so without its symbols"
        how = f"VmHWM, record -d {seconds}, 1 run, {kernel}; {samples}"
        rows.append(
            Row(f"peak RSS of record, {rate} Hz, {format_}, {what}", f"{peak / 1024:.1f}", "MiB", how)
        )
    return rows


def _kilobytes(command: list[str]) -> tuple[int, bool, str]:
    """Run a recording; return its largest size in kB, whether it read kernel symbols, and its stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    loaded, size = done.stdout.split()[-2:]
    return int(size), loaded != "0", done.stderr


def _kernel(ruby: Ruby) -> list[Row]:
    say("kernel memory of the maps")
    with Profiler([ruby.pid]) as profiler:
        collection: Collection = profiler._collection
        sizes = {name: item.memory_bytes() for name, item in collection.maps.items()}
        rows = 0
        files = 0
        for item in collection.maps.values():
            if isinstance(item, MapOfMaps):
                for inner in item.values():
                    with inner:
                        rows += inner.memory_bytes()
                        files += 1
        programs = sum(program.stats().jited_bytes for program in collection.programs.values())
        rings = (trace_pages(len(online_cpus())) + 1 + 2) * profiler._traces.rings * mmap.PAGESIZE
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:3]
    named = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in largest)
    return [
        Row(
            "kernel memory, maps",
            f"{(sum(sizes.values()) + rows) / 2**20:.1f}",
            "MiB",
            f"{len(sizes)} maps and {files} inner ones, one process; by fdinfo",
        ),
        Row("  of it: maps of the object", f"{sum(sizes.values()) / 2**20:.1f}", "MiB", f"largest: {named}"),
        Row(
            "  of it: unwind rows",
            f"{rows / 2**20:.1f}",
            "MiB",
            f"of {files} files that the process has mapped",
        ),
        Row("kernel memory, rings", f"{rings / 2**20:.2f}", "MiB", "two perf buffers on each CPU"),
        Row(
            "kernel memory, programs",
            f"{programs / 2**10:.0f}",
            "KiB",
            f"compiled code of {len(collection.programs)} programs",
        ),
    ]
