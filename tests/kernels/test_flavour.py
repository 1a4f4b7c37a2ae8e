# SPDX-License-Identifier: Apache-2.0
"""The features that this kernel says it has lead to the flavour that it runs, and to no other."""

from __future__ import annotations

import pytest
from flavours import EXPECTED

from rubyunwind import features
from rubyunwind.bpf.features import FLAVOURS, UNKNOWN
from rubyunwind.bpf.flavour import choose_flavour, lacking
from rubyunwind.errors import RubyUnwindError
from rubyunwind.profiler.tracer import load_tracer, tracer_spec


def test_every_feature_has_an_answer() -> None:
    assert [feature.name for feature in features() if feature.answer == UNKNOWN] == []


def test_the_best_flavour_of_this_kernel_is_chosen() -> None:
    if EXPECTED:
        assert choose_flavour() == EXPECTED[0]
    assert tuple(flavour for flavour in FLAVOURS if not lacking(flavour, features())) == EXPECTED


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_flavour_loads_where_nothing_lacks_and_is_refused_where_something_does(flavour: str) -> None:
    """A kernel that is said to be too old must really be."""
    if flavour in EXPECTED:
        with load_tracer(tracer_spec(flavour)) as collection:
            assert collection.programs
    else:
        with pytest.raises(RubyUnwindError):
            load_tracer(tracer_spec(flavour)).close()
