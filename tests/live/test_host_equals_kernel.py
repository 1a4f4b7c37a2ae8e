# SPDX-License-Identifier: Apache-2.0
"""The same C twice: what the kernel runs and what the host build runs give equal frames."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from rubyunwind import Profiler
from rubyunwind.abi import Trace, TraceFlag, decode_trace
from rubyunwind.bpf.hosted import CHAIN_ENTRY, WALKER_ENTRY, HostedCollection, HostMemory, HostTask
from rubyunwind.process.image import LiveProcess
from rubyunwind.process.registers import layout_of
from rubyunwind.process.stopped import StoppedProcess
from rubyunwind.profiler.files import FileCache
from rubyunwind.profiler.native_tables import NativeTables
from rubyunwind.profiler.process import ProfiledProcess

from .spinning import gather_records, spinning

pytestmark = pytest.mark.usefixtures("bpf")

# struct pt_regs, as much of it as ptrace's register set begins with
WORDS = {"x86_64": 21, "aarch64": 34}


class Host:
    """The unwinders in user space, filled for one process by the very writer that fills the kernel's maps."""

    def __init__(self, pid: int) -> None:
        self.image = LiveProcess(pid)
        self.files = FileCache()
        self.collection = HostedCollection()
        tables = NativeTables(self.collection)
        self.process = ProfiledProcess(pid, self.collection, self.files, tables, self.image)
        self.process.sync()
        self.memory = HostMemory.of_process(self.image.memory)

    def unwind(self, stopped: StoppedProcess, program: bytes = WALKER_ENTRY) -> dict[int, Trace]:
        layout = layout_of()
        names = layout.names[: WORDS[layout.machine]]
        traces = {}
        for thread in stopped.threads:
            words = [thread.registers[name] for name in names]
            task = HostTask(stopped.pid, thread.tid, words, thread.thread_pointer, "ruby")
            record = self.collection.run(task, self.memory, program)
            assert record is not None
            traces[thread.tid] = decode_trace(record)
        return traces

    def close(self) -> None:
        self.process.close()
        self.files.close()
        self.collection.close()


def places(trace: Trace) -> tuple[tuple[int, int, int, int], ...]:
    """Everything that identifies the frames, but for the leaf, which moves while the program spins."""
    frames = [(int(f.kind), f.file_id, f.addr_or_line, f.method_entry) for f in trace.frames]
    ruby = next((i for i, frame in enumerate(frames) if frame[0] in (0x06, 0x46)), len(frames))
    # The native leaf part differs from sample to sample, and so does the pc of the leaf Ruby frame.
    leaf = frames[ruby][:2] if ruby < len(frames) else ()
    return (leaf, *frames[ruby + 1 :])  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bounces.rb", ("11",)),
        ("recursion.rb", ("100",)),
        ("fiber_in_enumerator.rb", ()),
        ("names_with_odd_characters.rb", ()),
        ("recursion.rb", ("400",)),  # of the chain cut by the limit, in both alike
        ("bounces.rb", ("15",)),  # or by the tail calls
    ],
)
@pytest.mark.parametrize("unwinder", ["walker", "chain"])
def test_kernel_and_host_give_equal_frames(name: str, arguments: tuple[str, ...], unwinder: str) -> None:
    entry = WALKER_ENTRY if unwinder == "walker" else CHAIN_ENTRY
    with (
        spinning(name, *arguments) as program,
        Profiler([program.pid], rate=199, unwinder=unwinder) as profiler,
    ):
        records = [decode_trace(record) for record in gather_records(profiler, 60)]
        profiler.stop()
        host = Host(program.pid)
        hosted: list[Trace] = []
        try:
            for _ in range(10):
                with StoppedProcess(program.pid) as stopped:
                    hosted.append(host.unwind(stopped, entry)[program.pid])
                time.sleep(0.003)
        finally:
            host.close()
    in_kernel = Counter(places(trace) for trace in records)
    usual, times = in_kernel.most_common(1)[0]
    assert times >= 0.9 * len(records), "the kernel's own stacks differ"
    equal = sum(places(trace) == usual for trace in hosted)
    assert equal >= 9, f"{equal} of {len(hosted)} equal"
    kernel_flags = {trace.flags & ~TraceFlag.KERNEL_MODE for trace in records if places(trace) == usual}
    host_flags = {trace.flags for trace in hosted if places(trace) == usual}
    assert host_flags <= kernel_flags
    assert {t.error for t in hosted if places(t) == usual} == {t.error for t in records if places(t) == usual}


@pytest.mark.parametrize(
    "name", ["rescue_and_ensure.rb", "names_with_odd_characters.rb", "fiber_in_enumerator.rb"]
)
def test_walker_and_chain_give_equal_frames_of_a_stack_that_fits_both(name: str) -> None:
    with spinning(name) as program:
        host = Host(program.pid)
        try:
            with StoppedProcess(program.pid) as stopped:
                walker = host.unwind(stopped, WALKER_ENTRY)[program.pid]
                chain = host.unwind(stopped, CHAIN_ENTRY)[program.pid]
        finally:
            host.close()
    assert bytes(walker) == bytes(chain)
    assert walker.stack_len > 10


def reads(name: str, *arguments: str, entry: bytes) -> tuple[int, int, int]:
    """Return Ruby frames, native frames and reads of the second look at a thread that stands still."""
    with spinning(name, *arguments) as program:
        host = Host(program.pid)
        try:
            with StoppedProcess(program.pid) as stopped:
                host.unwind(stopped, entry)
                before = host.memory.reads
                trace = host.unwind(stopped, entry)[program.pid]
                count = host.memory.reads - before
        finally:
            host.close()
    assert host.memory.failures == 0
    ruby = sum(int(frame.kind) in (0x06, 0x46) for frame in trace.frames)
    return ruby, trace.stack_len - ruby, count


def test_the_chain_reads_what_each_frame_takes() -> None:
    """Six reads a Ruby frame (control frame, environment, iseq, three of its body), two a native one."""
    ruby, native, count = reads("recursion.rb", "100", entry=CHAIN_ENTRY)
    assert ruby == 102
    assert count <= 6 * ruby + 2 * native + 8


def test_the_walker_reads_a_quarter_of_a_time_for_a_ruby_frame() -> None:
    ruby, native, count = reads("recursion.rb", "1000", entry=WALKER_ENTRY)
    assert ruby == 1002
    assert count - native <= 0.25 * ruby


def test_the_walker_reads_half_a_time_for_a_native_frame() -> None:
    few_ruby, few_native, few = reads("bounces.rb", "20", entry=WALKER_ENTRY)
    ruby, native, count = reads("bounces.rb", "120", entry=WALKER_ENTRY)
    assert native - few_native >= 500
    # 100 bounces more: each has native frames, and Ruby ones that take a quarter of a read at most.
    assert count - few <= 0.5 * (native - few_native) + 0.25 * (ruby - few_ruby)


def test_every_map_that_programs_use_is_in_the_host_build() -> None:
    with HostedCollection() as hosted:
        source = Path(__file__).parents[2] / "support" / "ebpf" / "host" / "host.c"
        for name in hosted.maps:
            short = name.removeprefix("exe_id_to_").removesuffix("_stack_deltas")
            assert f"MAP({name})" in source.read_text() or f"BUCKET({short})" in source.read_text()
