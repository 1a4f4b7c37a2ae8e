# SPDX-License-Identifier: Apache-2.0
"""Makes one readable error of a failed load: which program, the verifier's reason, how far it got."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rubyunwind.bpf.refusals import refusal
from rubyunwind.errors import BpfError, RubyUnwindError

__all__ = ["LOG_SIZE", "load_failure", "reason_of"]

# The largest log buffer that kernels before 5.2 accept (UINT_MAX >> 8, kernel/bpf/verifier.c).
LOG_SIZE = (16 << 20) - 1
# libbpf's "prog 'NAME': BPF program load failed: ..." (newer versions: "failed to load").
_FAILED = re.compile(r"prog '([^']+)': (?:BPF program load failed|failed to load)")
_PROCESSED = re.compile(r"^processed (\d+) insns", re.MULTILINE)
# Lines that are not the reason: statistics, state dumps, source lines, instructions.
_NOISE = re.compile(
    r"^(processed \d+ insns|verification time|stack depth|mark_precise|from \d+ to \d+|\d+: [(R]|;|"
    r"R\d+(_\w+)?=|last_idx|regs=|parent |max_states|arg#\d+ |func#\d+ |-- (BEGIN|END)|insns? processed)"
)


def reason_of(log: str) -> str:
    """Return the last line of a verifier log that says why, with the one above if that does too, or ""."""
    reason: list[str] = []
    for line in reversed(log.splitlines()):
        text = line.strip()
        if text and not _NOISE.match(text):
            reason.append(text)
            if len(reason) == 2:
                break
        elif reason:
            break
    return ": ".join(reversed(reason))


def load_failure(
    code: int, name: str, log: str, messages: Sequence[str], counts: Mapping[str, int]
) -> RubyUnwindError:
    """Make the error of a load of object `name` that ended with errno `code`.

    `log` is the verifier's ("" if the load did not get that far), `messages` what libbpf printed,
    `counts` the instructions of each program.
    """
    failed = next((m[1] for m in map(_FAILED.search, reversed(messages)) if m), None)
    if failed is None:
        # Not the verifier: a map, BTF or a relocation.
        return refusal(code, f"load {name}", "; ".join(messages[-3:]), log=log)
    reason = reason_of(log) if log else ""
    size = counts.get(failed)
    operation = f"load program {failed}" + (f" ({size} instructions)" if size else "")
    if not reason:
        return refusal(code, operation, "; ".join(messages[-2:]), log=log)
    processed = _PROCESSED.findall(log)
    detail = f"the verifier says: {reason}"
    if processed:
        detail += f" (after {int(processed[-1]):,} instructions)"
    lines = log.count("\n")
    return BpfError(code, operation, f"{detail}; the whole log has {lines:,} lines", log=log)
