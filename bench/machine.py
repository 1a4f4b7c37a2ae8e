# SPDX-License-Identifier: Apache-2.0
"""The machine and the tools that a run was made with."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["describe", "load_average"]


def describe() -> list[str]:
    """Return one line a thing: kernel, processors, Ruby, clang, libbpf, Python."""
    from rubyunwind.bpf.library import load_library

    libbpf = ".".join(str(number) for number in load_library().version)
    return [
        f"kernel {platform.release().partition('-')[0]}, {platform.machine()}{_virtual()}",
        f"{os.cpu_count()} CPUs: {_processor()}",
        _first_line("ruby", "--version"),
        _first_line(_clang(), "--version"),
        f"libbpf {libbpf}, Python {platform.python_version()}",
        f"load average before the run: {load_average()}",
    ]


def load_average() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def _clang() -> str:
    names = ("clang", "clang-19", "clang-16", "clang-14")
    return next((name for name in names if shutil.which(name)), "clang")


def _first_line(*command: str) -> str:
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"{command[0]}: not found"
    return output.partition("\n")[0]


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else "unknown model"


def _virtual() -> str:
    return ", a virtual machine" if "hypervisor" in Path("/proc/cpuinfo").read_text() else ""
