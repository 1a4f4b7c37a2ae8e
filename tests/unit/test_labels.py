# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ruby_memory import RubyMemory

from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.symbolize import RubySymbolizer

METHOD, BLOCK, CLASS, RESCUE, ENSURE, EVAL, MAIN = 1, 2, 3, 4, 5, 6, 7
QUALIFIED = ["3.3.8", "3.4.1", "4.0.6"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def process(
    version: str, names: list[str] | None = None, **options: Any
) -> tuple[RubyMemory, Any, dict[str, int]]:
    memory = RubyMemory(find_layout(version).layout)
    table, ids = memory.identifiers(names) if names else (0, {})
    return memory, RubySymbolizer(memory, runtime(memory, table), **options), ids


def runtime(memory: RubyMemory, table: int, found: Callable[[], int] = lambda: 0) -> Any:
    """Make a runtime whose symbol table is at `table`, or where `found` says when it is searched."""
    return SimpleNamespace(
        layout=memory.layout, identifier_table=table, search_identifiers=lambda _memory: found()
    )


def code_of(memory: RubyMemory, body: int) -> int:
    return memory.u64(body + memory.layout.body_iseq_encoded)


def test_a_frame_has_path_line_and_label() -> None:
    memory, symbolizer, _ = process("3.1.2")
    _, body = memory.iseq("block in run", "lib/a.rb", kind=BLOCK, lines=memory.one_line(17))
    frame = symbolizer.ruby_frame(body, code_of(memory, body) + 16, 0)
    assert frame == Frame("ruby", "block in run", "block in run", "lib/a.rb", 17)


def test_before_3_3_the_name_is_the_label_whatever_the_method_entry() -> None:
    memory, symbolizer, _ = process("3.1.2")
    _, body = memory.iseq("run", lines=memory.one_line(1))
    assert symbolizer.ruby_frame(body, code_of(memory, body), memory.cref()).name == "run"


@pytest.mark.parametrize("version", QUALIFIED)
def test_names_carry_the_class_from_3_3_on_and_labels_from_3_4_on(version: str) -> None:
    memory, symbolizer, ids = process(version, ["run"])
    method = memory.method_entry(memory.klass("Outer::Foo"), ids["run"])
    iseq, body = memory.iseq("run", lines=memory.one_line(1))
    middle, _ = memory.iseq("block in run", kind=BLOCK, lines=memory.one_line(2), parent=iseq, local=iseq)
    _, block = memory.iseq(
        "block (2 levels) in run", kind=BLOCK, lines=memory.one_line(2), parent=middle, local=iseq
    )
    outer = symbolizer.ruby_frame(body, code_of(memory, body), method)
    inner = symbolizer.ruby_frame(block, code_of(memory, block), method)
    assert outer.name == "Outer::Foo#run"
    assert inner.name == "block (2 levels) in Outer::Foo#run"
    assert (outer.label == outer.name) == (version != "3.3.8")
    assert inner.label == (inner.name if version != "3.3.8" else "block (2 levels) in run")


@pytest.mark.parametrize(
    ("version", "label"), [("3.3.8", "block in run"), ("3.4.1", "block (2 levels) in run")]
)
def test_from_3_4_on_levels_are_counted_and_not_taken_from_the_compilers_text(
    version: str, label: str
) -> None:
    """Code of `END` in a block lies two blocks deep, and the compiler calls it "block in"."""
    memory, symbolizer, _ = process(version, ["run"])
    method, _ = memory.iseq("run", lines=memory.one_line(1))
    once, _ = memory.iseq("block in run", kind=BLOCK, lines=memory.one_line(2), parent=method, local=method)
    clause, _ = memory.iseq("rescue in block in run", kind=4, parent=once, local=method)
    _, body = memory.iseq("block in run", kind=BLOCK, lines=memory.one_line(3), parent=clause, local=method)
    assert symbolizer.ruby_frame(body, code_of(memory, body)).label == label


@pytest.mark.parametrize("version", ["3.3.8", "3.4.1"])
def test_code_that_runs_once_is_a_block_in_its_method(version: str) -> None:
    memory, symbolizer, ids = process(version, ["run"])
    entry = memory.method_entry(memory.klass("Foo"), ids["run"])
    method, _ = memory.iseq("run", lines=memory.one_line(1))
    _, body = memory.iseq("block in run", kind=8, lines=memory.one_line(2), parent=method, local=method)
    frame = symbolizer.ruby_frame(body, code_of(memory, body), entry)
    assert frame.name == "block in Foo#run"


@pytest.mark.parametrize("version", QUALIFIED)
def test_singleton_methods_have_a_dot_and_modules_a_hash(version: str) -> None:
    memory, symbolizer, ids = process(version, ["run"])
    iseq, body = memory.iseq("run", lines=memory.one_line(1))
    pc = code_of(memory, body)
    klass = memory.klass("Foo")
    singleton = memory.method_entry(memory.klass(None, attached=klass), ids["run"])
    module = memory.method_entry(memory.klass("Mod", kind=3), ids["run"])
    assert symbolizer.ruby_frame(body, pc, singleton).name == "Foo.run"
    assert symbolizer.ruby_frame(body, pc, module).name == "Mod#run"
    assert iseq


@pytest.mark.parametrize("version", QUALIFIED)
def test_what_has_no_lasting_class_name_keeps_the_plain_label(version: str) -> None:
    memory, symbolizer, ids = process(version, ["run"])
    _, body = memory.iseq("run", lines=memory.one_line(1))
    pc = code_of(memory, body)
    plain_object = memory.words(0x1, 0, 0, 0, 0)
    for owner in (
        memory.klass(None),
        memory.klass("#<Class:0x00007f>::Inner"),
        memory.klass(None, attached=plain_object),
        plain_object,
        0x1000,
    ):
        assert symbolizer.ruby_frame(body, pc, memory.method_entry(owner, ids["run"])).name == "run"
    # Class bodies and the top level have a cref there, or nothing.
    assert symbolizer.ruby_frame(body, pc, memory.cref()).name == "run"
    assert symbolizer.ruby_frame(body, pc, 0).name == "run"


def test_an_svar_in_front_of_the_method_entry_is_looked_through() -> None:
    memory, symbolizer, ids = process("3.4.1", ["run"])
    method = memory.method_entry(memory.klass("Foo"), ids["run"])
    _, body = memory.iseq("run", lines=memory.one_line(1))
    assert symbolizer.ruby_frame(body, code_of(memory, body), memory.svar(method)).name == "Foo#run"


def test_svars_that_point_at_each_other_end() -> None:
    memory, symbolizer, _ = process("3.4.1")
    svar = memory.svar(0)
    memory.poke(svar + 8, svar)
    frame = symbolizer.cfunc_frame(svar)
    assert (frame.kind, frame.name) == ("unknown", "[C function that was freed]")
    assert frame.label is not None
    assert "no method entry" in frame.label


def test_a_rescue_is_named_after_its_method_from_3_4_on() -> None:
    for version, label in (("3.1.2", "rescue in run"), ("3.3.8", "rescue in run"), ("3.4.1", "Foo#run")):
        memory, symbolizer, ids = process(version, ["run"])
        iseq, _ = memory.iseq("run", lines=memory.one_line(1))
        _, rescue = memory.iseq(
            "rescue in run", kind=RESCUE, lines=memory.one_line(2), parent=iseq, local=iseq
        )
        method = 0
        if version != "3.1.2":
            method = memory.method_entry(memory.klass("Foo"), ids["run"])
        assert symbolizer.ruby_frame(rescue, code_of(memory, rescue), method).label == label


@pytest.mark.parametrize(
    ("version", "hides"), [("3.1.2", False), ("3.3.8", False), ("3.4.1", True), ("4.0.6", True)]
)
def test_a_rescue_or_ensure_hides_the_frame_below_it_from_3_4_on(version: str, hides: bool) -> None:
    memory, symbolizer, _ = process(version)
    bodies = [
        memory.iseq("run", kind=kind, lines=memory.one_line(2))[1] for kind in (METHOD, BLOCK, RESCUE, ENSURE)
    ]
    assert [symbolizer.folds(body) for body in bodies] == [False, False, hides, hides]
    assert not symbolizer.folds(0x1000)  # nothing can be read there


def test_an_eval_that_is_its_own_parent_does_not_hang() -> None:
    memory, symbolizer, ids = process("3.4.1", ["run"])
    iseq, body = memory.iseq("run", kind=EVAL, lines=memory.one_line(1))
    memory.poke(body + memory.layout.body_parent_iseq, iseq)
    method = memory.method_entry(memory.klass("Foo"), ids["run"])
    assert symbolizer.ruby_frame(body, code_of(memory, body), method).label == "run"


def test_blocks_at_the_top_level_and_in_class_bodies_are_not_qualified() -> None:
    memory, symbolizer, ids = process("3.4.1", ["run"])
    main, _ = memory.iseq("<main>", kind=MAIN)
    _, block = memory.iseq("block in <main>", kind=BLOCK, lines=memory.one_line(3), parent=main, local=main)
    method = memory.method_entry(memory.klass("Foo"), ids["run"])
    assert symbolizer.ruby_frame(block, code_of(memory, block), method).label == "block in <main>"


@pytest.mark.parametrize("version", ["2.5.0", "2.7.4", "3.1.2", "3.3.8", "3.4.1", "4.0.6"])
def test_a_c_function_has_its_callers_place_and_its_own_name(version: str) -> None:
    memory, symbolizer, ids = process(version, ["each", "<=>"])
    caller = Frame("ruby", "run", "run", "/a.rb", 12)
    owner = memory.klass("Array") if memory.layout.class_classpath else 8
    frame = symbolizer.cfunc_frame(memory.method_entry(owner, ids["each"]), caller)
    assert (frame.kind, frame.path, frame.line) == ("cfunc", "/a.rb", 12)
    assert frame.name == ("Array#each" if memory.layout.class_classpath else "each")
    assert frame.label == ("Array#each" if version >= "3.4" else "each")


def test_operators_are_their_own_serials() -> None:
    memory, symbolizer, _ = process("3.1.2", ["each"])
    assert symbolizer.cfunc_frame(memory.method_entry(8, 140)).label == "sym140"


def test_a_c_function_whose_name_cannot_be_read_still_is_one() -> None:
    memory, symbolizer, _ = process("3.1.2", ["each"])
    frame = symbolizer.cfunc_frame(memory.method_entry(8, 1 << 40))
    assert frame.kind == "cfunc"
    assert frame.label is None
    assert hex(1 << 40) in frame.name


def test_bad_addresses_give_unknown_frames_with_the_reason() -> None:
    memory, symbolizer, _ = process("3.1.2")
    for address in (0, 8, 0x1001, (1 << 64) - 8):
        frame = symbolizer.ruby_frame(address, 0, 0)
        assert (frame.kind, frame.name) == ("unknown", "[Ruby code that cannot be read]")
        assert "cannot read" in str(frame.label)
        assert symbolizer.cfunc_frame(address).kind == "unknown"
    _, odd = memory.iseq(kind=77)
    frame = symbolizer.ruby_frame(odd, 0, 0)
    assert (frame.kind, frame.name) == ("unknown", "[Ruby code that was freed]")
    assert "no instruction sequence (type 77)" in str(frame.label)


@pytest.mark.parametrize("version", ["3.1.2", "3.4.1"])
def test_names_known_before_the_process_ended_stay(version: str) -> None:
    clock = Clock()
    memory, symbolizer, ids = process(version, ["run"], clock=clock, recheck_after=1.0)
    owner = memory.klass("Foo") if memory.layout.class_classpath else 8
    method = memory.method_entry(owner, ids["run"])
    _, body = memory.iseq("run", lines=memory.one_line(4))
    _, unseen = memory.iseq("unseen")
    pc = code_of(memory, body)
    ruby, cfunc = symbolizer.ruby_frame(body, pc, method), symbolizer.cfunc_frame(method)
    memory.block.clear()
    for clock.now in (0.5, 1.5, 9.0):
        assert symbolizer.ruby_frame(body, pc, method) is ruby
        assert symbolizer.cfunc_frame(method) == cfunc
    assert symbolizer.ruby_frame(unseen, 0, 0).kind == "unknown"
    # A place in known code that was not seen before: its line is gone, its name is not.
    later = symbolizer.ruby_frame(body, pc + 8, method)
    assert (later.kind, later.name) == ("ruby", ruby.name)


def test_the_end_of_a_process_is_noticed_once_an_interval_not_at_every_frame() -> None:
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock, recheck_after=1.0)
    _, body = memory.iseq("run", lines=memory.one_line(4))
    pc = code_of(memory, body)
    symbolizer.ruby_frame(body, pc, 0)
    memory.block.clear()
    clock.now = 2.0
    reads = memory.reads
    for _ in range(5):
        symbolizer.ruby_frame(body, pc, 0)
    assert memory.reads == reads + 1


def test_a_frame_that_compiled_code_has_not_filled_in_has_no_line() -> None:
    memory, symbolizer, _ = process("3.1.2")
    _, body = memory.iseq("run", "/a.rb", lines=memory.one_line(1))
    assert symbolizer.ruby_frame(body, 0x10, 0) == Frame("ruby", "run", "run", "/a.rb", 0)


def test_a_known_frame_is_not_read_again_until_the_interval_is_over() -> None:
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock, recheck_after=1.0)
    _, body = memory.iseq("run", lines=memory.one_line(4))
    pc = code_of(memory, body)
    first = symbolizer.ruby_frame(body, pc, 0)
    reads = memory.reads
    assert symbolizer.ruby_frame(body, pc, 0) is first
    assert memory.reads == reads
    clock.now = 1.5
    assert symbolizer.ruby_frame(body, pc, 0) is first
    assert memory.reads == reads + 3  # its head, and label and path, whose texts are in themselves


def test_an_iseq_of_the_same_shape_whose_label_has_another_text_is_another_one() -> None:
    """Code that is loaded again and again finds all of its memory again: only the strings' text differs."""
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock, recheck_after=1.0)
    _, body = memory.iseq("run_1", lines=memory.one_line(4))
    pc = code_of(memory, body)
    assert symbolizer.ruby_frame(body, pc, 0).label == "run_1"
    assert memory.block.count(b"run_1") == 1
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 0.5
    assert symbolizer.ruby_frame(body, pc, 0).label == "run_1"
    clock.now = 1.5
    assert symbolizer.ruby_frame(body, pc, 0).label == "run_2"
    assert symbolizer.replaced == 1
    assert symbolizer.believed_for(clock.now) < 0.01 < symbolizer.believed_for(clock.now + 60)


def test_where_code_changes_what_is_read_long_after_the_sample_is_no_name_for_it() -> None:
    """Which of the two ran cannot be told then; what was there before the sample and still is can."""
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock, recheck_after=1.0)
    _, body = memory.iseq("run_1", lines=memory.one_line(4))
    _, fresh = memory.iseq("fresh", lines=memory.one_line(4))
    pc = code_of(memory, body)
    clock.now = 9.0
    assert symbolizer.ruby_frame(body, pc, 0, (0.0, 0.0)).label == "run_1"  # nothing was seen to change yet
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 11.0
    assert symbolizer.ruby_frame(body, pc, 0, (10.5, 10.5)).kind == "unknown"
    assert symbolizer.ruby_frame(body, pc, 0, (11.0, 11.0)).label == "run_2"
    assert symbolizer.ruby_frame(fresh, code_of(memory, fresh), 0, (10.5, 10.5)).kind == "unknown"
    clock.now = 11.5
    assert symbolizer.ruby_frame(body, pc, 0, (11.2, 11.2)).label == "run_2"
    assert symbolizer.ruby_frame(fresh, code_of(memory, fresh), 0, (11.2, 11.2)).label == "fresh"


def test_other_code_that_was_read_once_is_no_name_for_an_older_sample_either() -> None:
    """A batch has several stacks with the same code: for none of them it was there soon enough."""
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock)
    _, body = memory.iseq("run_1", lines=memory.one_line(4))
    pc = code_of(memory, body)
    symbolizer.ruby_frame(body, pc, 0, (0.0, 0.0))
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 1.0
    for _ in range(3):
        frame = symbolizer.ruby_frame(body, pc, 0, (0.9, 0.9))
        assert (frame.kind, "too long after" in (frame.label or "")) == ("unknown", True)
    # Samples of one stack are from before and after: not all of them are of that code.
    clock.now = 1.5
    assert symbolizer.ruby_frame(body, pc, 0, (0.9, 1.4)).kind == "unknown"
    assert symbolizer.ruby_frame(body, pc, 0, (1.1, 1.4)).label == "run_2"


def test_code_is_known_since_it_was_read_not_since_it_was_to_be_read() -> None:
    """A recorder may have to wait for a CPU in the middle of its work."""
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock)
    _, body = memory.iseq("run_1", lines=memory.one_line(4))
    pc = code_of(memory, body)
    symbolizer.ruby_frame(body, pc, 0, (0.0, 0.0))
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    plain = memory.read

    def read(address: int, length: int) -> bytes:
        clock.now += 0.05
        return plain(address, length)

    memory.read = read  # type: ignore[method-assign]
    clock.now = 1.0
    assert symbolizer.ruby_frame(body, pc, 0, (0.999, 0.999)).kind == "unknown"


def test_a_look_at_code_from_before_the_last_sample_proves_nothing_where_code_changes() -> None:
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock)
    (_, one), (_, two) = (memory.iseq(name, lines=memory.one_line(4)) for name in ("run_1", "walk_1"))
    first, second = code_of(memory, one), code_of(memory, two)
    symbolizer.ruby_frame(one, first, 0, (0.0, 0.0))
    grounds: set[Any] = set()
    symbolizer.ruby_frame(two, second, 0, (0.0, 0.0), grounds)
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 1.0
    symbolizer.ruby_frame(one, first, 0, (0.9, 0.9))
    assert symbolizer.believed_for(0.9) == 0
    assert symbolizer.proven(grounds, (0.9, 0.9)) == 1.0
    memory.block[:] = memory.block.replace(b"walk_1", b"walk_2")
    clock.now = 1.001
    assert symbolizer.proven(grounds, (0.9, 0.999)) == 1.0  # it was looked at after that
    assert symbolizer.proven(grounds, (1.0005, 1.0005)) is None
    assert symbolizer.ruby_frame(two, second, 0, (1.0005, 1.0005)).label == "walk_2"


def test_memory_that_is_gone_where_code_changes_may_have_held_other_code() -> None:
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock)
    (_, one), (_, two) = (memory.iseq(name, lines=memory.one_line(4)) for name in ("run_1", "walk"))
    first, second = code_of(memory, one), code_of(memory, two)
    symbolizer.ruby_frame(one, first, 0, (0.0, 0.0))
    symbolizer.ruby_frame(two, second, 0, (0.0, 0.0))
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 1.0
    symbolizer.ruby_frame(one, first, 0, (1.0, 1.0))
    assert symbolizer.ruby_frame(two, second, 0, (1.0, 1.0)).label == "walk"
    memory.block.clear()
    clock.now = 2.0
    assert symbolizer.ruby_frame(two, second, 0, (1.005, 1.005)).label == "walk"
    assert symbolizer.ruby_frame(two, second, 0, (1.5, 1.5)).kind == "unknown"


@pytest.mark.parametrize("member", ["location_label", "location_pathobj"])
def test_code_that_changes_while_it_is_read_has_no_name(member: str) -> None:
    memory, symbolizer, _ = process("3.1.2")
    _, body = memory.iseq("run_1", "/a_1.rb", lines=memory.one_line(4))
    pc = code_of(memory, body)
    text = {"location_label": b"run_", "location_pathobj": b"/a_"}[member]
    plain, seen = memory.read, []

    def read(address: int, length: int) -> bytes:
        data = plain(address, length)
        if text + b"1" in data:  # its text was read: other code takes its place
            seen.append(address)
            memory.block[:] = memory.block.replace(text + b"1", text + b"2")
        return data

    memory.read = read  # type: ignore[method-assign]
    frame = symbolizer.ruby_frame(body, pc)
    assert (frame.kind, len(seen)) == ("unknown", 1)
    assert "while it was read" in (frame.label or "")


def test_a_c_function_that_was_read_too_late_has_no_name() -> None:
    clock = Clock()
    memory, symbolizer, ids = process("3.1.2", ["each", "map"], clock=clock)
    _, body = memory.iseq("run_1", lines=memory.one_line(4))
    pc = code_of(memory, body)
    symbolizer.ruby_frame(body, pc, 0, (0.0, 0.0))
    each, mapped = (memory.method_entry(8, ids[name]) for name in ("each", "map"))
    assert symbolizer.cfunc_frame(each, None, (0.0, 0.0)).label == "each"
    memory.block[:] = memory.block.replace(b"run_1", b"run_2")
    clock.now = 1.0
    symbolizer.ruby_frame(body, pc, 0, (0.9, 0.9))
    assert symbolizer.cfunc_frame(each, None, (0.9, 0.9)).label == "each"
    assert symbolizer.cfunc_frame(mapped, None, (0.9, 0.9)).kind == "unknown"
    assert symbolizer.cfunc_frame(mapped, None, (1.0, 1.0)).label == "map"


@pytest.mark.parametrize("version", ["2.7.4", "3.1.2", "3.4.1"])
@pytest.mark.parametrize("member", ["location_label", "location_pathobj"])
def test_a_string_of_the_program_in_the_place_of_a_freed_name_is_no_name(version: str, member: str) -> None:
    memory, symbolizer, _ = process(version)
    _, body = memory.iseq("run", lines=memory.one_line(3))
    place = body + memory.layout.body_location + getattr(memory.layout, member)
    memory.poke(place, memory.string("0-xxxx", frozen=False))
    frame = symbolizer.ruby_frame(body, code_of(memory, body))
    assert (frame.kind, frame.name) == ("unknown", "[Ruby code that was freed]")
    assert "may change" in (frame.label or "")


def test_memory_that_became_another_iseq_gets_the_new_name() -> None:
    clock = Clock()
    memory, symbolizer, _ = process("3.1.2", clock=clock, recheck_after=1.0)
    _, body = memory.iseq("old", lines=memory.one_line(4))
    pc = code_of(memory, body)
    assert symbolizer.ruby_frame(body, pc, 0).label == "old"
    label = body + memory.layout.body_location + memory.layout.location_label
    memory.poke(label, memory.string("new"))
    assert symbolizer.ruby_frame(body, pc, 0).label == "old"
    clock.now = 2.0
    assert symbolizer.ruby_frame(body, pc, 0).label == "new"


def test_clear_forgets_at_once() -> None:
    memory, symbolizer, _ = process("3.1.2", clock=Clock())
    _, body = memory.iseq("old", lines=memory.one_line(4))
    pc = code_of(memory, body)
    symbolizer.ruby_frame(body, pc, 0)
    memory.poke(body + memory.layout.body_location + memory.layout.location_label, memory.string("new"))
    symbolizer.clear()
    assert symbolizer.ruby_frame(body, pc, 0).label == "new"


def test_a_class_that_is_named_later_is_named_then() -> None:
    clock = Clock()
    memory, symbolizer, ids = process("3.4.1", ["run"], clock=clock, recheck_after=1.0)
    klass = memory.klass(None)
    method = memory.method_entry(klass, ids["run"])
    _, body = memory.iseq("run", lines=memory.one_line(1))
    pc = code_of(memory, body)
    assert symbolizer.ruby_frame(body, pc, method).label == "run"
    assert memory.layout.class_classpath is not None
    memory.poke(klass + memory.layout.class_classpath, memory.string("Named"))
    clock.now = 2.0
    assert symbolizer.ruby_frame(body, pc, method).label == "Named#run"


def test_caches_do_not_grow_past_their_size() -> None:
    memory, symbolizer, _ = process("3.1.2", cache_size=4, clock=Clock())
    for number in range(20):
        _, body = memory.iseq(f"m{number}", lines=memory.one_line(number))
        assert symbolizer.ruby_frame(body, code_of(memory, body), 0).label == f"m{number}"
    assert len(symbolizer._frames) == 4
    assert len(symbolizer._known._codes) == 4


def test_a_child_that_ended_is_named_by_the_process_that_forked_it() -> None:
    memory, parent, ids = process("3.1.2", ["each"])
    _, body = memory.iseq("run", lines=memory.one_line(3))
    pc, method = code_of(memory, body), memory.method_entry(8, ids["each"])
    gone = RubyMemory(memory.layout)
    child = RubySymbolizer(gone, runtime(memory, 0), forked_from=parent)
    frame = child.ruby_frame(body, pc, 0)
    assert frame == parent.ruby_frame(body, pc, 0)
    assert child.cfunc_frame(method, frame).label == "each"
    # What is not the parent's either stays unknown, also a pc that lies outside the code that it has there.
    assert child.ruby_frame(body, pc + (1 << 20), 0).kind == "unknown"
    assert child.cfunc_frame(body, frame).kind == "unknown"
    assert child.ruby_frame(method, pc, 0).kind == "unknown"
    del parent
    assert child.ruby_frame(body, pc, 0).kind == "unknown"


def test_a_symbol_table_that_was_not_there_yet_is_searched_when_a_name_is_wanted() -> None:
    """A stripped Ruby that only starts: its C functions have names as soon as their symbols are there."""
    memory, _, _ = process("3.1.2")
    table, ids = memory.identifiers(["each"])
    found, asked, clock = [0], [], Clock()

    def search() -> int:
        asked.append(clock.now)
        return found[0]

    symbolizer = RubySymbolizer(memory, runtime(memory, 0, search), clock=clock)
    method = memory.method_entry(8, ids["each"])
    for _ in range(4000):
        assert symbolizer.cfunc_frame(method).label is None
        clock.now += 0.001
    assert 3 < len(asked) < 14  # ever more seldom
    found[0] = table
    clock.now += 10
    assert symbolizer.cfunc_frame(method).label == "each"
    searches = len(asked)
    clock.now += 10
    assert symbolizer.cfunc_frame(memory.method_entry(8, ids["each"])).label == "each"
    assert len(asked) == searches


@pytest.mark.parametrize("version", ["2.5.0", "3.1.2", "4.0.6"])
def test_a_label_that_is_a_constant_of_ruby_is_known_without_reading_it(version: str) -> None:
    memory, symbolizer, _ = process(version)
    _, main = memory.iseq("<main>", kind=MAIN)
    _, method = memory.iseq("foobar", kind=METHOD)
    for body in (main, method):
        label = memory.u64(body + memory.layout.body_location + memory.layout.location_label)
        nowhere = 0x1000
        memory.write(label, struct.pack("<5Q", 0x5 | 1 << 11 | 1 << 13, 0, 6, nowhere, 0))
    assert symbolizer.ruby_frame(main, code_of(memory, main)).label == "<main>"
    assert symbolizer.ruby_frame(method, code_of(memory, method)).kind == "unknown"
