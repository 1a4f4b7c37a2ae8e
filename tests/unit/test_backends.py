# SPDX-License-Identifier: Apache-2.0
"""When BPF counts as refused, and what is said then."""

from __future__ import annotations

import errno

import pytest

from rubyunwind.errors import AttachError, BpfError, NotSupported, RubyUnwindError
from rubyunwind.process.refusals import Circumstances, explain
from rubyunwind.profiler.backends import check_backend, why_refused


@pytest.mark.parametrize(
    "error",
    [
        NotSupported("no usable libbpf.\nTried two places.", feature="libbpf", needs="libbpf 1.0"),
        BpfError(errno.EPERM, "load x"),
        BpfError(errno.EACCES, "open perf event"),
        BpfError(errno.ENOSYS, "load x"),
    ],
)
def test_what_is_not_allowed_here_is_one_line_with_reason_and_cost(error: RubyUnwindError) -> None:
    line = why_refused(error)
    assert "\n" not in line
    assert line.startswith("BPF is refused (" + str(error).split("\n")[0])
    assert line.endswith("no native or kernel frames, and torn samples are dropped")


@pytest.mark.parametrize(
    "error",
    [
        AttachError("process 1: no such process"),
        BpfError(errno.EINVAL, "open perf event"),
        BpfError(errno.E2BIG, "load x", log="too many instructions"),
        RubyUnwindError("cannot write"),
    ],
)
def test_other_errors_are_no_refusal(error: RubyUnwindError) -> None:
    assert why_refused(error) == ""


def test_the_names_of_backends() -> None:
    for name in ("auto", "bpf", "user"):
        check_backend(name)
    with pytest.raises(ValueError, match="backend 'perf': it must be one of auto, bpf, user"):
        check_backend("perf")


@pytest.mark.parametrize("scope", [1, 2, 3])
def test_memory_that_yama_forbids_to_read_names_the_setting(scope: int) -> None:
    facts = Circumstances(pid=5, comm="ruby", owner=1000, user=1000, capable=False, yama=scope)
    text = explain(facts, "its memory may not be read")
    assert text.startswith("process 5 (ruby): its memory may not be read: the setting ")
    assert f"kernel.yama.ptrace_scope is {scope}" in text
