# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for samples with any names, and names that have broken other tools."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rubyunwind.profiler.sample import Frame, Sample

HOSTILE_NAMES = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<!--",
    "]]>",
    "&amp;",
    "a;b",
    "a\nb\r\nc",
    "a\0b",
    "quote\"'`${1}",
    "back\\slash\\",
    "@@DATA@@",
    "名前",
    "\u2028\u2029\x85\x0b\x1c",
    b"cut \xe5\x90".decode("utf-8", "surrogateescape"),
    b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "looks like a kernel frame_[k]",
    "ends in a number 12",
    " ",
    "",
)

# Names come from bytes by surrogateescape, so the only surrogates are U+DC80 to U+DCFF.
names = st.one_of(
    st.sampled_from(HOSTILE_NAMES),
    st.text(max_size=12),
    st.binary(max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
_lines = st.one_of(st.none(), st.integers(0, 10_000))
_maybe_names = st.one_of(st.none(), names)

source_frames = st.builds(
    Frame, st.sampled_from(["ruby", "cfunc"]), names, label=_maybe_names, path=_maybe_names, line=_lines
)
native_frames = st.builds(
    Frame,
    st.just("native"),
    names,
    module=_maybe_names,
    offset=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
bare_frames = st.builds(Frame, st.sampled_from(["kernel", "gc", "jit", "unknown", "error"]), names)
frames = st.one_of(source_frames, native_frames, bare_frames)
stacks = st.lists(frames, max_size=6).map(tuple)
_ids = st.integers(1, 4)


def _sample(number: int, stack: tuple[Frame, ...], reason: str | None, comm: str, weight: int) -> Sample:
    return Sample(
        timestamp=1_700_000_000_000_000_000 + number,
        pid=1 + number % 2,
        tid=1 + number % 3,
        comm=comm,
        frames=stack,
        complete=reason is None,
        reason=reason,
        weight=weight,
    )


samples = st.builds(
    _sample,
    st.integers(0, 5),
    stacks,
    st.one_of(st.none(), st.none(), st.sampled_from(["limit", "tail calls", "no unwind row"]), names),
    names,
    st.integers(1, 10**12),
)


def _repeated(some: list[Sample], again: list[int]) -> list[Sample]:
    return some + [some[index % len(some)] for index in again] if some else some


# Some samples come again as the very same object: grouping by identity must equal grouping by value.
profiles = st.builds(_repeated, st.lists(samples, max_size=8), st.lists(st.integers(0, 100), max_size=4))

# Samples of several units, threads and containers, as no recording of ours mixes them yet.
_mixed = st.builds(
    replace,
    samples,
    unit=st.sampled_from(["samples", "samples", "ns"]),
    tid=_ids,
    container=st.sampled_from([None, None, "c0ffee"]),
    timestamp=st.integers(1_700_000_000_000_000_000, 1_700_000_100_000_000_000),
)
mixed_profiles = st.builds(_repeated, st.lists(_mixed, max_size=8), st.lists(st.integers(0, 100), max_size=4))
