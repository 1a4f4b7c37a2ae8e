# SPDX-License-Identifier: Apache-2.0
"""Makes seeds/steps.images: `python fuzz/make_seeds.py`, as root, on x86_64, with a Ruby that is known.

Ruby programs of tests/ruby are stopped where they spin; the unwinders and the symbolizer run on them, and
what they read of memory and maps is kept, nothing else. To be run again when maps or the reading steps change
(steps.c says so); inputs of the corpus keep their meaning as far as the images stay alike.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from image import Image

from rubyunwind._native import ffi
from rubyunwind.abi import ErrorCode, FrameMarker, StackDeltaPageInfo, decode_trace
from rubyunwind.bpf.hosted import HostedCollection, HostMemory, HostTask, _host_task
from rubyunwind.process.image import LiveProcess
from rubyunwind.process.memory import LiveMemory
from rubyunwind.process.stopped import StoppedProcess, StoppedThread
from rubyunwind.profiler.files import FileCache
from rubyunwind.profiler.native_tables import NativeTables
from rubyunwind.profiler.process import ProfiledProcess
from rubyunwind.ruby.stack_walk import walk_stack
from rubyunwind.ruby.symbolize import RubySymbolizer
from rubyunwind.ruby.tls import thread_context

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "tests/ruby"
# Program, arguments, stacks it prints, and the threads to keep: the main one, or the last that printed.
SCENES = (
    ("bounces.rb", ("4",), 1, "main"),
    ("fiber_in_enumerator.rb", (), 1, "main"),
    ("rescue_and_ensure.rb", (), 1, "main"),
    ("two_spinning_threads.rb", (), 2, "other"),
)
PAGE = 1 << 16  # of stack deltas
MARGIN = 16  # control frames before the newest one, as in steady.c
AROUND = 6  # rows that are kept before and behind those that are used
GP_REGISTERS = 21


class Recorder:
    """A process's memory that remembers what was read of it."""

    def __init__(self, memory: LiveMemory) -> None:
        self._memory = memory
        self._ranges: list[tuple[int, int]] = []

    def read(self, address: int, length: int) -> bytes:
        data = self._memory.read(address, length)
        self._ranges.append((address, address + length))
        return data

    def u64(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def u32(self, address: int) -> int:
        return int.from_bytes(self.read(address, 4), "little")

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield what was read, aligned to words, neighbours joined."""
        start = end = 0
        for low, high in sorted(self._ranges):
            low, high = low & ~7, (high + 7) & ~7
            if low > end:
                if end:
                    yield start, self._memory.read(start, end - start)
                start = low
            end = max(end, high)
        yield start, self._memory.read(start, end - start)


@contextmanager
def spinning(name: str, arguments: tuple[str, ...], stacks: int) -> Iterator[tuple[int, int]]:
    """Run a program until it spins; yields the process and the thread that printed last."""
    command = [shutil.which("ruby") or "ruby", "--disable-gems", str(PROGRAMS / name), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        said = [json.loads(process.stdout.readline()) for _ in range(stacks)]
        time.sleep(0.1)
        yield process.pid, said[-1]["tid"] or process.pid
    finally:
        process.kill()
        process.communicate()


def host_task(pid: int, thread: StoppedThread) -> HostTask:
    return HostTask(
        pid,
        thread.tid,
        list(thread.registers.values())[:GP_REGISTERS],
        thread.thread_pointer,
        "ruby",
        1_000_000_007,
    )


class Scene:
    """One stopped thread on its way into an image."""

    def __init__(self, name: str, pid: int, thread: StoppedThread) -> None:
        self.image = Image(name)
        self.pid, self.thread = pid, thread

    def record(self) -> Image:
        with ExitStack() as stack:
            host = stack.enter_context(HostedCollection())
            files = FileCache()
            stack.callback(files.close)
            live = LiveProcess(self.pid)
            tables = NativeTables(host)
            profiled = ProfiledProcess(self.pid, host, files, tables, live)
            profiled.announce()
            profiled.sync()
            runtime = profiled.ruby
            assert runtime is not None
            assert runtime.tls is not None
            recorder = Recorder(live.memory)
            memory = HostMemory(memory=recorder)
            task = host_task(self.pid, self.thread)
            context = thread_context(live.memory, runtime.tls, self.thread.thread_pointer)
            whole, alone = host.run(task, memory), host.run_context(context, task, memory)
            assert whole is not None
            assert alone is not None
            trace = decode_trace(whole)
            assert trace.error in (None, ErrorCode.NATIVE_ZERO_PC), trace.error
            self.image.frames = (trace.stack_len, decode_trace(alone).stack_len)
            self._name(recorder, runtime, context)
            self._stack(recorder, runtime, context)
            self.image.context, self.image.identifiers = context, runtime.identifier_table
            self.image.task = bytes(ffi.buffer(_host_task(task)))
            native = [(f.file_id, f.addr_or_line - f.return_address) for f in trace.frames
                      if f.kind == FrameMarker.NATIVE]  # fmt: skip
            self._maps(host, native, files, tables)
            self.image.pieces = list(recorder.pieces())
        return self.image

    def _name(self, recorder: Recorder, runtime: object, context: int) -> None:
        """Let names and lines be read, too."""
        symbolizer = RubySymbolizer(recorder, runtime)  # type: ignore[arg-type]
        layout = runtime.layout  # type: ignore[attr-defined]
        recorder.read(context, 264)
        for frame in walk_stack(recorder, layout, context):
            if frame.kind == "ruby":
                symbolizer.ruby_frame(frame.iseq_body, frame.pc, frame.method_entry)
            else:
                symbolizer.cfunc_frame(frame.method_entry)

    def _stack(self, recorder: Recorder, runtime: object, context: int) -> None:
        """Keep all that the walk of a running thread copies: frames, and the values that they refer to."""
        layout = runtime.layout  # type: ignore[attr-defined]
        stack, newest = recorder.u64(context + layout.ec_vm_stack), recorder.u64(context + layout.ec_cfp)
        end = stack + 8 * recorder.u64(context + layout.ec_vm_stack_size)
        first = newest - MARGIN * layout.cfp_size
        recorder.read(first, end - first)
        frames = range(newest, end, layout.cfp_size)
        inside = [ep for frame in frames if stack <= (ep := recorder.u64(frame + layout.cfp_ep)) < newest]
        recorder.read(min(inside) - 16, max(inside) - min(inside) + 16 + 1024)

    def _maps(
        self, host: HostedCollection, native: list[tuple[int, int]], files: FileCache, tables: NativeTables
    ) -> None:
        wanted = {file_id for file_id, _ in native}
        entries = self.image.entries
        for key, value in host.maps["pid_page_to_mapping_info"].items():
            if int.from_bytes(bytes(value)[:8], "little") in wanted | {0}:
                entries.append(("pid_page_to_mapping_info", bytes(key), bytes(value)))
        for name in ("interpreter_offsets", "interpreter_cold_offsets", "ruby_procs", "ruby_tls", "ruby_vms"):
            entries += [(name, bytes(key), bytes(value)) for key, value in host.maps[name].items()]
        infos: dict[int, int] = {}
        for file_id in sorted(wanted):
            addresses = {address for one, address in native if one == file_id}
            self._file(file_id, addresses, files, tables, infos)
        rules = host.maps["unwind_info_array"]
        for old, new in infos.items():
            entries.append(
                ("unwind_info_array", new.to_bytes(4, "little"), bytes(rules[old.to_bytes(4, "little")]))
            )

    def _file(
        self, file_id: int, addresses: set[int], files: FileCache, tables: NativeTables, infos: dict[int, int]
    ) -> None:
        """Keep the rows around those that rule at `addresses`, with rules numbered anew."""
        file = files.by_id(file_id)
        assert file is not None
        deltas = file.deltas()
        packed = deltas.pack(tables._global_ids(deltas.infos))
        rows = list(struct.iter_unpack("<HH", packed))
        kept: list[tuple[int, int]] = []
        bucket = tables._buckets[file_id]
        for page, first, count in deltas.pages():
            inside = [address - page for address in addresses if page <= address < page + PAGE]
            if not inside:
                continue
            below = [i for i in range(first, first + count) if rows[i][0] <= min(inside)]
            until = [i for i in range(first, first + count) if rows[i][0] <= max(inside)]
            start = max((below[-1] if below else first) - AROUND, first)
            end = min((until[-1] + 1 if until else first) + AROUND, first + count)
            kept.append(rows[max(start - 1, 0)])  # the row before those of the page may rule, too
            value = StackDeltaPageInfo(first_delta=len(kept), num_deltas=end - start, map_id=bucket)
            kept += rows[start:end]
            key = struct.pack("<QQ", file_id, page)
            self.image.entries.append(("stack_delta_page_to_info", key, bytes(value)))
        renamed = b"".join(
            struct.pack("<HH", low, info if info & 0x8000 else infos.setdefault(info, len(infos)))
            for low, info in kept
        )
        self.image.rows.append((f"exe_id_to_{bucket}_stack_deltas", file_id, renamed))


def main() -> None:
    if len(sys.argv) > 1:
        raise SystemExit(__doc__)
    images = []
    for name, arguments, stacks, which in SCENES:
        with spinning(name, arguments, stacks) as (pid, last), StoppedProcess(pid) as stopped:
            tid = pid if which == "main" else last
            thread = next(thread for thread in stopped.threads if thread.tid == tid)
            images.append(Scene(name.removesuffix(".rb"), pid, thread).record())
    target = HERE / "seeds/steps.images"
    target.write_bytes(b"".join(image.to_bytes() for image in images))
    for image in images:
        size = sum(len(data) for _, data in image.pieces)
        print(f"{image.name}: {image.frames[0]} frames, {len(image.pieces)} pieces of {size} bytes")
    print(f"{target}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
