# SPDX-License-Identifier: Apache-2.0
"""What counts as exact in the table of Rubies, and what the page says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from live.programs import FOLDER, OTHERS, PROGRAMS, Program
from live.spinning import Spinning, locations
from rubies.cells import USER, Cell, judge
from rubies.page import MARK, tables, text, write
from rubies.roots import Root
from rubyunwind import Sample
from rubyunwind.profiler.backends import CHAIN, WALKER
from rubyunwind.profiler.sample import Frame

LEAF, MIDDLE, BASE = ("/a.rb", 3, "leaf"), ("/a.rb", 7, "each"), ("/a.rb", 9, "<main>")
STACK = (LEAF, MIDDLE, BASE)


def sample(*stack: tuple[str, int, str], tid: int = 7, reason: str | None = None) -> Sample:
    frames = [Frame("ruby", label, label, path, line) for path, line, label in stack]
    native = Frame("native", "rb_vm_exec", module="/libruby.so", offset=1)
    return Sample(1, 7, tid, "ruby", (*frames, native), complete=reason is None, reason=reason)


def cell(*samples: Sample, way: str = WALKER, tid: int = 7, reason: str | None = None) -> Cell:
    return judge(Program("a.rb", reason=reason), way, Spinning(7, ((tid, STACK),)), list(samples))


def test_every_program_that_prints_its_stack_is_in_the_table_or_named_as_another() -> None:
    assert {program.name for program in PROGRAMS} | OTHERS == {path.name for path in FOLDER.glob("*.rb")}
    assert not {program.name for program in PROGRAMS} & OTHERS


def test_equal_frames_in_a_whole_stack_are_exact() -> None:
    found = cell(sample(*STACK), sample(*STACK))
    assert (found.exact, found.samples, found.cut, found.difference, found.good) == (2, 2, 0, "", True)


def test_one_wrong_sample_is_enough_and_is_described() -> None:
    found = cell(sample(*STACK), sample(LEAF, ("/a.rb", 8, "each"), BASE), sample(LEAF))
    assert (found.exact, found.samples, found.good) == (1, 3, False)
    assert found.difference == (
        "frame 1 of 3 is ('/a.rb', 8, 'each'), expected ('/a.rb', 7, 'each') of 3 (complete)"
    )


def test_a_frame_too_many_or_too_few_is_a_difference() -> None:
    assert "frame 3 of 4 is ('/a.rb', 1, 'x'), expected nothing of 3" in (
        cell(sample(*STACK, ("/a.rb", 1, "x"))).difference
    )
    assert "frame 2 of 2 is nothing" in cell(sample(LEAF, MIDDLE)).difference


def test_right_ruby_frames_in_a_stack_that_is_not_whole_are_not_exact() -> None:
    found = cell(sample(*STACK, reason="no unwind row"))
    assert (found.good, found.difference) == (
        False,
        "the Ruby frames are right, but it is not complete: no unwind row",
    )


def test_a_native_walk_that_fails_as_it_is_known_to_is_no_fault_of_the_ruby_frames() -> None:
    assert cell(sample(*STACK, reason="unmapped pc"), reason="unmapped pc").good
    assert not cell(sample(*STACK, reason="no unwind row"), reason="unmapped pc").good


def test_native_frames_may_end_in_a_c_library_without_rows_and_are_counted() -> None:
    running = Spinning(7, ((7, STACK),))
    samples = [sample(*STACK), sample(*STACK, reason="no unwind row")]
    found = judge(Program("a.rb"), WALKER, running, samples, libc_reason="no unwind row")
    assert (found.exact, found.samples, found.rootless, found.good) == (2, 2, 1, True)
    wrong = sample(LEAF, BASE, reason="no unwind row")
    assert not judge(Program("a.rb"), WALKER, running, [wrong], libc_reason="no unwind row").good
    other = sample(*STACK, reason="unmapped pc")
    assert not judge(Program("a.rb"), WALKER, running, [other], libc_reason="no unwind row").good


def deep(frames: int, reason: str | None) -> tuple[Spinning, Sample]:
    """A stack twice as deep as what a sample has of it."""
    stack = tuple(("/a.rb", line, "deeper") for line in range(1, 2 * frames))
    return Spinning(7, ((7, stack),)), sample(*stack[:frames], reason=reason)


@pytest.mark.parametrize(("way", "good"), [(WALKER, False), (CHAIN, True), (USER, True)])
def test_only_what_has_not_the_room_may_cut_a_stack(way: str, good: bool) -> None:
    running, cut = deep(127, "limit")
    found = judge(Program("a.rb"), way, running, [cut])
    assert (found.good, found.cut) == (good, int(good))


@pytest.mark.parametrize(("frames", "reason"), [(100, "limit"), (127, "unreadable memory"), (127, None)])
def test_a_stack_that_is_cut_must_have_reached_the_limit_and_say_so(frames: int, reason: str | None) -> None:
    running, cut = deep(frames, reason)
    assert not judge(Program("a.rb"), CHAIN, running, [cut]).good


def test_a_stack_that_is_cut_must_be_right_as_far_as_it_goes() -> None:
    running, cut = deep(127, "limit")
    wrong = sample(*locations(cut)[1:], ("/a.rb", 9, "other"), reason="limit")
    assert not judge(Program("a.rb"), CHAIN, running, [wrong]).good


def test_a_c_function_at_the_cut_has_no_place_as_its_caller_is_gone() -> None:
    running, cut = deep(127, "limit")
    frames = [*cut.frames[:126], Frame("cfunc", "deeper", "deeper"), cut.frames[-1]]
    placeless = Sample(1, 7, 7, "ruby", tuple(frames), complete=False, reason="limit")
    assert judge(Program("a.rb"), CHAIN, running, [placeless]).good
    frames[120] = Frame("cfunc", "deeper", "deeper")
    hole = Sample(1, 7, 7, "ruby", tuple(frames), complete=False, reason="limit")
    assert not judge(Program("a.rb"), CHAIN, running, [hole]).good


@pytest.mark.parametrize(("turns", "way", "good"), [(13, CHAIN, True), (12, CHAIN, False), (13, USER, False)])
def test_tail_calls_may_end_after_as_many_turns_as_they_allow(turns: int, way: str, good: bool) -> None:
    stack = tuple(("/a.rb", line, "deeper") for line in range(1, 100))
    frames = []
    for path, line, label in stack[:turns]:
        frames += [Frame("ruby", label, label, path, line), Frame("native", "rb_vm_exec")]
    cut = Sample(1, 7, 7, "ruby", tuple(frames), complete=False, reason="tail calls")
    assert judge(Program("a.rb"), way, Spinning(7, ((7, stack),)), [cut]).good is good


def test_a_thread_that_waits_for_the_only_context_has_none_and_is_not_judged() -> None:
    running = Spinning(7, ((7, STACK), (8, (BASE,))))
    samples = [sample(*STACK), sample(BASE, tid=8), sample(tid=8, reason="no execution context")]
    program = Program("a.rb", threads=2)
    found = judge(program, WALKER, running, samples, one_context=True)
    assert (found.exact, found.samples, found.good) == (2, 2, True)
    assert not judge(program, WALKER, running, samples).good
    wrong = sample(MIDDLE, tid=8, reason="no execution context")
    assert not judge(program, WALKER, running, [*samples, wrong], one_context=True).good


def test_no_samples_at_all_are_not_good() -> None:
    assert not cell().good


def test_a_sample_is_held_against_what_its_own_thread_printed() -> None:
    other = (MIDDLE, BASE)
    running = Spinning(7, ((7, STACK), (8, other)))
    program = Program("a.rb", threads=2)
    right = [sample(*STACK), sample(*other, tid=8)]
    silent = sample(BASE, tid=9)  # a thread that has printed nothing
    found = judge(program, WALKER, running, [*right, silent])
    assert (found.exact, found.samples, found.good) == (2, 2, True)
    assert not judge(program, WALKER, running, [*right, sample(*other)]).good


def test_a_thread_that_is_never_sampled_is_a_fault() -> None:
    found = judge(
        Program("a.rb", threads=2), WALKER, Spinning(7, ((7, STACK), (8, (BASE,)))), [sample(*STACK)]
    )
    assert (found.good, found.difference) == (False, "a thread that spins was never sampled")


def test_where_ruby_knows_no_ids_the_stack_is_that_of_any_thread() -> None:
    running = Spinning(7, ((0, STACK), (0, (MIDDLE, BASE))))
    program = Program("a.rb", threads=2)
    assert judge(program, WALKER, running, [sample(*STACK, tid=8), sample(MIDDLE, BASE, tid=9)]).good
    assert not judge(program, WALKER, running, [sample(*STACK, tid=8), sample(BASE, tid=9)]).good


def test_where_ids_are_not_known_a_native_thread_without_ruby_code_is_not_judged() -> None:
    running = Spinning(7, ((0, STACK),))
    found = judge(Program("a.rb"), WALKER, running, [sample(*STACK), sample(tid=9)])
    assert (found.exact, found.samples, found.good) == (1, 1, True)
    assert not judge(Program("a.rb"), WALKER, running, [sample(*STACK), sample(reason="unmapped pc")]).good


def test_a_cell_says_what_it_counted() -> None:
    assert text(None) == "not run"
    assert text(Cell("a", WALKER, 200, 200)) == "200 of 200"
    assert text(Cell("a", CHAIN, 200, 200, cut=200)) == "200 of 200, cut"
    assert text(Cell("a", WALKER, 199, 200, difference="frame 1")) == "**199 of 200**"
    assert text(Cell("a", WALKER, 200, 200, difference="a thread")) == "**200 of 200**"


def test_the_tables_replace_those_of_the_page_and_nothing_above(tmp_path: Path) -> None:
    page = tmp_path / "rubies.md"
    page.write_text(f"# Rubies\n\nBy hand.\n\n{MARK}\nold\n")
    first = str(PROGRAMS[0])
    found = {
        Root("3.1", "3.1.2-7", tmp_path): [Cell(first, WALKER, 9, 9)],
        Root("2.7", "2.7.4-1", tmp_path): [Cell(first, WALKER, 8, 9, difference="frame 1 of 2")],
    }
    write(tables(found), page)
    text_of = page.read_text()
    assert text_of.startswith(f"# Rubies\n\nBy hand.\n\n{MARK}\n## ")
    assert "\nold\n" not in text_of
    assert "| program | 2.7 | 3.1 |" in text_of
    assert f"| {first} | **8 of 9** | 9 of 9 |" in text_of
    assert text_of.endswith(
        f"- 2.7, {WALKER}: 1 of {len(PROGRAMS)} programs differ, the first is {first}: frame 1 of 2\n"
    )


def test_a_page_without_a_place_for_tables_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "rubies.md"
    page.write_text("# Rubies\n")
    with pytest.raises(ValueError, match="has no line"):
        write(["x"], page)
    assert page.read_text() == "# Rubies\n"
