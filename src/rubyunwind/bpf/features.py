# SPDX-License-Identifier: Apache-2.0
"""What this kernel and this user can do of what the programs need: asked of the kernel, not of its version.

Each answer is "yes", "no" or "unknown" (could not tell): without the right to ask, a kernel that has a
feature says the same as one that lacks it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rubyunwind.bpf.kinds import MapFlag, MapType, ProgramType
from rubyunwind.bpf.perf_event import perf_event_open
from rubyunwind.bpf.refusals import NEEDS, missing_capabilities
from rubyunwind.errors import RubyUnwindError

__all__ = [
    "CO_RE",
    "FLAVOURS",
    "LEGACY",
    "LONG_PROGRAMS",
    "NO",
    "UNKNOWN",
    "YES",
    "Feature",
    "features",
    "probe",
]

YES, NO, UNKNOWN = "yes", "no", "unknown"

# Builds of the tracer, the better one first: with type information of the kernel (from 5.10 on), or without.
CO_RE, LEGACY = "co-re", "legacy"
FLAVOURS = (CO_RE, LEGACY)

_KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that may be there.

    `answer` is "yes", "no" or "unknown", `detail` what was found, or why there is no answer; `needs` the
    first kernel that has it, or its option; `needed_by` the flavours that do not work without it. Without
    what all of them need (it is `required`) nothing is sampled by BPF.
    """

    name: str
    answer: str
    needs: str
    detail: str = ""
    needed_by: tuple[str, ...] = FLAVOURS

    @property
    def required(self) -> bool:
        """Whether no flavour works without it."""
        return set(self.needed_by) == set(FLAVOURS)


# The first kernel with each: the commits that added them to include/uapi/linux/bpf.h.
_PROGRAM_TYPES = {ProgramType.PERF_EVENT: "Linux 4.9", ProgramType.RAW_TRACEPOINT: "Linux 4.17"}
_MAP_TYPES = {
    MapType.HASH: "Linux 3.19",
    MapType.ARRAY: "Linux 3.19",
    MapType.PROG_ARRAY: "Linux 4.2",
    MapType.PERF_EVENT_ARRAY: "Linux 4.3",
    MapType.PERCPU_ARRAY: "Linux 4.6",
    MapType.STACK_TRACE: "Linux 4.6",
    MapType.LPM_TRIE: "Linux 4.11",
    MapType.HASH_OF_MAPS: "Linux 4.12",
}
# Limits on a program: BPF_MAXINSNS of 4096 was for all, and is now for the unprivileged.
LONG_PROGRAMS = "programs of more than 4096 instructions"
# Flags of an array; with the second, maps that are put into one map of maps may differ in size.
_MAP_FLAGS = {MapFlag.MMAPABLE: "Linux 5.5", MapFlag.INNER_MAP: "Linux 5.10"}
# Number in enum bpf_func_id, first kernel, which flavours need it. All may be called by any tracing program
# since that kernel: whether a helper is there for one type only, libbpf 1.1 cannot tell on Linux 6.18 (the
# verifier words its refusal otherwise by then, and any other refusal counts as yes).
_HELPERS = {
    "tail_call": (12, "Linux 4.2", FLAVOURS),
    "perf_event_output": (25, "Linux 4.4", FLAVOURS),
    "get_stackid": (27, "Linux 4.6", FLAVOURS),
    "get_stack": (67, "Linux 4.18", FLAVOURS),
    "probe_read": (4, "Linux 4.1", (LEGACY,)),
    "probe_read_user": (112, "Linux 5.5", (CO_RE,)),
    "probe_read_kernel": (113, "Linux 5.5", (CO_RE,)),
    "get_current_task_btf": (158, "Linux 5.11", ()),
    "task_pt_regs": (175, "Linux 5.15", ()),
    "loop": (181, "Linux 5.17", ()),
}


@cache
def features() -> tuple[Feature, ...]:
    """Ask the kernel once per process and return the answers; nothing stays loaded or open.

    Never raises for what is missing: that is an answer.
    """
    from rubyunwind.bpf.library import load_library

    try:
        library = load_library()
    except RubyUnwindError as error:
        found = Feature("libbpf", NO, "libbpf 1.0 (apt install libbpf1)", str(error))
        return (found, _kernel_btf(), _clock(), *probe(None, "there is no libbpf to ask with"))
    version = "version {}.{} at {}".format(*library.version, library.path)
    missing = missing_capabilities()
    obstacle = f"asking needs {' and '.join(missing)}" if missing else ""
    return (
        Feature("libbpf", YES, "libbpf 1.0", version),
        _kernel_btf(),
        _clock(),
        *probe(library.lib, obstacle),
    )


def probe(lib: Any, obstacle: str = "") -> tuple[Feature, ...]:
    """Ask libbpf for each program type, map type and helper; all are "unknown" where there is an `obstacle`.

    A plain array is what every kernel with bpf(2) has: where that fails, no refusal means anything.
    """
    if not obstacle and lib.libbpf_probe_bpf_map_type(MapType.ARRAY, _null()) != 1:
        obstacle = "bpf(2) refuses even a plain array: seccomp, lockdown, or RLIMIT_MEMLOCK before Linux 5.11"

    def answer(question: str, *numbers: int) -> tuple[str, str]:
        if obstacle:
            return UNKNOWN, obstacle
        result = getattr(lib, question)(*numbers, _null())
        if result < 0:
            return UNKNOWN, f"the probe failed (errno {-result})"
        return (YES if result else NO), ""

    found = []
    for program, needs in _PROGRAM_TYPES.items():
        said, detail = answer("libbpf_probe_bpf_prog_type", program)
        found.append(Feature(f"program type {program.name.lower()}", said, needs, detail))
    for kind, needs in _MAP_TYPES.items():
        said, detail = answer("libbpf_probe_bpf_map_type", kind)
        found.append(Feature(f"map type {kind.name.lower()}", said, needs, detail))
    for flag, needs in _MAP_FLAGS.items():
        said, detail = (UNKNOWN, obstacle) if obstacle else (YES if _takes(lib, flag) else NO, "")
        found.append(Feature(f"map flag {(flag.name or '').lower()}", said, needs, detail, (CO_RE,)))
    said, detail = (UNKNOWN, obstacle) if obstacle else (YES if _takes_long_programs(lib) else NO, "")
    found.append(Feature(LONG_PROGRAMS, said, "Linux 5.2", detail, ()))
    for name, (number, needs, needed_by) in _HELPERS.items():
        said, detail = answer("libbpf_probe_bpf_helper", ProgramType.PERF_EVENT, number)
        found.append(Feature(f"helper {name}", said, needs, detail, needed_by))
    return tuple(found)


def _takes(lib: Any, flag: MapFlag) -> bool:
    """Whether the kernel makes an array with that flag; the array is closed at once."""
    from rubyunwind.bpf.library import ffi

    opts = ffi.new("struct bpf_map_create_opts *")
    opts.sz = ffi.sizeof("struct bpf_map_create_opts")
    opts.map_flags = flag
    fd = lib.bpf_map_create(int(MapType.ARRAY), ffi.NULL, 4, 8, 1, opts)
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def _takes_long_programs(lib: Any) -> bool:
    """Whether the kernel loads a program of more than 4096 instructions; it is unloaded at once."""
    # r0 = 0, many times, and exit.
    code = bytes.fromhex("b700000000000000") * 4097 + bytes.fromhex("9500000000000000")
    fd = lib.bpf_prog_load(int(ProgramType.PERF_EVENT), _null(), b"GPL", code, len(code) // 8, _null())
    if fd >= 0:
        os.close(fd)
    return bool(fd >= 0)


def _null() -> Any:
    from rubyunwind.bpf.library import ffi

    return ffi.NULL


def _kernel_btf() -> Feature:
    there = _KERNEL_BTF.is_file()
    detail = str(_KERNEL_BTF) if there else f"{_KERNEL_BTF} does not exist"
    needs = "Linux 5.2 with CONFIG_DEBUG_INFO_BTF"
    return Feature("kernel BTF", YES if there else NO, needs, detail, (CO_RE,))


def _clock() -> Feature:
    """Open the software clock of a CPU, as sampling does; it is closed before it ticks."""
    try:
        perf_event_open(cpu=_first_cpu(), disabled=True).close()
    except RubyUnwindError as error:
        answer = UNKNOWN if missing_capabilities() else NO
        return Feature("perf clock", answer, f"CONFIG_PERF_EVENTS; {NEEDS}", str(error))
    return Feature("perf clock", YES, "CONFIG_PERF_EVENTS", "cpu-clock, a software event: no PMU is needed")


def _first_cpu() -> int:
    try:
        online = Path("/sys/devices/system/cpu/online").read_text()
    except OSError:
        return 0
    return int(online.replace("-", ",").split(",")[0])
