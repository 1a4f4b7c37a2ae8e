# SPDX-License-Identifier: Apache-2.0
"""What a failed load is summed up to."""

from __future__ import annotations

import errno

import pytest

from rubyunwind.bpf.verifier import load_failure, reason_of
from rubyunwind.errors import BpfError

LOG = """\
func#0 @0
0: R1=ctx(off=0,imm=0) R10=fp0
; int f(void *ctx) {
0: (b7) r1 = 0                        ; R1_w=0
from 5 to 7: R0=0 R10=fp0
7: (85) call bpf_probe_read_user#112
R1 type=scalar expected=fp, pkt, map_value
processed 1042 insns (limit 1000000) max_states_per_insn 4 total_states 9 peak_states 9 mark_read 4
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (LOG, "R1 type=scalar expected=fp, pkt, map_value"),
        (
            "BPF program is too large. Processed 1000001 insn\nprocessed 1000001 insns (limit 1000000)\n",
            "BPF program is too large. Processed 1000001 insn",
        ),
        (
            "back-edge from insn 9 to 2\nverification time 12 usec\nstack depth 8+0\n",
            "back-edge from insn 9 to 2",
        ),
        ("0: (95) exit\nprocessed 1 insns\n", ""),
        ("", ""),
    ],
)
def test_the_reason_is_the_last_line_that_is_no_state_or_statistics(log: str, reason: str) -> None:
    assert reason_of(log) == reason


def test_a_verifier_failure_names_program_sizes_and_reason() -> None:
    printed = [
        "prog 'unwind_ruby': BPF program load failed: Permission denied",
        "prog 'unwind_ruby': failed to load: -13",
        "failed to load object 'tracer'",
    ]
    error = load_failure(errno.EACCES, "tracer.o", LOG, printed, {"unwind_ruby": 900})
    assert isinstance(error, BpfError)
    assert error.log == LOG
    assert str(error) == (
        "load program unwind_ruby (900 instructions): Permission denied (errno 13); the verifier says: "
        "R1 type=scalar expected=fp, pkt, map_value (after 1,042 instructions); the whole log has 8 lines"
    )


def test_a_failure_before_the_verifier_shows_what_libbpf_said() -> None:
    error = load_failure(errno.E2BIG, "tracer.o", "", ["map 'x': failed to create: -7"], {})
    assert str(error) == "load tracer.o: Argument list too long (errno 7); map 'x': failed to create: -7"
