# SPDX-License-Identifier: Apache-2.0
"""What is said of features, rights and what to change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rubyunwind.bpf import features as module
from rubyunwind.bpf.features import LONG_PROGRAMS, NO, UNKNOWN, YES, Feature, features, probe
from rubyunwind.cli.doctor import report
from rubyunwind.process.capabilities import Capability
from rubyunwind.profiler.diagnosis import Diagnosis, advise, held_rights

ADMIN, BPF, PTRACE = Capability.CAP_SYS_ADMIN, Capability.CAP_BPF, Capability.CAP_SYS_PTRACE
ALL = sum(1 << each for each in Capability)


def kernel(
    programs: Callable[[int], int] = lambda _: 1,
    maps: Callable[[int], int] = lambda _: 1,
    helpers: Callable[[int], int] = lambda _: 1,
    old: bool = False,
) -> SimpleNamespace:
    """Answer like a libbpf on a kernel that has what the functions say; an old one takes no map flags."""

    def descriptor() -> int:
        return -errno.EINVAL if old else os.open(os.devnull, os.O_RDONLY)

    return SimpleNamespace(
        libbpf_probe_bpf_prog_type=lambda kind, _: programs(kind),
        libbpf_probe_bpf_map_type=lambda kind, _: maps(kind),
        libbpf_probe_bpf_helper=lambda _, number, __: helpers(number),
        bpf_map_create=lambda *_: descriptor(),
        bpf_prog_load=lambda *_: descriptor(),
    )


def answers(found: tuple[Feature, ...]) -> dict[str, str]:
    return {feature.name: feature.answer for feature in found}


def test_a_kernel_without_prefix_tries_and_maps_of_maps_is_named_as_that() -> None:
    found = probe(kernel(maps=lambda kind: int(kind not in (11, 13))))
    assert {each.name for each in found if each.required and each.answer == NO} == {
        "map type lpm_trie",
        "map type hash_of_maps",
    }
    advice = advise(found, held_rights(ALL), "")
    assert advice == [
        "map type lpm_trie is missing; it needs Linux 4.11",
        "map type hash_of_maps is missing; it needs Linux 4.12",
    ]


def test_what_only_the_better_programs_need_is_advice_that_says_what_is_used_meanwhile() -> None:
    found = probe(kernel(helpers=lambda number: int(number not in (112, 113)), old=True))
    (advice,) = advise(found, held_rights(ALL), "")
    assert advice.startswith("the legacy programs are used")
    for name in ("map flag mmapable (Linux 5.5)", "map flag inner_map", "helper probe_read_user"):
        assert name in advice


def test_a_helper_that_the_programs_do_without_is_no_advice() -> None:
    found = probe(kernel(helpers=lambda number: int(number != 175)))
    assert answers(found)["helper task_pt_regs"] == NO
    assert advise(found, held_rights(ALL), "") == []


def test_what_could_not_be_asked_is_unknown_and_never_missing() -> None:
    for found in (
        probe(None, "asking needs CAP_BPF"),
        probe(kernel(maps=lambda _: 0)),  # not even an array: somebody forbids bpf(2)
        probe(kernel(lambda _: -95, lambda kind: 1 if kind == 2 else -95, lambda _: -95)),
    ):
        asked = [feature for feature in found if not feature.name.startswith(("map flag", LONG_PROGRAMS))]
        unsure = [feature for feature in asked if feature.name != "map type array"]
        assert {feature.answer for feature in unsure} == {UNKNOWN}
        assert all(feature.detail for feature in unsure)
        assert advise(found, held_rights(ALL), "") == []


def test_without_libbpf_that_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from rubyunwind.bpf import library

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv(library.VARIABLE, "/nonexistent/libbpf.so")
    found = features.__wrapped__()
    assert found[0].name == "libbpf"
    assert found[0].answer == NO
    assert "/nonexistent/libbpf.so" in found[0].detail
    assert "libbpf" in advise(found, held_rights(ALL), "")[0]


def test_without_rights_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rubyunwind._libbpf")
    monkeypatch.setattr(module, "missing_capabilities", lambda: ["CAP_BPF", "CAP_PERFMON"])
    found = {feature.name: feature for feature in features.__wrapped__()}
    if found["libbpf"].answer != YES:
        pytest.skip("no libbpf here")
    assert found["map type hash"].answer == UNKNOWN
    assert found["map type hash"].detail == "asking needs CAP_BPF and CAP_PERFMON"


@pytest.mark.parametrize(
    ("mask", "lacking"),
    [
        (ALL, set()),
        (0, {each.name for each in Capability}),
        (1 << ADMIN, {"CAP_SYS_PTRACE", "CAP_SYSLOG"}),
        (1 << BPF | 1 << PTRACE, {"CAP_PERFMON", "CAP_SYSLOG", "CAP_CHECKPOINT_RESTORE", "CAP_SYS_ADMIN"}),
    ],
)
def test_the_administrators_right_stands_for_others(mask: int, lacking: set[str]) -> None:
    assert {right.name for right in held_rights(mask) if not right.held} == lacking


def test_a_refusal_without_a_missing_feature_or_right_is_the_advice() -> None:
    assert advise((), held_rights(ALL), "seccomp") == ["seccomp"]


def test_the_report_says_which_backend_is_left_and_why() -> None:
    found = Diagnosis(
        kernel="6.1.0",
        machine="x86_64",
        features=(
            Feature("kernel BTF", NO, "CONFIG_DEBUG_INFO_BTF", "no file"),
            Feature("map type hash", UNKNOWN, "Linux 3.19", "asking needs CAP_BPF"),
            Feature("map type array", UNKNOWN, "Linux 3.19", "asking needs CAP_BPF"),
            Feature("perf clock", YES, "CONFIG_PERF_EVENTS"),
        ),
        rights=held_rights(0),
        limits={"kernel.perf_event_paranoid": "3"},
        flavour="tracer.o (CO-RE)",
        load_ms=None,
        refusal="not allowed",
        backend="user",
        advice=("run it as root",),
    )
    lines = list(report(found))
    assert "programs    tracer.o (CO-RE), not loaded" in lines
    assert lines[:4] == [
        "rubyunwind cannot sample with BPF here; record falls back to user space: Ruby frames only",
        "to change",
        "  - run it as root",
        "",
    ]
    assert lines[6:9] == ["backend     user", "            because not allowed", "features    1 of 4"]
    assert "  no        kernel BTF (CONFIG_DEBUG_INFO_BTF): no file" in lines
    assert "  unknown   2 of them: asking needs CAP_BPF" in lines
    assert not any("perf clock" in line for line in lines)
    assert any("perf clock" in line for line in report(found, verbose=True))
