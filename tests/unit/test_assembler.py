# SPDX-License-Identifier: Apache-2.0
"""From traces to samples, with small fakes for processes, files, symbols and the kernel's stack map."""

from __future__ import annotations

import gc
from array import array
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.abi import ErrorCode, Frame, FrameMarker, Trace, TraceFlag, TraceOrigin
from rubyunwind.bpf.trace_batch import TraceBatch, TracedThread
from rubyunwind.profiler import assembler as assembler_module
from rubyunwind.profiler.assembler import Assembler
from rubyunwind.profiler.interpreter import InterpreterLoop
from rubyunwind.profiler.sample import Frame as Named

LIBRUBY, LIBC = 0x11, 0x22
WHOLE = TraceFlag.NATIVE_ROOT | TraceFlag.RUBY_MET | TraceFlag.RUBY_BASE


class Clock:
    """Stands for the time module."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return 1_000

    def time_ns(self) -> int:
        return 1_700_000_000_000_001_000


class File:
    aarch64 = False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.frames: dict[int, Named] = {}

    def begin_of(self, address: int) -> int:
        return address & ~0xFF

    def frame(self, address: int) -> Named:
        self.asked.append(address)
        made = Named("native", f"f{address:x}", module="/lib/x.so", offset=address)
        return self.frames.setdefault(address, made)  # as a file does


class Known:
    """Stands for code that was read."""

    checked, final = 0.0, True


class Symbolizer:
    replaced = read = 0
    believed = 1.0
    hides_frames = True

    def believed_for(self, now: float) -> float:
        return self.believed

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.line = 7
        self.clauses: set[int] = set()
        self.known = Known()
        self.proofs: list[float | None] = []  # what is answered when it is asked for them
        self.asked: list[tuple[float, float]] = []

    def proven(self, grounds: Any, seen: tuple[float, float]) -> float | None:
        assert set(grounds) <= {self.known}
        self.asked.append(seen)
        return self.proofs.pop(0) if self.proofs else None

    def folds(self, body: int, seen: Any, grounds: Any) -> bool:
        return body in self.clauses

    def ruby_frame(self, body: int, pc: int, entry: int, seen: Any, grounds: set[Known]) -> Named:
        self.calls.append(("ruby", body))
        grounds.add(self.known)
        return Named("ruby", f"m{body:x}", f"m{body:x}", f"/{body:x}.rb", self.line)

    def cfunc_frame(self, entry: int, caller: Named | None, seen: Any, grounds: set[Known]) -> Named:
        self.calls.append(("cfunc", entry))
        grounds.add(self.known)
        place = (caller.path, caller.line) if caller else (None, None)
        return Named("cfunc", f"c{entry:x}", f"c{entry:x}", *place)


class Process:
    def __init__(self) -> None:
        self.symbolizer: Symbolizer | None = Symbolizer()
        self.interpreter: InterpreterLoop | None = InterpreterLoop(LIBRUBY, 0x100, 0x1FF)
        self.ruby: object | None = None
        self.former: tuple[Symbolizer, float] | None = None
        self.container: str | None = None
        self.sampled = self.ended = 0.0
        self.gone = False

    def executed(self) -> bool:
        return self.gone


class Tracker:
    def __init__(self) -> None:
        self.process = Process()
        self.by_pid = {5: self.process}
        self.library, self.libc = File(), File()
        self.files = self

    def get(self, pid: int, time: float | None = None) -> Process | None:
        return self.by_pid.get(pid)

    def reused(self, pid: int) -> bool:
        return False

    def by_id(self, file_id: int) -> File | None:
        return {LIBRUBY: self.library, LIBC: self.libc}.get(file_id)


class KernelStacks:
    def __init__(self) -> None:
        self.stacks: dict[int, tuple[int, ...]] = {}
        self.asked: list[int] = []

    def get(self, key: bytes, default: Any) -> Any:
        number = int.from_bytes(key, "little")
        self.asked.append(number)
        return self.stacks.get(number, default)


class KernelNames:
    reason = ""

    def load(self, between: Any) -> None:
        between()

    def lookup(self, address: int) -> str | None:
        return None if address == 0xBAD else f"k{address:x}"


class Bench:
    """An assembler and what it is surrounded by."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        monkeypatch.setattr(assembler_module, "time", self.clock)
        self.tracker, self.kernel = Tracker(), KernelStacks()
        self.breaks = 0
        self.assembler = Assembler(
            cast("Any", self.tracker),
            cast("Any", self.kernel),
            between=lambda: setattr(self, "breaks", self.breaks + 1),
        )
        self.assembler.namer.kernel_symbols = cast("Any", KernelNames())

    def names(self, *frames: Frame, **fields: Any) -> list[str]:
        return [frame.name for frame in self.sample(*frames, **fields).frames]

    def sample(self, *frames: Frame, flags: int = WHOLE, pid: int = 5, **fields: Any) -> Any:
        # Everything is sampled just now, and what is known was looked at just now.
        fields.setdefault("ktime", int(self.clock.now * 1e9))
        for process in self.tracker.by_pid.values():
            if process.symbolizer is not None:
                process.symbolizer.known.checked = self.clock.now
        trace = Trace(pid=pid, tid=6, frames=frames, flags=flags, **fields)
        return self.assembler.sample(trace, 3)


def native(address: int, file: int = LIBC, *, returned: bool = False) -> Frame:
    return Frame(file_id=file, addr_or_line=address, kind=FrameMarker.NATIVE, return_address=returned)


def ruby(body: int) -> Frame:
    return Frame(file_id=body, addr_or_line=0x40, kind=FrameMarker.RUBY)


def cfunc(entry: int) -> Frame:
    return Frame(file_id=entry, kind=FrameMarker.RUBY_CFUNC)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_stack_that_rests_on_what_it_did_is_not_named_again(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    frames = (ruby(1), cfunc(2), ruby(3), native(0x50))
    first = bench.sample(*frames)
    symbolizer.calls.clear()
    bench.clock.now += 2
    symbolizer.proofs = [bench.clock.now]
    assert bench.sample(*frames).frames is first.frames
    assert (symbolizer.calls, symbolizer.asked) == ([], [(102.0, 102.0)])
    bench.clock.now += 0.5
    assert bench.sample(*frames).frames is first.frames  # it was right a moment ago
    assert len(symbolizer.asked) == 1
    symbolizer.line = 8
    bench.clock.now += 2  # there is no proof
    assert bench.sample(*frames).frames[0].line == 8
    # Whatever it rests on, it is named again when the interpreter's loop is known, and now and then.
    symbolizer.line = 9
    bench.tracker.process.interpreter = InterpreterLoop(LIBRUBY, 0x100, 0x2FF)
    assert bench.sample(*frames).frames[0].line == 9
    symbolizer.line = 10
    for _ in range(40):
        bench.clock.now += 1
        symbolizer.proofs = [bench.clock.now]
        line = bench.sample(*frames).frames[0].line
    assert line == 10


def test_where_code_changes_every_look_at_a_stack_asks_for_a_proof(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    symbolizer.believed = 0.0
    first = bench.sample(ruby(1), ktime=99_000_000_000)
    symbolizer.proofs = [bench.clock.now, None]
    assert bench.sample(ruby(1), ktime=99_500_000_000).frames is first.frames
    symbolizer.line = 8
    assert bench.sample(ruby(1), ktime=99_500_000_000).frames[0].line == 8
    assert symbolizer.asked == [(99.5, 99.5)] * 2


def test_what_was_named_before_a_change_was_noticed_is_named_again_in_that_batch(bench: Bench) -> None:
    """The first stack of a batch may be of old or of new code: the second one tells that it changed."""
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    plain = symbolizer.ruby_frame

    def ruby_frame(body: int, *rest: Any) -> Named:
        if symbolizer.replaced:
            return Named("unknown", "[gone]")
        symbolizer.replaced += body == 2
        return plain(body, *rest)

    symbolizer.ruby_frame = ruby_frame  # type: ignore[method-assign]
    symbolizer.believed = 0.0
    stacks = tuple(Trace(pid=5, frames=[ruby(body)], flags=WHOLE) for body in (1, 2))
    samples = bench.assembler.samples(batch_of(stacks, [0, 1]))
    assert [sample.frames[0].kind for sample in samples] == ["unknown", "unknown"]
    assert bench.assembler.unnamed > 0


def test_names_are_right_for_the_first_and_the_last_sample_of_a_stack(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    symbolizer.believed = 0.0
    trace = Trace(pid=5, frames=[ruby(1)], flags=WHOLE)
    bench.assembler.samples(batch_of((trace,), [0]))
    batch = batch_of((trace,), [0, 0, 0], ktime=[102_000_000_000, 101_000_000_000, 103_000_000_000])
    bench.assembler.samples(batch)
    offset = bench.assembler.clock_offset / 1e9
    assert symbolizer.asked == [pytest.approx((101.0 + offset, 103.0 + offset))]


def batch_of(stacks: tuple[Trace, ...], numbers: list[int], ktime: list[int] | None = None) -> TraceBatch:
    """Make a batch of one thread's samples: which of the stacks each has, and when it was taken."""
    size = len(numbers)
    return TraceBatch(
        stacks=stacks,
        counts=tuple(numbers.count(number) for number in range(len(stacks))),
        threads=(TracedThread(5, 6, "ruby"),),
        ktime=array("Q", ktime or [100_000_000_000] * size),
        offtime=array("Q", [0] * size),
        stack=array("I", numbers),
        thread=array("I", [0] * size),
        cpu=array("I", [0] * size),
    )


def test_a_stack_of_which_only_the_leaf_is_new_is_not_named_from_its_root(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    rest = (ruby(1), cfunc(2), ruby(3), native(0x180, LIBRUBY), native(0x60))
    first = bench.sample(native(0x110, LIBRUBY), *rest, origin=TraceOrigin.SAMPLING)
    symbolizer.calls.clear()
    other = bench.sample(native(0x118, LIBRUBY), *rest, origin=TraceOrigin.SAMPLING)
    assert symbolizer.calls == []
    assert (first.frames[0].name, other.frames[0].name) == ("f110", "f118")
    assert other.frames[1:] == first.frames[1:]
    # What it rests on has to be right for it, too.
    symbolizer.line = 8
    bench.clock.now += 2
    later = bench.sample(native(0x120, LIBRUBY), *rest, origin=TraceOrigin.SAMPLING)
    assert later.frames[1].line == 8
    assert symbolizer.calls != []


NATIVE_STEPS = st.builds(
    native, st.sampled_from([0x50, 0x110, 0x180, 0x300]), st.sampled_from([LIBC, LIBRUBY, 0x99])
)
STEPS = st.one_of(
    NATIVE_STEPS,
    st.builds(ruby, st.integers(1, 3)),
    st.builds(cfunc, st.integers(1, 3)),
    st.builds(lambda address: Frame(addr_or_line=address, kind=FrameMarker.KERNEL), st.integers(1, 3)),
    st.just(Frame(kind=FrameMarker.RUBY_GC)),
)
ENDS = st.sampled_from(
    [[], *([Frame(addr_or_line=code, kind=FrameMarker.ABORT)] for code in (ErrorCode.NATIVE_ZERO_PC, 4, 5))]
)


@settings(max_examples=400, deadline=None)
@given(
    leaves=st.lists(NATIVE_STEPS, min_size=2, max_size=4),
    rest=st.lists(STEPS, max_size=9),
    end=ENDS,
    flags=st.sampled_from([0, TraceFlag.NATIVE_ROOT, TraceFlag.RUBY_MET, WHOLE]),
    origin=st.sampled_from([TraceOrigin.SAMPLING, TraceOrigin.OFF_CPU]),
    kernel=st.sampled_from([-1, 7]),
    clauses=st.sets(st.integers(1, 3)),
)
def test_with_another_leaf_a_stack_is_what_it_is_when_all_of_it_is_named(
    leaves: list[Frame],
    rest: list[Frame],
    end: list[Frame],
    flags: TraceFlag,
    origin: TraceOrigin,
    kernel: int,
    clauses: set[int],
) -> None:
    fields: dict[str, Any] = {"flags": flags, "origin": origin, "kernel_stack_id": kernel}
    with pytest.MonkeyPatch.context() as patch:
        one = Bench(patch)
        for leaf in leaves:
            alone = Bench(patch)
            for bench in (one, alone):
                bench.kernel.stacks[7] = (1, 2)
                assert bench.tracker.process.symbolizer is not None
                bench.tracker.process.symbolizer.clauses = clauses
            found, expected = (bench.sample(leaf, *rest, *end, **fields) for bench in (one, alone))
            assert (found.frames, found.reason, found.unit) == (
                expected.frames,
                expected.reason,
                expected.unit,
            )


def test_the_rings_are_emptied_while_a_deep_stack_is_named(bench: Bench) -> None:
    bench.sample(*(native(0x50 + n) for n in range(100)))
    assert bench.breaks >= 4


def test_the_head_of_a_sample_is_the_traces(bench: Bench) -> None:
    sample = bench.sample(native(1), ktime=5_000, comm="ruby", origin=TraceOrigin.SAMPLING)
    assert (sample.pid, sample.tid, sample.comm, sample.cpu) == (5, 6, "ruby", 3)
    assert sample.timestamp == 1_700_000_000_000_005_000  # monotonic time moved to unix time
    assert (sample.origin, sample.complete, sample.reason) == ("sampling", True, None)
    assert bench.sample(native(1), origin=77).origin == "unknown"


def test_a_c_function_has_the_place_of_the_ruby_frame_that_called_it(bench: Bench) -> None:
    frames = bench.sample(cfunc(1), cfunc(2), ruby(0xA), cfunc(3), ruby(0xB)).frames
    assert [(frame.name, frame.path, frame.line) for frame in frames] == [
        ("c1", "/a.rb", 7),
        ("c2", "/a.rb", 7),
        ("ma", "/a.rb", 7),
        ("c3", "/b.rb", 7),
        ("mb", "/b.rb", 7),
    ]


def test_a_c_function_at_the_root_has_no_place(bench: Bench) -> None:
    (frame,) = bench.sample(cfunc(1)).frames
    assert (frame.path, frame.line) == (None, None)


def test_a_return_address_is_looked_up_one_byte_before(bench: Bench) -> None:
    frames = bench.sample(native(0x50), native(0x60, returned=True)).frames
    assert bench.tracker.libc.asked == [0x5F, 0x50]  # root first
    assert [frame.offset for frame in frames] == [0x50, 0x5F]


def test_ruby_frames_are_moved_into_the_loop_that_runs_them(bench: Bench) -> None:
    # Pushed, its loop not entered: the kernel side has one group too many, the last comes behind the root.
    frames = [native(0x50), ruby(1), native(0x180, LIBRUBY, returned=True), native(0x60), ruby(2)]
    assert bench.names(*frames) == ["m1", "f50", "m2", "f17f", "f60"]
    # The same frames of a stack that was cut before its root are where they belong.
    flags = TraceFlag.RUBY_MET
    assert bench.names(*frames, flags=flags) == ["f50", "m1", "f17f", "f60", "m2"]


def test_the_frame_below_a_rescue_is_left_out_with_c_functions_in_between_untouched(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    # Two clauses inside each other: the second is left out and still hides what is below it.
    symbolizer.clauses = {2, 3}
    frames = [ruby(1), cfunc(9), ruby(2), ruby(3), ruby(4), ruby(5), native(0x180, LIBRUBY), native(0x60)]
    assert bench.names(*frames) == ["m1", "c9", "m2", "m5", "f180", "f60"]


def test_the_entry_of_a_fiber_is_known_by_the_file_of_the_outermost_native_frame(bench: Bench) -> None:
    zero = Frame(addr_or_line=ErrorCode.NATIVE_ZERO_PC, kind=FrameMarker.ABORT)
    assert bench.sample(native(0x60), ruby(1), native(0x180, LIBRUBY), zero).reason is None
    assert bench.sample(ruby(1), native(0x180, LIBRUBY), native(0x60), zero).reason == "unmapped pc"


def test_a_coroutine_on_aarch64_begins_where_a_function_returns_to_its_own_beginning(bench: Bench) -> None:
    entry, itself = native(0x3C0, LIBRUBY, returned=True), native(0x300, LIBRUBY, returned=True)
    unmapped = Frame(addr_or_line=ErrorCode.NATIVE_NO_PID_PAGE_MAPPING, kind=FrameMarker.ABORT)
    frames = (ruby(1), native(0x180, LIBRUBY, returned=True), entry, itself, native(0x77), unmapped)
    met = TraceFlag.RUBY_MET | TraceFlag.RUBY_BASE
    assert bench.sample(*frames, flags=met).reason == "unmapped pc"

    bench.tracker.library.aarch64 = True
    bench.clock.now += 10
    sample = bench.sample(*frames, flags=met)
    assert [frame.name for frame in sample.frames if frame.kind == "native"] == ["f17f", "f3bf"]
    assert (sample.complete, sample.reason) == (True, None)
    # Also where the walk seemed to come to a root behind it; and Ruby frames that came last stay.
    sample = bench.sample(entry, itself, native(0x77), ruby(1), flags=WHOLE)
    assert [frame.kind for frame in sample.frames].count("native") == 1
    assert len([frame for frame in sample.frames if frame.kind == "ruby"]) == 1
    # A call that never returns may be the last before another function begins.
    whole = (native(0x1C0, LIBRUBY), native(0x300, LIBRUBY, returned=True), native(0x77))
    assert len(bench.sample(*whole).frames) == 3
    # Ruby frames that are missing are so all the same.
    assert bench.sample(entry, itself, unmapped, flags=TraceFlag.RUBY_MET).reason == "unmapped pc"


def test_a_ruby_whose_loop_was_not_found_leaves_open_what_a_thread_runs(bench: Bench) -> None:
    bench.tracker.process.interpreter = None
    bench.tracker.process.ruby = object()
    assert bench.sample(native(0x50), flags=TraceFlag.NATIVE_ROOT).reason == "no Ruby information"
    assert bench.sample(native(0x50), ruby(0x1000)).complete
    bench.tracker.process.ruby = None  # no Ruby at all
    bench.clock.now += 10
    assert bench.sample(native(0x50), flags=TraceFlag.NATIVE_ROOT).complete


def test_a_loop_whose_ruby_frames_were_not_looked_for_is_no_whole_stack(bench: Bench) -> None:
    """The kernel side learns of a Ruby some milliseconds after it has learned of the file."""
    frames = [native(0x50), native(0x180, LIBRUBY, returned=True), native(0x60)]
    root = TraceFlag.NATIVE_ROOT
    assert bench.sample(*frames, flags=root).reason == "no Ruby information"
    assert bench.sample(native(0x50), native(0x300, LIBRUBY), native(0x60), flags=root).reason is None
    assert bench.sample(*frames, flags=root | TraceFlag.RUBY_MET | TraceFlag.RUBY_BASE).reason is None


def test_an_abort_frame_is_the_reason_and_no_frame(bench: Bench) -> None:
    limit = Frame(addr_or_line=ErrorCode.STACK_LENGTH_EXCEEDED, kind=FrameMarker.ABORT)
    sample = bench.sample(native(0x50), limit, flags=0)
    assert (len(sample.frames), sample.complete, sample.reason) == (1, False, "limit")


def test_frames_of_other_kinds_are_shown_for_what_they_are(bench: Bench) -> None:
    odd = Frame(kind=FrameMarker.PYTHON)
    error = Frame(
        addr_or_line=ErrorCode.RUBY_READ_EP, kind=FrameMarker(FrameMarker.RUBY | FrameMarker.ERROR_BIT)
    )
    frames = bench.sample(odd, error, native(0x50, 0x99)).frames
    assert [(frame.kind, frame.name) for frame in frames] == [
        ("unknown", "[frame of kind 0x1]"),
        ("error", "[error: unreadable memory]"),
        ("unknown", "[code of an unknown file]"),
    ]


def test_names_hold_no_addresses_so_that_unknown_frames_merge(bench: Bench) -> None:
    bench.kernel.stacks[1] = (0xBAD,)
    names = bench.names(native(0x1234, 0x99), kernel_stack_id=1)
    names += bench.names(ruby(0x1234), cfunc(0x1234), pid=9)
    assert not [name for name in names if "0x" in name or "1234" in name]


def test_a_process_that_is_not_known_gives_unknown_ruby_frames(bench: Bench) -> None:
    sample = bench.sample(cfunc(1), ruby(2), native(0x50), pid=9)
    assert [frame.kind for frame in sample.frames] == ["unknown", "unknown", "native"]
    assert sample.pid == 9


def test_a_process_whose_ruby_was_not_found_gives_unknown_ruby_frames(bench: Bench) -> None:
    bench.tracker.process.symbolizer = bench.tracker.process.interpreter = None
    sample = bench.sample(ruby(2), native(0x50))
    assert [frame.kind for frame in sample.frames] == ["unknown", "native"]


def test_equal_stacks_are_named_once_a_second_and_share_their_frames(bench: Bench) -> None:
    symbolizer = bench.tracker.process.symbolizer
    assert symbolizer is not None
    first = bench.sample(ruby(1), native(0x50), ktime=1)
    again = bench.sample(ruby(1), native(0x50), ktime=2)
    assert again.frames is first.frames
    assert again.timestamp == first.timestamp + 1
    assert symbolizer.calls == [("ruby", 1)]
    bench.clock.now += 1.5
    assert bench.sample(ruby(1), native(0x50)).frames is first.frames  # asked, and still the same
    assert len(symbolizer.calls) == 2
    symbolizer.line = 8
    assert bench.sample(ruby(1), native(0x50)).frames[0].line == 7
    bench.clock.now += 1.5
    assert bench.sample(ruby(1), native(0x50)).frames[0].line == 8


def test_a_process_with_a_new_symbolizer_has_its_stacks_named_again_at_once(bench: Bench) -> None:
    """After exec, or when a Ruby that was found too early in its start can be read."""
    bench.sample(ruby(1), native(0x50))
    bench.tracker.process.symbolizer = Symbolizer()
    bench.tracker.process.symbolizer.line = 8
    assert bench.sample(ruby(1), native(0x50)).frames[0].line == 8


@pytest.mark.parametrize(
    "change", [{"flags": WHOLE | TraceFlag.EMPTY_SLOT}, {"kernel_stack_id": 4}, {"pid": 9}]
)
def test_stacks_that_differ_outside_of_their_frames_are_not_mixed_up(
    bench: Bench, change: dict[str, Any]
) -> None:
    bench.kernel.stacks[4] = (0x1,)
    plain = bench.sample(ruby(1), native(0x50))
    other = bench.sample(ruby(1), native(0x50), **change)
    assert (other.frames, other.reason) != (plain.frames, plain.reason)
    assert bench.sample(ruby(1), native(0x50)).frames is plain.frames


def test_the_stacks_that_are_kept_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembler_module, "_MOST_FRAMES", 9)  # of one frame each
    for address in range(100):
        assert bench.names(native(address)) == [f"f{address:x}"]
    assert len(bench.assembler._stacks) <= 10


def test_kernel_frames_are_the_leaf_and_their_stack_is_read_once(bench: Bench) -> None:
    bench.kernel.stacks[7] = (0x1, 0x2)
    assert bench.names(native(0x50), kernel_stack_id=7) == ["k1", "k2", "f50"]
    assert bench.names(native(0x60), kernel_stack_id=7) == ["k1", "k2", "f60"]
    assert bench.kernel.asked == [7]


def test_a_negative_id_is_no_kernel_stack(bench: Bench) -> None:
    assert bench.names(native(0x50), kernel_stack_id=-14) == ["f50"]
    assert bench.kernel.asked == []


def test_a_kernel_stack_that_was_missed_is_shown_as_missing_and_asked_for_again(bench: Bench) -> None:
    missed = bench.sample(native(0x50), kernel_stack_id=0)
    assert [frame.kind for frame in missed.frames] == ["unknown", "native"]
    bench.kernel.stacks[0] = (0x1,)
    assert bench.names(native(0x60), kernel_stack_id=0) == ["k1", "f60"]


def test_kernel_frames_inside_the_record_come_first(bench: Bench) -> None:
    inline = [Frame(addr_or_line=address, kind=FrameMarker.KERNEL) for address in (1, 2)]
    flags = WHOLE | TraceFlag.KERNEL_INLINE
    assert bench.names(*inline, native(0x50), flags=flags) == ["k1", "k2", "f50"]


def test_the_weight_of_an_off_cpu_sample_is_its_time_weighted_back(bench: Bench) -> None:
    bench.assembler._scale = (1000, 250)
    sample = bench.sample(native(1), origin=TraceOrigin.OFF_CPU, offtime=700)
    assert (sample.origin, sample.unit, sample.weight) == ("off-cpu", "ns", 2800)
    sample = bench.sample(native(1), origin=TraceOrigin.SAMPLING)
    assert (sample.origin, sample.unit, sample.weight) == ("sampling", "samples", 1)


def test_a_batch_of_both_has_the_weights_of_each(bench: Bench) -> None:
    on = Trace(pid=5, frames=[native(1)], flags=WHOLE, origin=TraceOrigin.SAMPLING)
    off = Trace(pid=5, frames=[native(1)], flags=WHOLE, origin=TraceOrigin.OFF_CPU)
    batch = TraceBatch(
        stacks=(on, off),
        counts=(1, 2),
        threads=(TracedThread(5, 6, "ruby"),),
        ktime=array("Q", [1, 2, 3]),
        offtime=array("Q", [0, 50, 60]),
        stack=array("I", [0, 1, 1]),
        thread=array("I", [0, 0, 0]),
        cpu=array("I", [0, 0, 1]),
    )
    samples = bench.assembler.samples(batch)
    assert [(sample.weight, sample.unit) for sample in samples] == [(1, "samples"), (50, "ns"), (60, "ns")]
    assert samples[0].frames == samples[1].frames


def test_a_stack_that_was_named_ahead_stays_named_when_its_process_has_ended(bench: Bench) -> None:
    trace = Trace(pid=5, frames=[ruby(0xA)], flags=WHOLE, origin=TraceOrigin.OFF_CPU)
    ahead = bench.assembler.stack(trace)
    bench.tracker.by_pid.clear()
    assert [frame.kind for frame in bench.assembler.stack(trace).frames] == ["unknown"]
    bench.clock.now += 10
    bench.assembler.named_ahead = {bench.assembler.key(trace): ahead}
    assert bench.assembler.stack(trace) is ahead


def test_a_sample_has_the_container_of_its_process(bench: Bench) -> None:
    assert bench.sample(native(1)).container is None
    bench.tracker.process.container = "c0ffee"
    assert bench.sample(native(1)).container == "c0ffee"
    assert bench.sample(native(1), pid=9).container is None  # nobody knows it


def test_what_was_named_of_a_process_goes_with_it(bench: Bench) -> None:
    bench.sample(ruby(0xA))
    bench.sample(native(1), ruby(0xB))
    assert [len(stacks) for stacks in bench.assembler._stacks.values()] == [2]
    bench.sample(ruby(0xA), pid=9)  # of an unknown process nothing is kept
    assert len(bench.assembler._stacks) == 1
    bench.tracker.by_pid.clear()
    bench.tracker.process = Process()
    gc.collect()
    assert len(bench.assembler._stacks) == 0


def test_looking_sooner_is_for_what_still_runs(bench: Bench) -> None:
    assert bench.tracker.process.symbolizer is not None
    bench.tracker.process.symbolizer.ruby_frame = lambda *_: Named("unknown", "[gone]")  # type: ignore[method-assign]
    bench.sample(ruby(0xA))
    assert bench.assembler.unnamed == 1
    bench.tracker.process.gone = True
    bench.sample(ruby(0xB))
    assert bench.assembler.unnamed == 1
    bench.tracker.process.gone, bench.tracker.process.ended = False, 1.0
    bench.sample(ruby(0xC))
    assert bench.assembler.unnamed == 1


def test_what_was_sampled_before_an_exec_is_named_by_who_knew_that_program(bench: Bench) -> None:
    process = bench.tracker.process
    old = process.symbolizer
    assert old is not None
    old.line = 3
    process.former, process.symbolizer = (old, 90.0), None
    early = bench.sample(ruby(0xA), ktime=89_000_000_000)
    assert [(frame.kind, frame.line) for frame in early.frames] == [("ruby", 3)]
    late = bench.sample(ruby(0xA), ktime=91_000_000_000)
    assert [frame.kind for frame in late.frames] == ["unknown"]
    process.symbolizer = Symbolizer()
    assert bench.sample(ruby(0xA), ktime=92_000_000_000).frames[0].line == 7
