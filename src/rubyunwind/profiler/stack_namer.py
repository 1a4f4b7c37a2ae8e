# SPDX-License-Identifier: Apache-2.0
"""From the frames of a trace to frames with names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rubyunwind.abi import ErrorCode, FrameMarker, TraceFlag, TraceOrigin
from rubyunwind.profiler.coroutines import without_what_precedes
from rubyunwind.profiler.kernel_symbols import KernelSymbols
from rubyunwind.profiler.placement import place_ruby_frames, shown_frames
from rubyunwind.profiler.reasons import NO_RUBY_INFORMATION, incompleteness, reason_of
from rubyunwind.profiler.sample import Frame
from rubyunwind.profiler.waits import waiting_frames
from rubyunwind.ruby.symbolize import gc_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rubyunwind.abi import Step, Trace
    from rubyunwind.bpf.maps import Map
    from rubyunwind.profiler.files import MappedFile
    from rubyunwind.profiler.process import ProfiledProcess
    from rubyunwind.ruby.code_cache import Known, Seen
    from rubyunwind.ruby.symbolize import RubySymbolizer

__all__ = ["StackNamer"]

_AT_A_TIME = 32  # frames named until `between` is called
# Plain numbers: of a deep stack there are thousands to compare.
_NATIVE, _RUBY, _CFUNC = int(FrameMarker.NATIVE), int(FrameMarker.RUBY), int(FrameMarker.RUBY_CFUNC)
_GC, _JIT = int(FrameMarker.RUBY_GC), int(FrameMarker.RUBY_JIT)
_KERNEL, _ABORT, _ERROR_BIT = int(FrameMarker.KERNEL), int(FrameMarker.ABORT), 0x80

# Ruby code as YJIT has compiled it. It sets the pc of its control frame where it calls, and nowhere else.
_COMPILED = Frame("jit", "[compiled code]", "the line of the Ruby frame that runs here may lag behind")


class Files(Protocol):
    """The files that processes map, such as a FileCache."""

    def by_id(self, file_id: int) -> MappedFile | None:
        """Return the file of that id."""


class StackNamer:
    """Names frames. `kernel_stacks` is the map that kernel_stack_id refers to, None if no trace has one.

    `between` is called every now and then, see Assembler.
    """

    def __init__(self, files: Files, kernel_stacks: Map | None, between: Callable[[], None]) -> None:
        self._files = files
        self._between = between
        self._kernel_stacks = kernel_stacks
        self.kernel_symbols = KernelSymbols()
        self._kernel_frames: dict[int, Frame] = {}
        self._kernel_by_id: dict[int, tuple[Frame, ...]] = {}
        self.unnamed = 0  # Ruby frames whose code was gone, or other code, before they were named

    def name(
        self,
        trace: Trace,
        process: ProfiledProcess | None,
        symbolizer: RubySymbolizer | None,
        seen: Seen,
        grounds: set[Known],
    ) -> tuple[tuple[Frame, ...], str | None]:
        """Return the frames of a trace, leaf first, and why the stack is not whole, None if it is.

        `symbolizer` names the Ruby code that `process` ran when it was `seen`, first and last; what the names
        rest on is added to `grounds`.
        """
        frames: list[Frame] = []
        caller: Frame | None = None
        root_file = 0
        # Root first: a C function has the place of the Ruby frame that called it.
        items: Sequence[Step] = trace.steps()
        own = self._coroutine(items, process)
        items = items if own is None else own
        if process is not None and process.interpreter is not None:
            rooted = bool(trace.flags & TraceFlag.NATIVE_ROOT) or own is not None
            items = place_ruby_frames(items, process.interpreter.holds, rooted=rooted)
        if symbolizer is not None and symbolizer.hides_frames:
            of = symbolizer
            items = shown_frames(items, lambda body: of.folds(body, seen, grounds))
        recursion: dict[Step, Frame] = {}
        for number, item in enumerate(reversed(items)):
            if number % _AT_A_TIME == 0:
                self._between()
            kind = item.kind
            if kind == _NATIVE:
                root_file = root_file or item.file_id
                frame = self.native(item)
            elif kind == _RUBY:
                known = recursion.get(item)
                if known is None:
                    known = recursion[item] = self._ruby(item, symbolizer, seen, grounds)
                frame = caller = known
            elif kind == _CFUNC:
                frame = self._cfunc(item, symbolizer, caller, seen, grounds)
            elif kind == _GC:
                frame = gc_frame(item.addr_or_line)
            elif kind == _JIT:
                frame = _COMPILED
            elif kind == _KERNEL:
                frame = self._kernel(item.addr_or_line)
            elif kind == _ABORT:
                continue  # it is the reason, not a place
            elif kind & _ERROR_BIT:
                frame = Frame("error", f"[error: {reason_of(ErrorCode(item.addr_or_line))}]")
            else:
                frame = Frame("unknown", f"[frame of kind {kind:#x}]")
            frames.append(frame)
        frames.reverse()
        kernel = self._kernel_stack(trace.kernel_stack_id) if trace.kernel_stack_id >= 0 else ()
        loop = process.interpreter if process is not None else None
        in_ruby = loop is not None and loop.file_id == root_file
        reason = incompleteness(trace, in_ruby, coroutine=own is not None)
        # A loop that the kernel side did not know for one yet: its Ruby frames are missing.
        if (
            reason is None
            and loop is not None
            and not trace.flags & TraceFlag.RUBY_MET
            and any(item.kind == _NATIVE and loop.holds(item) for item in items)
        ):
            reason = NO_RUBY_INFORMATION
        # A Ruby whose loop was not found at all: whether the thread runs Ruby code cannot be told.
        if reason is None and loop is None and process is not None and process.ruby is not None:
            reason = None if caller is not None else NO_RUBY_INFORMATION
        if trace.origin == TraceOrigin.OFF_CPU:
            frames = waiting_frames(frames, runnable=bool(trace.flags & TraceFlag.RUNNABLE))
        return (*kernel, *frames), reason

    def _coroutine(self, items: Sequence[Step], process: ProfiledProcess | None) -> Sequence[Step] | None:
        """Return the frames of a coroutine where they lead to its beginning, see coroutines.py."""
        if process is None or process.interpreter is None:
            return None
        file_id = process.interpreter.file_id
        file = self._files.by_id(file_id)
        if file is None or not file.aarch64:
            return None
        return without_what_precedes(items, file_id, file.begin_of)

    def native(self, item: Step) -> Frame:
        """Return the frame of a native step; the same object as long as the file has it in its cache."""
        file = self._files.by_id(item.file_id)
        # A return address lies behind its call, which may have been the function's last instruction.
        address = item.addr_or_line - item.return_address
        if file is None:
            return Frame("unknown", "[code of an unknown file]", f"file {item.file_id:#x}", offset=address)
        return file.frame(address)

    def _ruby(self, item: Step, symbolizer: RubySymbolizer | None, seen: Seen, grounds: set[Known]) -> Frame:
        if symbolizer is None:
            return Frame("unknown", "[Ruby frame of a process that has ended]")
        frame = symbolizer.ruby_frame(item.file_id, item.addr_or_line, item.method_entry, seen, grounds)
        self.unnamed += frame.kind == "unknown"
        return frame

    @staticmethod
    def _cfunc(
        item: Step,
        symbolizer: RubySymbolizer | None,
        caller: Frame | None,
        seen: Seen,
        grounds: set[Known],
    ) -> Frame:
        if symbolizer is None:
            return Frame("unknown", "[C function of a process that has ended]")
        return symbolizer.cfunc_frame(item.file_id, caller, seen, grounds)

    def _kernel_stack(self, stack_id: int) -> tuple[Frame, ...]:
        # An id keeps its meaning: the kernel side never lets a stack take another's slot.
        frames = self._kernel_by_id.get(stack_id)
        if frames is None:
            stacks = self._kernel_stacks
            addresses = () if stacks is None else stacks.get(stack_id.to_bytes(4, "little"), ())
            if not addresses:
                # The kernel takes a stack out of the map for the moment in which somebody reads it.
                return (Frame("unknown", "[kernel stack that cannot be read]"),)
            frames = self._kernel_by_id[stack_id] = tuple(self._kernel(address) for address in addresses)
        return frames

    def _kernel(self, address: int) -> Frame:
        frame = self._kernel_frames.get(address)
        if frame is None:
            self.kernel_symbols.load(self._between)
            name = self.kernel_symbols.lookup(address)
            frame = Frame("kernel", name) if name else Frame("kernel", "[kernel]", offset=address)
            self._kernel_frames[address] = frame
        return frame
