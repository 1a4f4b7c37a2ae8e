# SPDX-License-Identifier: Apache-2.0
"""One process that is sampled from user space: its Ruby, what it runs now, the CPU time used so far."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from rubyunwind.abi import FrameMarker, decode_trace
from rubyunwind.bpf.hosted import HostMemory
from rubyunwind.errors import AttachError, RubyUnwindError, UnsupportedRuby
from rubyunwind.process.activity import ActivityWatch
from rubyunwind.process.identity import ProcessIdentity
from rubyunwind.process.image import LiveProcess
from rubyunwind.process.memory import MemoryReadError
from rubyunwind.process.threads import thread_info
from rubyunwind.profiler.context_reader import ContextReader
from rubyunwind.profiler.files import is_code
from rubyunwind.profiler.placement import shown_frames
from rubyunwind.profiler.reasons import NO_CONTEXT, TORN, incompleteness
from rubyunwind.profiler.sample import Frame
from rubyunwind.ruby.detect import find_ruby
from rubyunwind.ruby.symbolize import RubySymbolizer, gc_frame
from rubyunwind.ruby.threads import context_tid

if TYPE_CHECKING:
    from rubyunwind.bpf.hosted import HostedCollection
    from rubyunwind.process.mappings import Mapping
    from rubyunwind.ruby.detect import RubyRuntime

__all__ = ["NO_RUBY_YET", "RunningStack", "SampledProcess", "cpu_time"]

NO_RUBY_YET = "no Ruby"

_ATTEMPTS = 3
# A stack takes a few pages, its methods one or two each.
_PAGES = 64
# Names are believed as long as the Assembler of the other backend believes them, and as many stacks kept.
_BELIEVED = 0.25
_MOST_STACKS = 16384
# Seconds between looks at what is mapped: soon while Ruby is not found or only starts, then ever more seldom.
_SOONEST, _LATEST = 0.004, 1.0

_log = logging.getLogger(__name__)


class RunningStack(NamedTuple):
    """The stack of a thread that was running. `reason` is None if it is whole."""

    tid: int
    comm: str
    frames: tuple[Frame, ...]
    reason: str | None


def cpu_time(pid: int) -> int:
    """Return ns of CPU time that all threads of a process have used, up to this moment.

    The clock of any process may be read, by number (posix-timers: CPUCLOCK_SCHED of a pid); a kernel that
    forbids it has /proc. Raises AttachError when there is no such process.
    """
    with suppress(OSError):
        return time.clock_gettime_ns((~pid << 3) | 2)
    found = thread_info(pid)
    if not found:
        raise AttachError(f"process {pid} has ended")
    return sum(thread.cpu_ns for thread in found)


class SampledProcess:
    """Finds Ruby in a process and reads its stacks. Owns what it opens.

    `ruby` is None until an interpreter was found; `refusal` says why one that is there cannot be read.
    `parent` is the process that forked it, if that is known: Ruby is where it was there. `due` is when
    `sync` is to be called next, in seconds of the monotonic clock; 0: at once. `trouble` is why it cannot be
    read at the moment. `cpu_ns` is the CPU time used up to the last tick, `owed_ns` what of it no sample
    stands for yet, `waited` at how many ticks it waited for a CPU; the profiler keeps them.
    """

    def __init__(
        self,
        pid: int,
        collection: HostedCollection,
        parent: SampledProcess | None = None,
        *,
        force_version: str | None = None,
    ) -> None:
        self.pid = pid
        self.identity = ProcessIdentity.of(pid)
        self.ruby: RubyRuntime | None = None
        self.refusal: UnsupportedRuby | None = None
        self.due = 0.0
        self.trouble = ""
        self.cpu_ns = cpu_time(pid)
        self.owed_ns = self.waited = 0
        self._wait = _SOONEST
        self._collection = collection
        self._force_version = force_version
        self._image: LiveProcess | None = None
        self._probe = 0
        self._code: list[Mapping] = []
        self._symbolizer: RubySymbolizer | None = None
        self._reader: ContextReader | None = None
        self._stacks: dict[bytes, tuple[tuple[Frame, ...], str | None, float]] = {}
        self._before: dict[int, int] = {}
        self._watch = ActivityWatch(pid)
        self._parent = parent

    def sync(self) -> None:
        """Look for what has changed. Raises RubyUnwindError when the process has ended."""
        if not self.identity.is_alive():
            raise AttachError(f"process {self.pid} has ended")
        if self._image is None or self.executed():
            self._restart()
        changed = False
        if self.refusal is None and (self.ruby is None or self.ruby.check.result == "early"):
            changed = self._find()
        self._wait = _SOONEST if changed else min(2 * self._wait, _LATEST)
        self.due = time.monotonic() + self._wait

    def executed(self) -> bool:
        """Whether exec has replaced the program since the last sync (or the process has ended)."""
        if self._image is None:
            return True
        try:
            self._image.memory.read(self._probe, 1)
        except MemoryReadError:
            return True
        return False

    def _restart(self) -> None:
        image = LiveProcess(self.pid)
        try:
            self._probe = next(mapping.start for mapping in image.mappings() if mapping.readable)
        except (StopIteration, RubyUnwindError):
            image.close()
            raise AttachError(f"process {self.pid} has no memory: it has ended") from None
        self.close()
        self.ruby = self.refusal = None
        self._symbolizer = self._reader = None
        self._stacks.clear()
        self._code = []
        self._wait = _SOONEST / 2
        self._image = image

    def _find(self) -> bool:
        """Look for Ruby; True if anything was found that was not there before."""
        image = self._image
        assert image is not None
        mappings = image.mappings()
        code = [mapping for mapping in mappings if is_code(mapping)]
        if self.ruby is None and code == self._code:
            return False
        parent, self._parent = self._parent, None
        changed = code != self._code
        self._code = code
        origin = None
        try:
            if parent is not None and parent.ruby is not None and parent._code == code:
                ruby: RubyRuntime | None = parent.ruby
                origin = parent._symbolizer
            else:
                ruby = find_ruby(
                    self.pid,
                    mappings,
                    image.memory,
                    assume_version=self._force_version,
                    open_elf=image.open,
                    search=True,
                )
        except UnsupportedRuby as error:
            self.refusal = error
            _log.warning("pid %d: %s; it is not sampled", self.pid, error)
            return True
        except RubyUnwindError as error:  # it is being torn down, or is not set up yet
            _log.debug("pid %d: looking for Ruby: %s", self.pid, error)
            self._code = []
            return changed
        if ruby is None or ruby == self.ruby:
            return changed
        if (
            self._symbolizer is None
            or self.ruby is None
            or self.ruby.identifier_table != ruby.identifier_table
        ):
            self._symbolizer = RubySymbolizer(image.memory, ruby, forked_from=origin)
            self._stacks.clear()
        self.ruby = ruby
        memory = HostMemory.of_process(image.memory, _PAGES)
        self._reader = ContextReader(self._collection, memory, ruby.proc_info, self.pid, ruby.vm_info)
        return True

    def running(self, *, patient: bool = True) -> RunningStack | str | None:
        """Return the stack of the thread that holds Ruby's lock; None if it is not running at this moment.

        A string is the reason why one that does run cannot be had. A thread that was woken and has to wait
        for a CPU counts only if not `patient`: what it shows is its sleep.
        """
        image, ruby = self._image, self.ruby
        if image is None or ruby is None or self._reader is None:
            return NO_RUBY_YET
        try:
            context = ruby.running_context(image.memory)
            tid = context_tid(image.memory, ruby.layout, context) if context else 0
        except MemoryReadError:
            self.due = 0.0  # exec, or the end
            return NO_CONTEXT
        thread = self._watch.look(tid) if tid else None
        if thread is None:  # not known, or wrong: in a forked child 3.1 keeps the parent's id
            thread = self._watch.look(self._busiest())
        if thread is None or thread.state == "asleep":
            return None
        if patient and thread.state == "woken":
            self.waited += 1
            return None
        if not context:
            return NO_CONTEXT
        found: RunningStack | None = None
        for _ in range(_ATTEMPTS):
            record = self._reader.read(context, thread.tid, thread.name, time.monotonic_ns())
            if record is None:
                with suppress(MemoryReadError):  # another fiber, or the next thread
                    context = ruby.running_context(image.memory)
                continue
            frames, reason = self._name(record)
            found = RunningStack(thread.tid, thread.name, frames, reason)
            if all(frame.kind != "unknown" for frame in frames):
                break  # else names may be what was torn
        return found or TORN

    def _busiest(self) -> int:
        """Return the thread that is ready and has used most of the CPU since the last call; 0: none is."""
        before, threads = self._before, thread_info(self.pid)
        self._before = {thread.tid: thread.cpu_ns for thread in threads}
        used = [
            (thread.cpu_ns - before.get(thread.tid, 0), thread.tid)
            for thread in threads
            if thread.state == "R"
        ]
        return max(used, default=(0, 0))[1]

    def _name(self, record: bytes) -> tuple[tuple[Frame, ...], str | None]:
        key, now = record[80:], time.monotonic()
        known = self._stacks.get(key)
        if known is not None and now - known[2] <= _BELIEVED:
            return known[0], known[1]
        trace = decode_trace(record)
        frames: list[Frame] = []
        caller: Frame | None = None
        assert self._symbolizer is not None
        # Root first: a C function has the place of the Ruby frame that called it.
        for item in reversed(shown_frames(trace.frames, self._symbolizer.folds)):
            if item.kind == FrameMarker.RUBY:
                caller = self._symbolizer.ruby_frame(item.file_id, item.addr_or_line, item.method_entry)
                frames.append(caller)
            elif item.kind == FrameMarker.RUBY_CFUNC:
                frames.append(self._symbolizer.cfunc_frame(item.file_id, caller))
            elif item.kind == FrameMarker.RUBY_GC:
                frames.append(gc_frame(item.addr_or_line))
        named = tuple(reversed(frames))
        reason = incompleteness(trace, False)
        if known is not None and known[0] == named:
            named = known[0]  # one tuple for equal stacks, so that formats can compare by identity
        elif len(self._stacks) >= _MOST_STACKS:
            self._stacks.clear()
        self._stacks[key] = (named, reason, now)
        return named, reason

    def close(self) -> None:
        """Close what was opened. Twice is harmless."""
        self._watch.close()
        if self._reader is not None:
            self._reader.forget()
            self._reader = None
        if self._image is not None:
            self._image.close()
            self._image = None
