# SPDX-License-Identifier: Apache-2.0
"""The numbers of a soak, each with the rule that it is held against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .machine import Size

__all__ = ["Finding", "Observed", "findings"]

# Growth that counts as none: of the median of the last fifth over that of the second fifth.
_FLAT = 0.05
_SPARE_DESCRIPTORS = 4
_ACCOUNTED, _BY_CPU_TIME = 0.01, 0.05
_AGENT_CPU = 0.01
_FIRST_STACK = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """A number, how it has to be, and whether it is so."""

    what: str
    value: str
    rule: str
    met: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """What a soak has gathered.

    `sizes` are of the agent, one a second from when it sampled. `left` are for each look at the maps what
    they had 5 s later of processes that were gone. `before` and `after` are the agent's counts at the
    beginning and the end of the time in which `work` CPU seconds were used by what is sampled. `cpu` are the
    agent's own CPU seconds in `seconds`; `end` are its last counts, and what it tells of first stacks.
    """

    rate: int
    started: int
    sizes: Sequence[Size]
    left: Sequence[Mapping[str, Sequence[int]]]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    end: Mapping[str, Any]
    work: float
    cpu: float
    seconds: float


def findings(seen: Observed) -> Iterator[Finding]:
    """Hold everything against its rule."""
    yield from _flat(seen.sizes)
    yield _descriptors(seen)
    yield _left(seen.left)
    yield _accounted(seen.end)
    yield _by_cpu_time(seen)
    share = seen.cpu / seen.seconds
    yield Finding(
        f"agent's CPU time at {seen.rate} Hz",
        f"{share:.2%} of one core ({seen.cpu:.1f} s in {seen.seconds:.0f} s)",
        f"<= {_AGENT_CPU:.0%}",
        share <= _AGENT_CPU,
    )
    yield _first_stacks(seen)


def _flat(sizes: Sequence[Size]) -> Iterator[Finding]:
    fifth = len(sizes) // 5
    warm, last = sizes[fifth : 2 * fifth], sizes[-fifth:]
    rss = median(size.rss for size in warm) / 1024, median(size.rss for size in last) / 1024
    yield Finding(
        "RSS after warm-up, at the end",
        f"{rss[0]:.1f} MB, {rss[1]:.1f} MB",
        f"at most {_FLAT:.0%} more",
        rss[1] <= rss[0] * (1 + _FLAT),
    )


def _descriptors(seen: Observed) -> Finding:
    fifth = len(seen.sizes) // 5
    all_of_it = [
        median(size.descriptors for size in part)
        for part in (seen.sizes[fifth : 2 * fifth], seen.sizes[-fifth:])
    ]
    own = seen.before["own"], seen.after["own"]
    return Finding(
        "descriptors after warm-up, at the end, without those of registered processes and their files",
        f"{own[0]}, {own[1]} (with them {all_of_it[0]:.0f}, {all_of_it[1]:.0f})",
        f"at most {_SPARE_DESCRIPTORS} more",
        own[1] <= own[0] + _SPARE_DESCRIPTORS,
    )


def _left(looks: Sequence[Mapping[str, Sequence[int]]]) -> Finding:
    left = [f"{len(pids)} in {name}" for look in looks for name, pids in look.items() if pids]
    return Finding(
        "map entries of processes that ended 5 s ago",
        ", ".join(left) or f"0 ({len(looks)} looks at {len(looks[0])} maps)",
        "0",
        not left,
    )


def _accounted(counts: Mapping[str, Any]) -> Finding:
    told = counts["read"] + counts["lost"] + counts["unsent"]
    entries = counts["entries"]
    return Finding(
        "read + lost + failed, entries of the program",
        f"{counts['read']} + {counts['lost']} + {counts['unsent']} = {told}, {entries}",
        f"within {_ACCOUNTED:.0%}",
        abs(told - entries) <= _ACCOUNTED * entries,
    )


def _by_cpu_time(seen: Observed) -> Finding:
    entries = seen.after["entries"] - seen.before["entries"]
    due = seen.work * seen.rate
    return Finding(
        "entries, rate x CPU time of all processes",
        f"{entries}, {due:.0f} ({seen.work:.1f} s), {entries / due - 1:+.1%}",
        f"within {_BY_CPU_TIME:.0%}",
        abs(entries - due) <= _BY_CPU_TIME * due,
    )


def _first_stacks(seen: Observed) -> Finding:
    waits = seen.end["waits"]
    late = [seconds for seconds in seen.end["without"] if seconds > _FIRST_STACK]
    middle, longest = (median(waits), max(waits)) if waits else (0.0, 0.0)
    return Finding(
        "a new process's first sample to its first whole Ruby stack",
        f"median {middle * 1000:.0f} ms, longest {longest * 1000:.0f} ms ({len(waits)} processes, "
        f"{len(late)} without one)",
        f"<= {_FIRST_STACK * 1000:.0f} ms",
        bool(waits) and longest <= _FIRST_STACK and not late,
    )
