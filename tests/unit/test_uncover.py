# SPDX-License-Identifier: Apache-2.0
"""Hidden places in a process: used when what lies there agrees, and refused with a reason otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ruby_memory import BASE, RubyMemory

from rubyunwind.abi import RubyTLSInfo, RubyTLSKind
from rubyunwind.process.mappings import Mapping
from rubyunwind.ruby.detect import describe_runtime
from rubyunwind.ruby.hidden import Collector, HiddenPlaces, Pointer, ThreadVariable
from rubyunwind.ruby.image import ImageSymbol, RubyImage
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.uncover import CollectorPlace, collector_place, hidden_context, uncover

MAPPING = Mapping(0x7F0000000000, 0x7F0000100000, True, False, True, 0, 1, 2, "/usr/lib/libruby-3.3.so.3.3.8")
VERSIONS = ["3.2.0", "3.3.8", "3.4.1", "4.0.6"]


class Process:
    """A stripped Ruby: VM, main ractor, main thread on its native thread, whose DTV leads to its context."""

    def __init__(self, version: str = "3.3.8", *, aarch64: bool = False) -> None:
        self.version = version
        self.memory = memory = RubyMemory(find_layout(version, aarch64=aarch64).layout)
        self.layout = layout = memory.layout
        assert layout.vm_main_ractor is not None
        assert layout.ractor_running_ec is not None
        assert layout.thread_native is not None
        assert layout.thread_tid is not None
        self.context = self.stack()
        self.vm, self.thread = memory.place(bytes(64)), memory.place(bytes(128))
        self.ractor, self.native = memory.place(bytes(layout.ractor_running_ec + 8)), memory.place(bytes(64))
        memory.poke(self.vm + layout.vm_main_ractor, self.ractor)
        memory.poke(self.vm + layout.vm_main_thread, self.thread)
        memory.poke(self.thread + layout.thread_vm - 8, self.ractor)
        memory.poke(self.thread + layout.thread_vm, self.vm)
        memory.poke(self.thread + layout.thread_ec, self.context)
        memory.poke(self.thread + layout.thread_native, self.native)
        memory.poke(self.context + layout.ec_thread_ptr, self.thread)
        memory.poke(self.ractor + layout.ractor_running_ec, self.context)
        self.variables = memory.words(self.vm, self.ractor)
        self.block = memory.words(0, 0, self.context)
        self.vector = memory.words(0, 0, self.block, 0)  # pairs; that of module 1 comes second
        thread_pointer = memory.words(0, self.vector)
        memory.poke(self.native + layout.thread_tid - 8, thread_pointer)
        self.slot, self.other_slot = memory.words(1, 16), memory.words(1, 0)
        self.hidden = HiddenPlaces(
            context=(
                ThreadVariable("module", 0, self.slot - BASE),
                ThreadVariable("module", 16, self.other_slot - BASE),
            ),
            thread_ptr=layout.ec_thread_ptr,
            vm=Pointer(self.variables - BASE),
            collector=Collector(0x518, 16, 5),
            main_ractor=Pointer(self.variables + 8 - BASE),
            running_thread=layout.ractor_running_ec,
            loop=(0x1000, 600),
        )

    def stack(self) -> int:
        memory, layout = self.memory, self.memory.layout
        iseq, body = memory.iseq("run", lines=memory.one_line(1))
        base = memory.place(bytes(8 * 256))
        frame = base + 8 * 256 - 2 * layout.cfp_size
        memory.poke(frame + layout.cfp_pc, memory.u64(body + layout.body_iseq_encoded) + 8)
        memory.poke(frame + layout.cfp_iseq, iseq)
        memory.poke(frame + layout.cfp_ep, memory.words(0, 0, 0x11110003) + 16)
        context = memory.words(base, 256, frame)
        memory.place(bytes(128))  # its other members
        return context

    @property
    def image(self) -> RubyImage:
        data = ((self.variables - BASE, 16),)
        return RubyImage(path=MAPPING.path, bias=BASE, hidden=self.hidden, writable=data)

    @property
    def uncovered(self) -> RubyImage:
        return uncover(self.image, self.memory, self.layout).image

    def context_info(self) -> tuple[RubyTLSInfo | None, str]:
        return hidden_context(self.uncovered, self.memory, [], self.layout)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_is_hidden_is_used_where_it_agrees(version: str) -> None:
    process = Process(version)
    runtime = describe_runtime(process.image, version, MAPPING, [], process.memory)
    assert runtime.check.result == "good"
    assert runtime.tls == RubyTLSInfo(
        kind=RubyTLSKind.DTV, module_id=1, offset=16, dtv_offset=8, dtv_entry_size=16
    )
    assert runtime.proc_info.current_ctx_ptr == process.variables + 8
    assert [(one.lower, one.upper) for one in runtime.interpreter_ranges] == [(0x1000, 0x1000 + 600)]
    assert runtime.collector == CollectorPlace(process.variables, 0x518, 16, 5)
    assert runtime.running_context(process.memory) == process.context
    note = next(note for note in runtime.notes if "hidden" in note)
    for name in ("ruby_current_vm_ptr", "ruby_single_main_ractor", "rb_vm_exec", "ruby_current_ec"):
        assert name in note


def test_a_variable_behind_a_pointer_is_reached_through_it() -> None:
    process = Process()
    pointers = process.memory.words(process.variables, process.variables + 8)
    process.hidden = replace(
        process.hidden,
        vm=Pointer(pointers - BASE, indirect=True),
        main_ractor=Pointer(pointers + 8 - BASE, True),
    )
    image = process.uncovered
    assert image.address("ruby_current_vm_ptr") == process.variables
    assert image.address("ruby_single_main_ractor") == process.variables + 8


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vm": Pointer(8)}, "ruby_current_vm_ptr: 0x8 is not in the data of the file"),
        ({"vm": Pointer(1 << 40, indirect=True)}, "ruby_current_vm_ptr: "),
        ({"main_ractor": Pointer(8)}, "ruby_single_main_ractor: 0x8 is not in the data"),
        ({"running_thread": 8}, "ruby_single_main_ractor: rb_thread_main has running_ec at 8, not 384"),
    ],
)
def test_a_place_that_cannot_be_is_refused(changes: dict[str, object], reason: str) -> None:
    process = Process()
    process.hidden = replace(process.hidden, **changes)  # type: ignore[arg-type]
    found = uncover(process.image, process.memory, process.layout)
    (text,) = found.reasons
    assert reason in text
    assert reason.partition(":")[0] not in found.found
    runtime = describe_runtime(process.image, process.version, MAPPING, [], process.memory)
    assert any(reason in note for note in runtime.notes)
    assert runtime.check.result == "good"  # the other one of the two leads there


def test_something_else_than_a_vm_is_refused_but_one_that_starts_is_not() -> None:
    process = Process()
    process.memory.poke(process.thread + process.layout.thread_vm, process.vm + 8)
    found = uncover(process.image, process.memory, process.layout)
    assert found.reasons == ("ruby_current_vm_ptr: what rb_during_gc reads is no VM",)
    # Its main thread is set last.
    process.memory.poke(process.vm + process.layout.vm_main_thread, 0)
    assert uncover(process.image, process.memory, process.layout).reasons == ()
    process.memory.poke(process.variables, 0)
    assert uncover(process.image, process.memory, process.layout).reasons == ()
    process.memory.poke(process.variables, 1 << 40)
    assert "ruby_current_vm_ptr: " in uncover(process.image, process.memory, process.layout).reasons[0]


def test_names_that_the_file_has_are_kept() -> None:
    process = Process()
    symbols = {
        name: ImageSymbol(1, 2) for name in ("ruby_current_vm_ptr", "ruby_single_main_ractor", "rb_vm_exec")
    }
    image = replace(process.image, symbols=symbols)
    found = uncover(image, process.memory, process.layout)
    assert found.image is image
    assert found.found == ()


def test_functions_that_disagree_about_the_context_are_not_believed() -> None:
    process = Process()
    process.memory.poke(process.other_slot + 8, 32)
    assert process.context_info() == (None, "functions that read it mean 2 different places")
    runtime = describe_runtime(process.image, process.version, MAPPING, [], process.memory)
    assert runtime.tls is None
    assert "Ruby 3.3.8: ruby_current_ec: functions that read it mean 2 different places" in runtime.notes


def test_another_layout_than_the_codes_is_noticed() -> None:
    process = Process()
    process.hidden = replace(process.hidden, thread_ptr=56)
    assert process.context_info() == (None, "rb_thread_current has thread_ptr at 56, not 48")


def test_a_place_that_holds_no_context_of_the_main_thread_is_refused() -> None:
    process = Process()
    other = process.stack()
    process.memory.poke(process.block + 16, other)
    tls, reason = process.context_info()
    assert tls is None
    assert "is not a context of that thread" in reason
    # Of the right thread, but with a stack that makes no sense.
    process.memory.poke(other + process.layout.ec_thread_ptr, process.thread)
    process.memory.poke(other + process.layout.ec_cfp, process.memory.u64(other) + 1)
    tls, reason = process.context_info()
    assert tls is None
    assert "is no frame of the stack" in reason


def test_a_thread_that_is_not_set_up_yet_is_no_objection() -> None:
    process = Process()
    process.memory.poke(process.block + 16, 0)
    assert process.context_info()[0] is not None
    process.memory.poke(process.thread + (process.layout.thread_native or 0), 0)
    assert process.context_info()[0] is not None
    process.memory.poke(process.thread + (process.layout.thread_native or 0), 1 << 40)
    assert process.context_info()[0] is None


def test_a_linker_that_has_not_run_has_no_place_yet() -> None:
    process = Process()
    process.memory.poke(process.slot, 0)
    process.memory.poke(process.other_slot, 0)
    assert process.context_info() == (None, "the dynamic linker has not filled in its place yet")
    process.hidden = replace(process.hidden, context=(ThreadVariable("module", 0, 1 << 40),))
    assert process.context_info()[0] is None


@pytest.mark.parametrize(
    ("variable", "words", "offset"),
    [
        (ThreadVariable("offset", -16), (0,), -16),
        (ThreadVariable("slot", 8), (-64 & (1 << 64) - 1,), -56),
        (ThreadVariable("descriptor", 8), (0x1000, 32), 40),
    ],
)
def test_static_places_are_distances_from_the_thread_pointer(
    variable: ThreadVariable, words: tuple[int, ...], offset: int
) -> None:
    process = Process(aarch64=True)
    slot = process.memory.words(*words)
    process.hidden = replace(process.hidden, context=(replace(variable, slot=slot - BASE),))
    image = replace(process.image, aarch64=True)
    tls, _ = hidden_context(image, process.memory, [], process.layout)
    assert tls == RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=offset)


def test_a_slot_that_is_zero_is_not_filled_in() -> None:
    process = Process(aarch64=True)
    for model in ("slot", "descriptor"):
        way = ThreadVariable(
            "slot" if model == "slot" else "descriptor", 0, process.memory.words(0, 0) - BASE
        )
        process.hidden = replace(process.hidden, context=(way,))
        image = replace(process.image, aarch64=True)
        assert hidden_context(image, process.memory, [], process.layout)[0] is None


def test_without_a_vm_nothing_says_where_garbage_is_collected() -> None:
    process = Process()
    assert collector_place(process.image) is None
    assert (
        collector_place(RubyImage(path="", bias=0, symbols={"ruby_current_vm_ptr": ImageSymbol(8, 8)}))
        is None
    )


def test_a_vm_that_the_code_does_not_tell_of_is_searched_for() -> None:
    process = Process()
    process.hidden = replace(process.hidden, vm=None, main_ractor=None)
    runtime = describe_runtime(process.image, process.version, MAPPING, [], process.memory)
    assert runtime.image.address("ruby_current_vm_ptr") == process.variables
    assert runtime.check.result == "good"
