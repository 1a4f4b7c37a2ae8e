# SPDX-License-Identifier: Apache-2.0
"""A Ruby program is recorded on this kernel, and its stacks are whole: Ruby frames inside native ones."""

from __future__ import annotations

import pytest

import rubyunwind

SPIN = """\
def inner(list)
  list.each { |x| x.to_s * 3 }
end

def outer(list)
  inner(list)
end

stop = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 8
outer((1..1000).to_a) while Process.clock_gettime(Process::CLOCK_MONOTONIC) < stop
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> rubyunwind.Profile:
    program = tmp_path_factory.mktemp("record") / "spin.rb"
    program.write_text(SPIN)
    return rubyunwind.record(
        command=["ruby", "--disable-gems", str(program)], rate=49, duration=60, backend="bpf"
    )


def shape(sample: rubyunwind.Sample) -> str:
    """The stack on one line, leaf first: what a failure has to show."""
    return " ".join(f"{frame.kind}:{frame.name}" for frame in sample.frames)


def spinning(profile: rubyunwind.Profile) -> list[rubyunwind.Sample]:
    return [s for s in profile.samples if any(f.kind == "ruby" and f.label == "inner" for f in s.frames)]


def test_the_program_ends_and_is_sampled(profile: rubyunwind.Profile) -> None:
    assert profile.exit_status == 0
    # 400 ticks are due; an emulated clock that loses some must not fail the test.
    assert len(spinning(profile)) >= 40, profile.totals


def test_ruby_frames_are_in_their_order(profile: rubyunwind.Profile) -> None:
    for sample in spinning(profile):
        ruby = [f.label for f in sample.frames if f.kind == "ruby"]
        assert ruby[-3:] == ["inner", "outer", "<main>"], shape(sample)


def test_the_root_is_native_where_ruby_did_not_just_push_a_frame(profile: rubyunwind.Profile) -> None:
    """Ruby pushes a block's frame before it enters the interpreter loop: then the C stack is one short."""
    samples = spinning(profile)
    odd = [shape(s) for s in samples if s.frames[-1].kind != "native"]
    assert len(odd) <= len(samples) // 20, odd


def test_nearly_every_stack_is_complete_once_the_process_is_known(profile: rubyunwind.Profile) -> None:
    """An emulated machine takes seconds to read the files; till then stacks end early. So: the last 2 s."""
    samples = spinning(profile)
    last = [s for s in samples if s.timestamp > samples[-1].timestamp - 2_000_000_000]
    cut = [(s.reason, shape(s)) for s in last if not s.complete]
    assert len(last) >= 20
    assert len(cut) <= len(last) // 20, (len(last), cut)
