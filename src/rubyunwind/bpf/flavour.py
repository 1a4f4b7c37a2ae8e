# SPDX-License-Identifier: Apache-2.0
"""Which build of the tracer a kernel can run: the full one, or the one for kernels before 5.10."""

from __future__ import annotations

from rubyunwind.bpf.features import FLAVOURS, NO, Feature, features
from rubyunwind.bpf.library import load_library
from rubyunwind.bpf.refusals import NEEDS
from rubyunwind.errors import NotSupported

__all__ = ["choose_flavour", "lacking"]


def lacking(flavour: str, found: tuple[Feature, ...]) -> list[Feature]:
    """Return what that flavour needs and this kernel is known not to have."""
    return [feature for feature in found if flavour in feature.needed_by and feature.answer == NO]


def choose_flavour(found: tuple[Feature, ...] | None = None) -> str:
    """Return the first of FLAVOURS that nothing is missing for, by default as this kernel answers.

    What could not be told is not held against a flavour: the load will tell. Raises NotSupported, which
    names the features that even the last one lacks and the kernels that have them, or why there is no libbpf.
    """
    if found is None:
        load_library()  # whose error says more than that a feature is missing
        found = features()
    for flavour in FLAVOURS:
        if not lacking(flavour, found):
            return flavour
    missing = "; ".join(f"{feature.name} (needs {feature.needs})" for feature in lacking(FLAVOURS[-1], found))
    raise NotSupported(
        f"this kernel cannot run the BPF programs, it lacks: {missing}. Linux 5.10 has all of it, and 4.19 "
        f"what the legacy programs need; loading them takes {NEEDS}.",
        feature=", ".join(feature.name for feature in lacking(FLAVOURS[-1], found)),
        needs="Linux 4.19",
    )
