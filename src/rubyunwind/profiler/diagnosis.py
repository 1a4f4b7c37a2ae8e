# SPDX-License-Identifier: Apache-2.0
"""What works on this machine for this user, what does not, and what to change: found by trying it."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from rubyunwind.bpf.features import CO_RE, NO, Feature, features
from rubyunwind.errors import RubyUnwindError
from rubyunwind.process.capabilities import Capability, effective, holds
from rubyunwind.profiler.system import ANALYSIS_PROGRAM, pid_namespace
from rubyunwind.profiler.tracer import load_tracer, tracer_spec

__all__ = ["RIGHTS", "Diagnosis", "Right", "advise", "diagnose", "held_rights"]

# What each gives here.
RIGHTS = {
    Capability.CAP_BPF: "load the programs and create their maps",
    Capability.CAP_PERFMON: "let them read memory, and open the clock of a CPU",
    Capability.CAP_SYS_PTRACE: "look into processes of other users",
    Capability.CAP_SYSLOG: "name kernel functions (/proc/kallsyms)",
    Capability.CAP_CHECKPOINT_RESTORE: "open mapped files that were deleted (/proc/PID/map_files)",
    Capability.CAP_SYS_ADMIN: "all of the above but CAP_SYS_PTRACE and CAP_SYSLOG",
}

_LIMITS = {
    "kernel.perf_event_paranoid": Path("/proc/sys/kernel/perf_event_paranoid"),
    "kernel.perf_event_max_sample_rate": Path("/proc/sys/kernel/perf_event_max_sample_rate"),
    "kernel.unprivileged_bpf_disabled": Path("/proc/sys/kernel/unprivileged_bpf_disabled"),
    "kernel.yama.ptrace_scope": Path("/proc/sys/kernel/yama/ptrace_scope"),
    "kernel.kptr_restrict": Path("/proc/sys/kernel/kptr_restrict"),
    "lockdown": Path("/sys/kernel/security/lockdown"),
}


@dataclass(frozen=True, slots=True)
class Right:
    """A capability, whether this thread has it (or CAP_SYS_ADMIN in its place), and what it is for."""

    name: str
    held: bool
    gives: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that `rubyunwind doctor` says.

    `backend` is what `--backend auto` takes, "bpf" or "user", `flavour` the eBPF object; `load_ms` is how
    long its programs took to load just now, None if they did not, and `refusal` why not. `advice` are
    sentences on what to change, empty when nothing is missing.
    """

    kernel: str
    machine: str
    features: tuple[Feature, ...]
    rights: tuple[Right, ...]
    limits: dict[str, str]
    flavour: str
    load_ms: float | None
    refusal: str
    backend: str
    advice: tuple[str, ...]


def diagnose() -> Diagnosis:
    """Look at everything, load the programs once and unload them. Never raises for what is missing."""
    system = os.uname()
    found = features()
    rights = held_rights(effective())
    flavour, load_ms, refusal = _load()
    namespace = ""
    try:
        pid_namespace()
    except (RubyUnwindError, OSError) as error:
        namespace = str(error)
    works = load_ms is not None and not namespace
    return Diagnosis(
        kernel=system.release,
        machine=system.machine,
        features=found,
        rights=rights,
        limits=_limits(),
        flavour=flavour,
        load_ms=load_ms,
        refusal=namespace or refusal,
        backend="bpf" if works else "user",
        advice=tuple(advise(found, rights, namespace or refusal)),
    )


def held_rights(mask: int) -> tuple[Right, ...]:
    """Return every capability of interest; `mask` has a bit for each that is effective."""
    return tuple(Right(each.name, holds(mask, each), gives) for each, gives in RIGHTS.items())


def advise(found: tuple[Feature, ...], rights: tuple[Right, ...], refusal: str) -> list[str]:
    """Return what to change, most important first."""
    advice = []
    lacking = [right.name for right in rights if not right.held and right.name != "CAP_SYS_ADMIN"]
    for feature in found:
        if feature.required and feature.answer == NO:
            detail = f" ({feature.detail})" if feature.detail else ""
            advice.append(f"{feature.name} is missing; it needs {feature.needs}{detail}")
    better = [feature for feature in found if feature.needed_by == (CO_RE,) and feature.answer == NO]
    if better and not advice:
        names = ", ".join(f"{feature.name} ({feature.needs})" for feature in better)
        advice.append(
            "the legacy programs are used, which cut stacks sooner where Ruby and C take turns often; "
            f"missing for the others: {names}"
        )
    if lacking:
        advice.append(f"run it as root (sudo), or give it {', '.join(lacking)}")
    if refusal and not advice:
        advice.append(refusal)
    return advice


def _load() -> tuple[str, float | None, str]:
    """Load the programs: flavour, milliseconds (None if refused), reason."""
    flavour = "none"
    try:
        spec = tracer_spec()
        flavour = f"{spec.name} ({'legacy' if ANALYSIS_PROGRAM in spec.programs else 'CO-RE'})"
        start = time.perf_counter()
        with load_tracer(spec):
            return flavour, 1000 * (time.perf_counter() - start), ""
    except RubyUnwindError as error:
        return flavour, None, str(error)


def _limits() -> dict[str, str]:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limits = {"RLIMIT_MEMLOCK": "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"}
    for name, path in _LIMITS.items():
        try:
            text = path.read_text().strip()
        except OSError:
            text = "not there"
        # "none [integrity] confidentiality": the one in brackets is in force.
        chosen = re.search(r"\[(\w+)\]", text)
        limits[name] = chosen[1] if chosen else text
    return limits
