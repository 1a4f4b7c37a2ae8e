# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest
from ruby_memory import BASE, RubyMemory

from rubyunwind.abi import RubyTLSInfo, RubyTLSKind
from rubyunwind.process.mappings import Mapping
from rubyunwind.ruby.image import ImageSymbol, Relocation, RubyImage, TLSSegment
from rubyunwind.ruby.layouts import find_layout
from rubyunwind.ruby.tls import find_tls, thread_context, uses_musl

DTPMOD, TPOFF, TLSDESC = {False: 16, True: 1028}, {False: 18, True: 1030}, {False: 36, True: 1031}


def mapping(path: str) -> Mapping:
    return Mapping(0, 4096, True, False, True, 0, 1, 1, path)


MUSL = mapping("/lib/ld-musl-x86_64.so.1")


@pytest.fixture
def memory() -> RubyMemory:
    return RubyMemory(find_layout("3.1.2").layout)


def image(
    *relocations: Relocation,
    offset: int = 8,
    aarch64: bool = False,
    segment: TLSSegment | None = None,
    program: bool = False,
) -> RubyImage:
    return RubyImage(
        path="libruby.so",
        bias=BASE,
        aarch64=aarch64,
        is_program=program,
        symbols={"ruby_current_ec": ImageSymbol(offset, 8)},
        tls_segment=segment,
        tls_relocations=relocations,
    )


@pytest.mark.parametrize("symbol", ["ruby_current_ec", ""])
def test_the_module_id_is_what_the_dynamic_linker_wrote(memory: RubyMemory, symbol: str) -> None:
    slot = memory.words(3)
    relocation = Relocation(slot - BASE, DTPMOD[False], symbol, 0)
    tls = find_tls(image(relocation), memory, [])
    assert tls == RubyTLSInfo(kind=RubyTLSKind.DTV, module_id=3, offset=8, dtv_offset=8, dtv_entry_size=16)


@pytest.mark.parametrize(
    ("aarch64", "mappings", "dtv_offset", "entry_size"),
    [(False, [], 8, 16), (True, [], 0, 16), (False, [MUSL], 8, 8), (True, [MUSL], -8, 8)],
)
def test_the_thread_vector_differs_by_architecture_and_libc(
    memory: RubyMemory, aarch64: bool, mappings: list[Mapping], dtv_offset: int, entry_size: int
) -> None:
    relocation = Relocation(memory.words(1) - BASE, DTPMOD[aarch64], "", 0)
    tls = find_tls(image(relocation, aarch64=aarch64), memory, mappings)
    assert tls is not None
    assert (tls.dtv_offset, tls.dtv_entry_size) == (dtv_offset, entry_size)


@pytest.mark.parametrize(
    ("path", "musl"),
    [
        ("/lib/ld-musl-x86_64.so.1", True),
        ("/lib/ld-musl-aarch64.so.1", True),
        ("/lib/libc.musl-x86_64.so.1", True),
        ("/usr/lib/x86_64-linux-musl/libc.so", True),  # what Debian's link leads to
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", False),
        ("/usr/lib/x86_64-linux-gnu/libc-2.31.so", False),
        ("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", False),
        ("/app/musl/libruby.so.3.3.8", False),
        ("[vdso]", False),
    ],
)
def test_the_c_library_is_known_by_the_file_that_is_mapped(path: str, musl: bool) -> None:
    assert uses_musl([mapping("/usr/bin/ruby"), mapping(path)]) is musl


@pytest.mark.parametrize("aarch64", [False, True])
def test_a_thread_of_musl_reads_its_own_context(memory: RubyMemory, aarch64: bool) -> None:
    """As musl's __copy_tls lays it out: the number of modules, then one word for each module's block."""
    blocks = [memory.words(0, context) for context in (0xAB10, 0xAB20)]
    vectors = [memory.words(2, memory.words(0, 0xDEAD), block) for block in blocks]
    # struct pthread: {self, dtv, ...} at the thread pointer, or {..., canary, dtv} that ends there.
    pointers = [
        memory.words(0, 77, vector) + 24 if aarch64 else memory.words(0, vector, 77) for vector in vectors
    ]
    slot = memory.words(2) - BASE
    tls = find_tls(image(Relocation(slot, DTPMOD[aarch64], "", 0), aarch64=aarch64), memory, [MUSL])
    assert tls is not None
    assert [thread_context(memory, tls, pointer) for pointer in pointers] == [0xAB10, 0xAB20]
    # The same of a module that came with dlopen, whose descriptor leads to {module id, offset}.
    slot = memory.words(0x7F0000001000, memory.words(2, 8, 0)) - BASE
    described = find_tls(image(Relocation(slot, TLSDESC[aarch64], "", 8), aarch64=aarch64), memory, [MUSL])
    assert described == tls


def test_another_variables_relocation_is_not_used(memory: RubyMemory) -> None:
    relocation = Relocation(memory.words(3) - BASE, DTPMOD[False], "errno", 0)
    assert find_tls(image(relocation), memory, []) is None


def test_a_slot_that_is_not_filled_in_yet_gives_none(memory: RubyMemory) -> None:
    for kind in (DTPMOD, TPOFF, TLSDESC):
        relocation = Relocation(memory.words(0, 0) - BASE, kind[False], "ruby_current_ec", 0)
        assert find_tls(image(relocation), memory, []) is None


def test_an_unreadable_slot_gives_none(memory: RubyMemory) -> None:
    assert find_tls(image(Relocation(1 << 40, DTPMOD[False], "", 0)), memory, []) is None


@pytest.mark.parametrize("aarch64", [False, True])
def test_a_static_descriptor_holds_the_offset(memory: RubyMemory, aarch64: bool) -> None:
    slot = memory.words(0x7F0000001000, -24 & (1 << 64) - 1)
    relocation = Relocation(slot - BASE, TLSDESC[aarch64], "", 8)
    tls = find_tls(image(relocation, aarch64=aarch64), memory, [])
    assert tls == RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=-24)


def test_a_dynamic_descriptor_leads_to_module_and_offset(memory: RubyMemory) -> None:
    slot = memory.words(0x7F0000001000, memory.words(5, 40, 1))
    tls = find_tls(image(Relocation(slot - BASE, TLSDESC[True], "", 8), aarch64=True), memory, [])
    assert tls is not None
    assert (tls.kind, tls.module_id, tls.offset) == (RubyTLSKind.DTV, 5, 40)


def test_an_initial_exec_slot_holds_the_offset(memory: RubyMemory) -> None:
    slot = memory.words(-8 & (1 << 64) - 1)
    other = Relocation(memory.words(-64 & (1 << 64) - 1) - BASE, TPOFF[False], "", 0)
    tls = find_tls(image(other, Relocation(slot - BASE, TPOFF[False], "", 8)), memory, [])
    assert tls == RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=-8)


@pytest.mark.parametrize(
    ("segment", "aarch64", "expected"),
    [
        # x86_64: the block ends at the thread pointer; aarch64: it starts behind two words.
        (TLSSegment(0x1000, 0x10, 8), False, 8 - 0x10),
        (TLSSegment(0x1000, 0x14, 16), False, 8 - 0x20),
        (TLSSegment(0x1008, 0x10, 16), False, 8 - 0x20 + 8),
        (TLSSegment(0x1000, 0x10, 8), True, 8 + 16),
        (TLSSegment(0x1000, 0x10, 64), True, 8 + 64),
        (TLSSegment(0x1008, 0x10, 16), True, 8 + 24),
    ],
)
def test_a_program_has_its_variables_at_a_fixed_distance(
    memory: RubyMemory, segment: TLSSegment, aarch64: bool, expected: int
) -> None:
    tls = find_tls(image(segment=segment, aarch64=aarch64, program=True), memory, [])
    assert tls == RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=expected)


def test_a_hidden_variable_gives_none(memory: RubyMemory) -> None:
    assert find_tls(RubyImage(path="", bias=BASE), memory, []) is None


def test_a_thread_reads_its_own_context(memory: RubyMemory) -> None:
    block = memory.words(0, 0xABC0)
    vector = memory.words(1, 0, 77, 0, block, 0)
    pointer = memory.words(0, vector)
    tls = RubyTLSInfo(kind=RubyTLSKind.DTV, module_id=2, offset=8, dtv_offset=8, dtv_entry_size=16)
    assert thread_context(memory, tls, pointer) == 0xABC0
    assert thread_context(memory, RubyTLSInfo(kind=RubyTLSKind.STATIC, offset=8), block) == 0xABC0


@pytest.mark.parametrize("unallocated", [0, (1 << 64) - 1])
def test_a_thread_without_a_block_has_no_context(memory: RubyMemory, unallocated: int) -> None:
    pointer = memory.words(0, memory.words(1, 0, unallocated, 0))
    tls = RubyTLSInfo(kind=RubyTLSKind.DTV, module_id=1, offset=8, dtv_offset=8, dtv_entry_size=16)
    assert thread_context(memory, tls, pointer) == 0
