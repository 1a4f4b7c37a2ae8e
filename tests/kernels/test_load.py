# SPDX-License-Identifier: Apache-2.0
"""The objects load on this kernel, and their programs run when a perf event ticks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from facts import note
from flavours import BUILDS

from rubyunwind.abi import Counter, ProgUnwind
from rubyunwind.bpf import Collection, load_collection_spec, perf_event_open
from rubyunwind.bpf.features import CO_RE, LEGACY
from rubyunwind.errors import BpfError
from rubyunwind.profiler.tracer import entry_of, load_tracer

CHAIN = {"native_tracer_entry", "unwind_native", "unwind_ruby", "unwind_stop"}
WALKER = {"native_tracer_walker"}
VERIFIED_AT_MOST = 100_000  # a tenth of BPF_COMPLEXITY_LIMIT_INSNS: room for verifiers that walk more


@pytest.fixture(scope="module", params=BUILDS, ids=["-".join(build) for build in BUILDS])
def collection(request: pytest.FixtureRequest) -> Iterator[Collection]:
    build, unwinder = request.param
    spec = load_collection_spec(debug_tracer=build == "debug", legacy=build == "legacy")
    start = time.perf_counter()
    try:
        loaded = load_tracer(spec, unwinder=unwinder)
    except BpfError as error:
        # Into the console log: what the verifier said is all there is to go by.
        print(error.log[-6000:])
        raise
    with loaded:
        if build != "debug":
            took = 1000 * (time.perf_counter() - start)
            verified = {name: item.stats().verified_instructions for name, item in loaded.programs.items()}
            flavour = LEGACY if build == "legacy" else CO_RE
            note(f"{flavour} {unwinder}", arch=spec.arch, load_ms=round(took), verified=verified)
        yield loaded


def busy_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Burn CPU till the condition holds. An emulated guest may be slow: the limit is generous."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        sum(range(100_000))
    return True


def test_the_kernel_holds_every_program_of_the_object(collection: Collection) -> None:
    programs = {name.removesuffix("_long").removesuffix("_loop") for name in collection.programs}
    assert programs >= CHAIN or programs >= WALKER
    for program in collection.programs.values():
        assert str(Path(f"/proc/self/fd/{program.fd}").readlink()) == "anon_inode:bpf-prog", program


def test_no_program_comes_near_what_the_verifier_walks_at_most(collection: Collection) -> None:
    """The kernel's own bound is a million; 0 is what kernels before 5.16 say, which tell no number."""
    for program in collection.programs.values():
        assert program.stats().verified_instructions <= VERIFIED_AT_MOST, program


def test_the_tail_call_array_holds_the_unwinders(collection: Collection) -> None:
    if "progs" not in collection.maps:  # the walker makes no tail calls
        assert entry_of(collection).name.startswith("native_tracer_walker")
        return
    slots = {ProgUnwind.STOP, ProgUnwind.NATIVE, ProgUnwind.RUBY}
    assert set(collection.maps["progs"]) == slots


def test_the_lpm_trie_finds_a_page_by_its_prefix(collection: Collection) -> None:
    """The key that the tracer looks pcs up with: pid and address, big endian, by longest prefix."""
    pages = collection.maps["pid_page_to_mapping_info"]
    pid = 4242
    value = bytes(range(pages.value_size))

    def key(length: int, address: int) -> bytes:
        return length.to_bytes(4, "little") + pid.to_bytes(4, "big") + address.to_bytes(8, "big")

    pages[key(32 + 64 - 12, 0x7F00_0000_1000)] = value
    assert bytes(pages[key(32 + 64, 0x7F00_0000_1ABC)]) == value
    assert key(32 + 64, 0x7F00_0000_2000) not in pages


def test_a_tick_in_an_unknown_process_is_counted_and_reported(collection: Collection) -> None:
    counters = collection.maps["counters"]
    before = counters.total(Counter.UNKNOWN_PID)
    with perf_event_open(pid=0, frequency=99, disabled=True) as event:
        event.attach(entry_of(collection))
        event.enable()
        assert busy_until(lambda: counters.total(Counter.UNKNOWN_PID) >= before + 20)
    assert counters.total(Counter.SAMPLES) >= before + 20
    assert os.getpid().to_bytes(4, "little") in collection.maps["pid_events"]
