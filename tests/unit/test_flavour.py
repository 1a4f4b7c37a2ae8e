# SPDX-License-Identifier: Apache-2.0
"""Which build of the programs is taken, by what the kernel says it has."""

from __future__ import annotations

import pytest

from rubyunwind.bpf.features import CO_RE, FLAVOURS, LEGACY, NO, UNKNOWN, YES, Feature
from rubyunwind.bpf.flavour import choose_flavour, lacking
from rubyunwind.errors import NotSupported
from rubyunwind.profiler.tracer import tracer_spec

TRIE = "map type lpm_trie"


def answers(answer: str, **others: str) -> tuple[Feature, ...]:
    """Return features with one answer, but for those that are named (with _ for a space)."""
    found = (
        Feature("kernel BTF", answer, "Linux 5.2", needed_by=(CO_RE,)),
        Feature("map flag inner_map", answer, "Linux 5.10", needed_by=(CO_RE,)),
        Feature(TRIE, answer, "Linux 4.11"),
        Feature("map type hash_of_maps", answer, "Linux 4.12"),
        Feature("helper probe_read", answer, "Linux 4.1", needed_by=(LEGACY,)),
        Feature("helper task_pt_regs", answer, "Linux 5.15", needed_by=()),
    )
    return tuple(
        Feature(
            one.name, others.get(one.name.replace(" ", "_"), one.answer), one.needs, needed_by=one.needed_by
        )
        for one in found
    )


@pytest.mark.parametrize(
    ("found", "flavour"),
    [
        (answers(YES), CO_RE),
        (answers(YES, helper_task_pt_regs=NO), CO_RE),
        (answers(YES, helper_probe_read=NO), CO_RE),
        (answers(UNKNOWN), CO_RE),  # the load will tell
        (answers(YES, kernel_BTF=NO), LEGACY),  # a new kernel without type information
        (answers(YES, map_flag_inner_map=NO), LEGACY),  # 5.4 with it
        (answers(UNKNOWN, kernel_BTF=NO), LEGACY),
    ],
)
def test_the_best_flavour_that_nothing_is_missing_for(found: tuple[Feature, ...], flavour: str) -> None:
    assert choose_flavour(found) == flavour


def test_a_kernel_that_lacks_what_all_need_is_refused_with_the_names_of_it() -> None:
    """Linux 4.9, as it answers."""
    found = answers(YES, kernel_BTF=NO, map_type_lpm_trie=NO, map_type_hash_of_maps=NO)
    with pytest.raises(NotSupported) as caught:
        choose_flavour(found)
    text = str(caught.value)
    assert "map type lpm_trie (needs Linux 4.11); map type hash_of_maps (needs Linux 4.12)" in text
    assert "CAP_BPF" in text
    assert "kernel BTF" not in text  # nothing that the legacy programs need
    assert caught.value.needs == "Linux 4.19"


def test_what_is_lacking_is_what_the_kernel_said_no_to() -> None:
    assert lacking(LEGACY, answers(UNKNOWN)) == []
    assert [each.name for each in lacking(LEGACY, answers(NO))] == [
        TRIE,
        "map type hash_of_maps",
        "helper probe_read",
    ]


def test_only_what_every_flavour_needs_is_required() -> None:
    assert {each.name for each in answers(YES) if each.required} == {TRIE, "map type hash_of_maps"}


def test_each_flavour_has_an_object_and_an_unknown_one_is_named() -> None:
    names = {tracer_spec(flavour).name.split(".")[2] for flavour in FLAVOURS}
    assert names == {"release", "legacy"}
    with pytest.raises(ValueError, match=r"'core'.*co-re, legacy"):
        tracer_spec("core")
    with pytest.raises(NotSupported, match="no debug build"):
        tracer_spec(LEGACY, debug=True)
